"""What the clients have in common: streams, and the reaction to each of the engine's messages."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from rose import errors
from rose.engine.messages import (
    Abort,
    AddRequest,
    EngineDied,
    EngineOutputs,
    EngineReady,
    EngineStats,
    FinishReason,
    FromEngine,
    LoadProgress,
    Ping,
    ToEngine,
)
from rose.engine.output_stream import OutputStream, StreamTable
from rose.errors import EngineDead, RequestError, RoseError

OnProgress = Callable[[LoadProgress], None]


class BaseClient(ABC):
    """An `EngineClient` but for the transport. All methods run on one event loop.

    id_prefix: what the ids of its requests begin with for the engine, so that no two frontends have the same.
    """

    def __init__(self, id_prefix: str = "") -> None:
        self._id_prefix = id_prefix
        self._streams = StreamTable()
        self._unanswered_since: float | None = None
        self._info: EngineReady | None = None
        self._stats = EngineStats()
        self._end: str | None = None  # why the engine is gone

    @property
    def info(self) -> EngineReady:
        """Facts about the engine, known from its start."""
        if self._info is None:
            raise EngineDead("the engine has not started")
        return self._info

    @property
    def stats(self) -> EngineStats:
        """The engine's newest stats."""
        return self._stats

    @property
    def is_alive(self) -> bool:
        """False once the engine has died or was closed."""
        return self._end is None

    def submit(self, request: AddRequest) -> OutputStream:
        """Send a request now and iterate over its outputs; see `EngineClient`.

        Raises `RequestError` for a request that cannot even be sent: its id is in use, or a number has over 64 bits.
        """
        if self._end is not None:
            raise EngineDead(self._end)
        request_id = request.request_id
        sent = msgspec.structs.replace(request, request_id=self._id_prefix + request_id)
        if sent.request_id in self._streams:
            raise RequestError(f"a request with the id {request_id!r} is open already", param="request_id")
        self._post(sent)
        return self._streams.open(sent, lambda: self.abort(request_id))

    def abort(self, request_id: str, *, index: int | None = None, finish_reason: FinishReason = "abort") -> None:
        """End a request, or one of its completions. The final output still arrives."""
        sent_id = self._id_prefix + request_id
        if self._end is None and sent_id in self._streams:
            self._post(Abort(request_id=sent_id, index=index, finish_reason=finish_reason))

    def silence_s(self) -> float:
        """Seconds for which the engine has owed an answer; see `EngineClient`."""
        if self._end is not None:
            return 0.0
        if self._unanswered_since is None:
            self._post(Ping())
        return 0.0 if self._unanswered_since is None else time.monotonic() - self._unanswered_since

    def _post(self, message: ToEngine) -> None:
        """Send a message that the engine will answer."""
        self._send(message)
        if self._unanswered_since is None:
            self._unanswered_since = time.monotonic()

    @abstractmethod
    async def close(self) -> None:
        """End the engine and release what it holds. Calling it twice is harmless."""

    @abstractmethod
    def _send(self, message: ToEngine) -> None:
        """Pass a message to the engine, without waiting."""

    def _receive(self, message: FromEngine) -> None:
        """React to a message of a running engine."""
        match message:
            case EngineOutputs():
                self._stats = message.stats
                self._streams.dispatch(message.outputs)
                self._unanswered_since = time.monotonic() if self._streams else None
            case EngineDied():
                self._die(message.message)
            case _:
                pass

    def _die(self, message: str) -> None:
        """The engine is gone: fail what is open, and refuse what comes. The first reason given is kept."""
        if self._end is None:
            self._end = message
        self._streams.fail(self._end)


def load_error(died: EngineDied) -> RoseError:
    """The exception for an engine that could not start: the user's own mistake as what it is, else `EngineDead`."""
    if died.is_user_error:
        kind = getattr(errors, died.error_type, None)
        if isinstance(kind, type) and issubclass(kind, RoseError):
            return kind(died.message)
    return EngineDead(died.message)


def died_of(error: Exception) -> EngineDied:
    """The message for an engine that could not start because of `error`: `load_error` is the way back."""
    if isinstance(error, errors.ConfigError | errors.CheckpointError):
        return EngineDied(message=str(error), is_user_error=True, error_type=type(error).__name__)
    return EngineDied(message=f"the engine could not start: {type(error).__name__}: {error}")
