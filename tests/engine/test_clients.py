"""Both clients: the same contract, and for the process its start, its death and its end."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from rose.engine.base_client import BaseClient
from rose.engine.client import EngineClient
from rose.engine.config import EngineConfig
from rose.engine.inproc_client import InprocEngineClient
from rose.engine.messages import AddRequest, LoadProgress
from rose.engine.process_client import ProcessEngineClient
from rose.engine.sampling_params import SamplingParams
from rose.errors import CheckpointError, ConfigError, EngineDead, RequestError
from tests.engine.engines import GREEDY, Results, check_tokens
from tests.fake_model import FakeModel

CLIENTS = [InprocEngineClient, ProcessEngineClient]
LONG = SamplingParams(temperature=0.0, max_tokens=4000)


def make_config(model: str = "sound", **options: int) -> EngineConfig:
    return EngineConfig(model=model, device="cpu", load_format="tests.fake_model:load", **options)


@asynccontextmanager
async def started(kind: type[BaseClient], model: str = "sound", **options: int) -> AsyncIterator[EngineClient]:
    assert kind in CLIENTS
    client = await kind.start(make_config(model, **options))  # type: ignore[attr-defined]
    try:
        yield client
    finally:
        await client.close()


def request(request_id: str, prompt: list[int] | None = None, params: SamplingParams = GREEDY) -> AddRequest:
    return AddRequest(request_id=request_id, prompt_token_ids=prompt or [1, 2, 3], sampling_params=params)


async def collect(client: EngineClient, message: AddRequest) -> Results:
    results = Results()
    async for output in client.submit(message):
        results.take([output])
    return results


async def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", CLIENTS)
def test_the_contract(kind: type[BaseClient]) -> None:
    """One start for all of it: a process takes a second to come up."""

    async def streams(client: EngineClient) -> None:
        assert client.is_alive
        assert client.info.vocab_size == 50
        messages = [request(f"s{i}", [i, 5], SamplingParams(temperature=0.0, max_tokens=6, n=2)) for i in range(4)]
        for i, results in enumerate(await asyncio.gather(*(collect(client, message) for message in messages))):
            for index in range(2):
                assert results[f"s{i}", index].finish_reason == "length"
                check_tokens(FakeModel(), [i, 5], results[f"s{i}", index].token_ids, GREEDY)
        assert client.stats.num_scheduled_tokens > 0

    async def refusals(client: EngineClient) -> None:
        for bad in (SamplingParams(n=0), SamplingParams(n=1000), SamplingParams(top_p=7.0)):
            results = await collect(client, request("bad", params=bad))
            assert {result.finish_reason for result in results.values()} == {"error"}
        if isinstance(client, ProcessEngineClient):
            with pytest.raises(RequestError, match="64 bits"):
                client.submit(request("huge", params=SamplingParams(seed=2**70)))
        stream = client.submit(request("twin", params=LONG))
        with pytest.raises(RequestError, match="twin"):
            client.submit(request("twin"))
        await stream.aclose()

    async def aborts(client: EngineClient) -> None:
        results = Results()
        params = SamplingParams(temperature=0.0, max_tokens=4000, n=2)
        async for output in client.submit(request("a", params=params)):
            results.take([output])
            if len(results["a", 0].token_ids) == 3:
                client.abort("a", index=0, finish_reason="stop")
            if results["a", 0].finals and len(results["a", 1].token_ids) > 5:
                client.abort("a")
        assert results["a", 0].finish_reason == "stop"
        assert results["a", 1].finish_reason == "abort"
        client.abort("a")
        client.abort("nobody")

    async def early_ends(client: EngineClient) -> None:
        async with aclosing(client.submit(request("closed", params=LONG))) as stream:
            async for _ in stream:
                break
        async for _ in client.submit(request("dropped", params=LONG)):
            break
        client.submit(request("never read", params=LONG))
        await client.submit(request("closed unread", params=LONG)).aclose()
        # Their finals go nowhere, so ask what the engine is doing.
        for i in range(100):
            await collect(client, request(f"probe{i}", params=SamplingParams(max_tokens=1)))
            if client.stats.num_running + client.stats.num_waiting == 0:
                break
        assert client.stats.kv_cache_usage == 0.0

    async def main() -> None:
        async with started(kind, "long") as client:
            checks: list[Callable[[EngineClient], Awaitable[None]]] = [streams, refusals, aborts, early_ends]
            for check in checks:
                await check(client)
            open_stream = client.submit(request("open", params=LONG))
            await anext(open_stream)
        # Closed with a request under way: it ends, and nothing hangs.
        rest = [output async for output in open_stream]
        assert rest[-1].finish_reason == "abort"
        await client.close()
        assert not client.is_alive
        with pytest.raises(EngineDead):
            client.submit(request("late"))

    asyncio.run(main())


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_failing_step_ends_every_stream(kind: type[BaseClient]) -> None:
    async def main() -> None:
        async with started(kind, "crash") as client:
            # Reading 49 makes the fake model raise.
            prompts = {"a": [1], "b": [49]}
            streams = [client.submit(request(name, prompt, SamplingParams())) for name, prompt in prompts.items()]
            for stream in streams:
                with pytest.raises(EngineDead, match="crash token"):
                    async for _ in stream:
                        pass
            assert not client.is_alive

    asyncio.run(main())


def test_a_killed_process_is_noticed_at_once() -> None:
    async def main() -> None:
        async with started(ProcessEngineClient, "long") as client:
            assert isinstance(client, ProcessEngineClient)
            streams = [client.submit(request(name, params=LONG)) for name in "ab"]
            await anext(streams[0])
            killed = time.monotonic()
            os.kill(client.pid, signal.SIGKILL)
            for stream in streams:
                with pytest.raises(EngineDead, match="status -9"):
                    async for _ in stream:
                        pass
            assert time.monotonic() - killed < 5
            assert not client.is_alive
            with pytest.raises(EngineDead):
                client.submit(request("late"))

    asyncio.run(main())


def test_a_start_that_fails_says_why() -> None:
    async def start(config: EngineConfig) -> None:
        await ProcessEngineClient.start(config)

    with pytest.raises(CheckpointError, match=r"missing/config\.json: no such file"):
        asyncio.run(start(make_config("missing")))
    with pytest.raises(ConfigError, match="longer than the model's 128"):
        asyncio.run(start(make_config(max_model_len=1000)))
    with pytest.raises(EngineDead, match="a bug in the loader"):
        asyncio.run(start(make_config("broken")))


def test_a_bad_path_is_a_checkpoint_error() -> None:
    async def main() -> None:
        with pytest.raises(CheckpointError, match="/no/such/folder"):
            await ProcessEngineClient.start(EngineConfig(model="/no/such/folder", device="cpu"))

    asyncio.run(main())


@pytest.mark.parametrize("kind", CLIENTS)
def test_progress_is_reported(kind: type[BaseClient]) -> None:
    seen: list[LoadProgress] = []

    async def main() -> None:
        client = await kind.start(make_config(), seen.append)  # type: ignore[attr-defined]
        await client.close()

    asyncio.run(main())
    assert seen == [LoadProgress(done_bytes=0, total_bytes=10), LoadProgress(done_bytes=10, total_bytes=10)]


def test_a_failing_progress_callback_fails_the_start_rather_than_hang() -> None:
    def fail(progress: LoadProgress) -> None:
        raise ValueError("no terminal")

    with pytest.raises(EngineDead, match="no terminal"):
        asyncio.run(ProcessEngineClient.start(make_config(), fail))


def test_a_cancelled_start_leaves_no_process() -> None:
    async def main() -> None:
        start = asyncio.create_task(ProcessEngineClient.start(make_config()))
        await asyncio.sleep(0.1)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start

    asyncio.run(main())


PARENT = """
import asyncio, sys
from rose.engine.process_client import ProcessEngineClient
from tests.engine.test_clients import make_config

async def main():
    client = await ProcessEngineClient.start(make_config())
    print(client.pid, client.folder, flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await client.close()

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("end", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
@pytest.mark.usefixtures("heeded_sigint")
def test_the_engine_ends_with_its_parent(end: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        told, folder = parent.stdout.readline().split()
        pid = int(told)
        assert is_running(pid)
        assert Path(folder).is_dir()
        parent.send_signal(end)
        assert parent.wait(10) == status
        asyncio.run(wait_until(lambda: not is_running(pid)))
        assert not Path(folder).exists(), "nothing is left behind"
        assert "Traceback" not in parent.stderr.read()
