"""`rose serve MODEL`: an OpenAI-compatible server in front of an engine process."""

import asyncio
import contextlib
import dataclasses
import logging
import math
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rose.cli.places import require_tokenizer
from rose.cli.serve_flags import ApiFlags, CompatibleFlags, EngineFlags, ServerFlags
from rose.cli.tool_flags import ToolFlags, tool_settings
from rose.errors import ConfigError
from rose.log import setup_logging

if TYPE_CHECKING:
    from rose.chat.format import ChatFormat
    from rose.chat.tokenizer import Tokenizer
    from rose.engine.config import EngineConfig
    from rose.engine.messages import EngineReady
    from rose.engine.process_client import ProcessEngineClient
    from rose.server.settings import ServerSettings

# The imports inside the functions keep `rose serve --help` quick.

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_MAX_API_SERVERS = 64
_MAX_SHUTDOWN_S = 24 * 3600
_TERMINATED = 128 + signal.SIGTERM


def serve(
    model: Annotated[str, Parameter(help="Such as rose-demo, ./my-checkpoint or openai/gpt-oss-20b.")],
    *,
    server: Annotated[ServerFlags | None, Parameter(name="*")] = None,
    api: Annotated[ApiFlags | None, Parameter(name="*")] = None,
    tools: Annotated[ToolFlags | None, Parameter(name="*")] = None,
    engine: Annotated[EngineFlags | None, Parameter(name="*")] = None,
    compatible: Annotated[CompatibleFlags | None, Parameter(name="*")] = None,
) -> None:
    """Serve MODEL over HTTP: a bundled model, a folder with a checkpoint, or a name on the Hugging Face hub.

    Every flag can also be given in the environment: `--max-model-len` is `ROSE_MAX_MODEL_LEN`.
    """
    from uvicorn.loops.auto import auto_loop_factory

    from rose.server.http import log_through
    from rose.weights.resolve import resolve_tokenizer

    del compatible
    setup_logging("server")
    log_through(logging.getLogger("rose").handlers)
    server = server or ServerFlags()
    settings = server_settings(model, server, api or ApiFlags())
    settings = dataclasses.replace(settings, tools=tool_settings(tools or ToolFlags()))
    config = engine_config(model, engine or EngineFlags())
    with _bound(server, settings.num_api_servers) as listeners:
        folder = resolve_tokenizer(model, config.load_format)
        require_tokenizer(folder)
        if config.load_format == "auto":  # made-up weights have no folder
            config = dataclasses.replace(config, model=str(folder))
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            try:
                runner.run(_serve(folder, config, settings, listeners, server.shutdown_timeout))
            except asyncio.CancelledError:
                sys.exit(_TERMINATED)


def server_settings(model: str, server: ServerFlags, api: ApiFlags) -> "ServerSettings":
    """The frontend's settings. Raises `ConfigError` for a flag that cannot be."""
    from rose.server.responses.open_store import open_store
    from rose.server.settings import ServerSettings

    open_store(api.response_store)  # tells now, before a model is loaded, if it cannot be
    if api.current_date not in ("today", "none") and not _DATE.match(api.current_date):
        raise ConfigError(f"--current-date must be today, none or YYYY-MM-DD, not {api.current_date!r}")
    if "" in (api.api_key or ()):
        raise ConfigError("--api-key (or ROSE_API_KEY) is empty: it would let in whoever sends an empty key")
    if "" in (api.served_model_name or ()):
        raise ConfigError("--served-model-name must not be empty")
    if api.max_body_bytes is not None and api.max_body_bytes < 1:
        raise ConfigError(f"--max-body-bytes must be at least 1, not {api.max_body_bytes}")
    if not 0 < api.body_timeout < math.inf:
        raise ConfigError(f"--body-timeout must be above 0, not {api.body_timeout}")
    if not 0 <= server.shutdown_timeout <= _MAX_SHUTDOWN_S:
        raise ConfigError(f"--shutdown-timeout must be from 0 to {_MAX_SHUTDOWN_S}, not {server.shutdown_timeout}")
    if not 1 <= server.api_server_count <= _MAX_API_SERVERS:
        raise ConfigError(f"--api-server-count must be from 1 to {_MAX_API_SERVERS}, not {server.api_server_count}")
    if not 0 <= server.health_timeout < math.inf:
        raise ConfigError(f"--health-timeout must be at least 0, not {server.health_timeout}")
    return ServerSettings(
        served_model_names=tuple(api.served_model_name or default_model_names(model)),
        api_keys=tuple(api.api_key or ()),
        strict_fields=api.strict_fields,
        reasoning_field=api.reasoning_field,
        vllm_metrics=api.vllm_metrics,
        max_body_bytes=api.max_body_bytes,
        body_timeout_s=api.body_timeout,
        allowed_origins=tuple(api.allowed_origins or ()),
        root_path=server.root_path,
        response_store=api.response_store,
        reasoning_summary=api.reasoning_summary,
        chat_format=api.chat_format,
        health_timeout_s=server.health_timeout,
        num_api_servers=server.api_server_count,
        current_date=None if api.current_date == "none" else api.current_date,
    )


