"""What the frontend costs: processor time of an API server for each event that it streams.

`python -m rose.bench.frontend [--api chat,responses,bare] [--streams 1,64,256] [--tokens 300] [--step-ms 5]`

The server is a process of its own, the one of `rose serve --api-server-count`, so what is measured is all of it: from
the engine's messages to bytes on sockets. The engine is played here: all streams get one token in each step, and each
token makes one event. The time of a stream's beginning is left out. `bare` is a FastAPI application that sends events
of the same size and does nothing else: what no frontend on this stack can go below.
"""

import argparse
import asyncio
import contextlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rose.bench.as_module import run_as_module
from rose.chat.tokenizer import Tokenizer, load_tokenizer
from rose.engine.channel import OWNER, EngineEnd, FrontendEnd
from rose.engine.messages import AddRequest, EngineOutputs, EngineReady, EngineStats, FinishReason, RequestOutput
from rose.engine.messages import Shutdown as EngineShutdown
from rose.errors import ConfigError
from rose.server.api_process import ApiServerConfig
from rose.server.http import HttpServer, bind, bind_several
from rose.server.settings import ServerSettings
from rose.weights.resolve import resolve_tokenizer

_MODEL = "rose-demo"
_BODIES = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True}),
    "responses": ("/v1/responses", {"input": "hi", "stream": True, "store": False}),
    "completions": ("/v1/completions", {"prompt": "hi", "max_tokens": 100_000, "stream": True}),
    "bare": ("/", {}),
}
_BARE_EVENT = b"data: " + b"x" * 180 + b"\n\n"  # about the size of a chunk of a chat
_LEAST_EVENTS = 2000
_TEXT = " the tide is high at four and low at ten"


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. us_per_event: microseconds of the server's processor time. rate: events a second."""

    api: str
    num_streams: int
    num_events: int
    us_per_event: float
    rate: float


class _PlayedEngine:
    """The engine's side: opens every request with `opening` at once, then gives all of them a token in each step."""

    def __init__(self, folder: Path, opening: Sequence[int], text: Sequence[int], end: int) -> None:
        self._channel = EngineEnd(folder)
        self._opening, self._text, self._end = list(opening), list(text), end
        self._open: list[str] = []
        self._num_steps_left = 0
        self._step_s = 0.0
        self.all_done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        """Requests that wait for their steps."""
        return len(self._open)

    def step(self, num_steps: int, step_s: float) -> None:
        """Begin to give every open request so many tokens, one each `step_s`."""
        self.all_done.clear()
        self._step_s, self._num_steps_left = step_s, num_steps

    def close(self, folder: Path) -> None:
        """End."""

        async def tell() -> None:
            owner = FrontendEnd(folder, OWNER)
            owner.send(EngineShutdown())
            await asyncio.sleep(0.1)
            owner.close(linger_ms=100)

        asyncio.run(tell())
        self._thread.join(10)

    def _run(self) -> None:
        next_step = time.perf_counter()
        while True:
            for message in self._channel.receive(False):
                match message:
                    case AddRequest():
                        self._open.append(message.request_id)
                        self._tell([message.request_id], self._opening)
                    case EngineShutdown():
                        self._channel.close()
                        return
            if self._num_steps_left and time.perf_counter() >= next_step:
                next_step = max(next_step + self._step_s, time.perf_counter())
                self._num_steps_left -= 1
                if self._num_steps_left:
                    self._tell(self._open, [self._text[self._num_steps_left % len(self._text)]])
                else:
                    self._tell(self._open, [self._end], "stop")
                    self._open.clear()
                    self.all_done.set()
            else:
                time.sleep(0.0005)

    def _tell(self, request_ids: Sequence[str], ids: list[int], reason: FinishReason | None = None) -> None:
        outputs = [
            RequestOutput(request_id=request_id, token_ids=ids, finish_reason=reason, num_prompt_tokens=9)
            for request_id in request_ids
        ]
        self._channel.send(EngineOutputs(outputs=outputs, stats=EngineStats()))


