"""The seam between frontends and engines: whoever serves requests sees `EngineClient` and nothing below it."""

from collections.abc import AsyncIterator
from typing import Protocol

from rose.engine.messages import AddRequest, EngineReady, EngineStats, FinishReason, RequestOutput


class RequestOutputs(Protocol):
    """The outputs of one request as they come: an async iterator that can be closed."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    async def __anext__(self) -> RequestOutput: ...

    async def aclose(self) -> None:
        """End the iteration; abort what is unfinished of the request."""
        ...


class EngineClient(Protocol):
    """A running engine, from its caller's side. Implementations live beside the engine; tests use `FakeEngine`.

    All methods are called on one event loop.
    """

    @property
    def info(self) -> EngineReady:
        """Facts about the engine, known from its start."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The engine's newest stats."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once the engine has died or was closed."""
        ...

    def submit(self, request: AddRequest) -> RequestOutputs:
        """Send a request and iterate over its outputs, of all `n` completions, until each had its final one.

        Refused requests end with `finish_reason="error"`; they do not raise. Raises `EngineDead` when the engine is
        gone, also in the middle. Closing the iterator early aborts the request.
        """
        ...

    def abort(self, request_id: str, *, index: int | None = None, finish_reason: FinishReason = "abort") -> None:
        """End a request, or one of its completions; see `messages.Abort`. The final output still arrives."""
        ...

    def silence_s(self) -> float:
        """For how many seconds the engine has owed an answer, 0.0 if it owes none. Asking makes it owe one.

        It answers between two steps, so this is at most the time of a step, unless the engine hangs.
        """
        ...

    async def close(self) -> None:
        """End the engine and release what it holds. Calling it twice is harmless."""
        ...