def default_model_names(model: str) -> tuple[str, ...]:
    """The name as it was given, unless it is a folder, and its last part: `openai/gpt-oss-20b`, `gpt-oss-20b`."""
    from rose.weights.resolve import local_path

    path = local_path(model)
    last = path.resolve().name if path.is_dir() else path.name
    return (last,) if path.is_dir() else tuple(dict.fromkeys((model, last)))


def engine_config(model: str, flags: EngineFlags) -> "EngineConfig":
    """The engine's configuration. Raises `ConfigError` for a value that cannot work."""
    from rose.engine.config import EngineConfig

    return EngineConfig(
        model=model,
        device=flags.device,
        dtype=flags.dtype,
        max_model_len=flags.max_model_len,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        block_size=flags.block_size,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        enable_prefix_caching=flags.enable_prefix_caching,
        tensor_parallel_size=flags.tensor_parallel_size,
        seed=flags.seed,
        experts=flags.experts,
        dense=flags.dense,
        cuda_graphs=flags.cuda_graphs,
        load_format=flags.load_format,
        num_threads=flags.num_threads,
    )


@contextlib.contextmanager
def _bound(flags: ServerFlags, count: int) -> "Iterator[list[socket.socket]]":
    """A socket for each of `count` processes, bound to where clients are to find them."""
    from rose.server.http import bind_several
    from rose.server.unix_socket import bound_to_path

    with contextlib.ExitStack() as opened:
        if flags.uds is not None:  # one for all: processes that accept from it share its clients
            yield [opened.enter_context(bound_to_path(flags.uds))] * count
            return
        listeners = bind_several(count, flags.host, flags.port)
        for listener in listeners:
            opened.enter_context(contextlib.closing(listener))
        yield listeners


async def _serve(
    folder: Path,
    config: "EngineConfig",
    settings: "ServerSettings",
    listeners: "list[socket.socket]",
    grace_s: float,
) -> None:
    from rose.cli.load_progress import load_progress
    from rose.engine.process_client import ProcessEngineClient
    from rose.server.http import HttpServer

    name = settings.served_model_names[0]
    with _cancelled_by_sigterm(), load_progress(name) as show:
        loading = asyncio.create_task(
            ProcessEngineClient.start(config, lambda now: show(now.done_bytes, now.total_bytes))
        )
        try:
            await asyncio.sleep(0)  # the engine's process is started first, and this one gets ready meanwhile
            tokenizer, chat_format = _load_chat(folder, settings)
            from rose.server.app import create_app

            engine = await loading
        finally:
            if not loading.done():
                loading.cancel()
                await asyncio.wait([loading])

    def announce() -> None:
        _announce(name, listeners[0], engine.info)

    try:
        if len(listeners) > 1:
            await _serve_in_processes(engine, folder, settings, listeners, grace_s, announce)
            return
        server = HttpServer(
            create_app(engine, chat_format, tokenizer, settings),
            on_started=announce,
            on_stopping=engine.close,
            grace_s=grace_s,
        )
        await server.serve(sockets=listeners)
    finally:
        await engine.close()


def _load_chat(folder: Path, settings: "ServerSettings") -> "tuple[Tokenizer, ChatFormat]":
    from rose.chat.registry import get_format
    from rose.chat.tokenizer import load_tokenizer
    from rose.server.builtin_tools.config import ToolSettings

    tokenizer = load_tokenizer(folder)
    chat_format = get_format(settings.chat_format, tokenizer)
    if settings.tools != ToolSettings() and chat_format.name != "harmony":
        raise ConfigError(f"a model of the format {chat_format.name} knows no built-in tools: leave out their flags")
    return tokenizer, chat_format


async def _serve_in_processes(
    engine: "ProcessEngineClient",
    folder: Path,
    settings: "ServerSettings",
    listeners: "list[socket.socket]",
    grace_s: float,
    announce: Callable[[], None],
) -> None:
    from rose.server.fleet import Fleet

    settings = dataclasses.replace(settings, shared_folder=str(engine.folder))
    fleet = Fleet(engine, folder, settings, listeners, grace_s=grace_s, on_started=announce)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, fleet.stop)
    await fleet.run()


@contextlib.contextmanager
def _cancelled_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C does, so that an engine that is loading ends with it, in order."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _announce(name: str, listener: socket.socket, info: "EngineReady") -> None:
    from rose.server.http import address_of

    address = address_of(listener)
    print(
        f"rose: serving {name} at {address}{'/v1' if address.startswith('http') else ''} "
        f"on {info.device} in {info.dtype}, context {info.max_model_len} tokens, "
        f"KV cache {info.num_blocks * info.block_size} tokens, loaded in {info.load_time_s:.1f} s",
        flush=True,
    )