class _Readers:
    """The clients' side: streams over plain sockets, read by one thread that only counts."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def open(self, count: int, path: str, body: bytes) -> "list[socket.socket]":
        """So many requests, each on a connection of its own."""
        head = f"POST {path} HTTP/1.1\r\nhost: rose\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        clients = [socket.create_connection(self._address) for _ in range(count)]
        for client in clients:
            client.sendall(head.encode() + body)
        return clients

    def count_to_end(self, clients: "list[socket.socket]") -> int:
        """Read all of them to their end; returns the number of events."""
        num_events = 0
        tails = dict.fromkeys(clients, b"")
        with selectors.DefaultSelector() as selector:
            for client in clients:
                selector.register(client, selectors.EVENT_READ, client)
            while tails:
                for key, _ in selector.select(30):
                    reader: socket.socket = key.data
                    data = reader.recv(1 << 16)
                    if not data:
                        selector.unregister(reader)
                        reader.close()
                        del tails[reader]
                        continue
                    data = tails[reader] + data
                    num_events += data.count(b"data: ")
                    tails[reader] = data[-5:]  # too short to be counted again
        return num_events


@contextlib.contextmanager
def _api_server(folder: Path, tokenizer: Tokenizer, listener: socket.socket) -> Iterator[int]:
    """An API server's process; gives its id."""
    config = ApiServerConfig(
        name="server-0",
        engine_folder=str(folder),
        engine_info=EngineReady(
            max_model_len=131072,
            vocab_size=tokenizer.vocab_size,
            block_size=16,
            num_blocks=8192,
            device="none",
            dtype="bfloat16",
        ),
        tokenizer_folder=str(resolve_tokenizer(_MODEL, "auto")),
        settings=ServerSettings(served_model_names=(_MODEL,)),
        listener=listener.fileno(),
        grace_s=0.0,
    )
    command = [sys.executable, "-m", "rose.server.api_process"]
    with _started(command, listener, msgspec.json.encode(config) + b"\n") as pid:
        yield pid


@contextlib.contextmanager
def _started(command: list[str], listener: socket.socket, told: bytes) -> Iterator[int]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(listener.fileno(),), start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(told)
        process.stdin.flush()
        if not process.stdout.readline():
            raise RuntimeError("the server did not start")
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdin.close()
        process.stdout.close()


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far, all threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _num_steps(num_tokens: int, num_streams: int) -> int:
    """More for few streams, whose processor time would be too little for the clock."""
    return max(num_tokens, _LEAST_EVENTS // num_streams)


def measure(api: str, counts: Sequence[int], num_tokens: int, step_s: float) -> Iterator[Point]:
    """The points of one API, for each number of streams. num_tokens: of each stream."""
    path, body = _BODIES[api]
    tokenizer = load_tokenizer(resolve_tokenizer(_MODEL, "auto"))
    opening = [] if api == "completions" else tokenizer.encode_with_special("<|channel|>final<|message|>")
    text = tokenizer.encode(_TEXT)
    (end,) = tokenizer.encode_with_special("<|return|>")
    with tempfile.TemporaryDirectory(prefix="rose-bench-") as name, bind_several(1, "127.0.0.1", 0)[0] as listener:
        folder = Path(name)
        engine = _PlayedEngine(folder, opening, text, end)
        readers = _Readers(listener.getsockname())
        with _api_server(folder, tokenizer, listener) as pid:
            for count in counts:
                clients = readers.open(count, path, msgspec.json.encode(body))
                while engine.num_open < count:
                    time.sleep(0.01)
                time.sleep(0.5)  # for the headers and first events of all
                before, began = _cpu_s(pid), time.perf_counter()
                engine.step(_num_steps(num_tokens, count), step_s * max(1.0, count / 64))
                num_events = readers.count_to_end(clients)
                spent, wall = _cpu_s(pid) - before, time.perf_counter() - began
                assert num_events >= count * num_tokens
                yield Point(api, count, num_events, 1e6 * spent / num_events, num_events / wall)
        engine.close(folder)


def measure_bare(counts: Sequence[int], num_tokens: int, step_s: float) -> Iterator[Point]:
    """The points of the bare stack."""
    with bind("127.0.0.1", 0) as listener:
        readers = _Readers(listener.getsockname())
        for count in counts:
            num_steps = _num_steps(num_tokens, count)
            told = f"{listener.fileno()} {count} {num_steps} {step_s * max(1.0, count / 64)}\n"
            with _started(
                [sys.executable, "-m", "rose.bench.frontend", "--serve-bare"], listener, told.encode()
            ) as pid:
                clients = readers.open(count, "/", b"")
                before, began = _cpu_s(pid), time.perf_counter()
                num_events = readers.count_to_end(clients)
                spent, wall = _cpu_s(pid) - before, time.perf_counter() - began
                yield Point("bare", count, num_events, 1e6 * spent / num_events, num_events / wall)


def _serve_bare() -> None:
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
    from uvicorn.loops.auto import auto_loop_factory

    fd, count, num_tokens, step_s = (float(part) for part in sys.stdin.readline().split())
    app = FastAPI()
    waiting: list[asyncio.Event] = []

    async def events() -> AsyncIterator[bytes]:
        mine = asyncio.Event()
        waiting.append(mine)
        for _ in range(int(num_tokens)):
            await mine.wait()
            mine.clear()
            yield _BARE_EVENT

    async def tick() -> None:
        while len(waiting) < count:
            await asyncio.sleep(0.01)
        for _ in range(int(num_tokens)):
            await asyncio.sleep(step_s)
            for each in waiting:
                each.set()

    @app.post("/")
    async def stream() -> StreamingResponse:
        return StreamingResponse(events(), media_type="text/event-stream")

    async def serve() -> None:
        async def stop() -> None:
            pass

        ticking = asyncio.create_task(tick())
        with socket.socket(fileno=int(fd)) as listener:
            server = HttpServer(app, on_started=lambda: print(flush=True), on_stopping=stop, grace_s=0.0)
            await server.serve(sockets=[listener])
        ticking.cancel()

    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        runner.run(serve())


def main() -> None:
    """Measure and print, each point several times over."""
    parser = argparse.ArgumentParser(description="Processor time of the frontend for each event that it streams.")
    parser.add_argument("--api", default="bare,chat,responses", help="of bare, chat, responses and completions")
    parser.add_argument("--streams", default="1,64,256", help="streams at once")
    parser.add_argument("--tokens", type=int, default=300, help="tokens of each stream")
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a step, for up to 64 streams")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each point")
    parser.add_argument("--serve-bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_bare:
        _serve_bare()
        return
    apis = options.api.split(",")
    if unknown := [api for api in apis if api not in _BODIES]:
        raise ConfigError(f"--api must be of {', '.join(_BODIES)}, not {unknown[0]}")
    try:
        counts = [int(count) for count in options.streams.split(",") for _ in range(options.repeats)]
    except ValueError as error:
        raise ConfigError(f"--streams must be numbers such as 1,64: {error}") from error
    print("| frontend | streams | events | us of processor time an event, least and median | events/s |")
    print("|---|---:|---:|---:|---:|")
    for api in apis:
        run = measure_bare(counts, options.tokens, options.step_ms / 1e3) if api == "bare" else None
        points = list(run or measure(api, counts, options.tokens, options.step_ms / 1e3))
        for count in dict.fromkeys(counts):
            of_count = [point for point in points if point.num_streams == count]
            times = sorted(point.us_per_event for point in of_count)
            rate = max(point.rate for point in of_count)
            figures = f"{times[0]:.1f}, {statistics.median(times):.1f} | {rate:,.0f}"
            print(f"| {api} | {count} | {of_count[0].num_events} | {figures} |", flush=True)


if __name__ == "__main__":
    run_as_module(main)
