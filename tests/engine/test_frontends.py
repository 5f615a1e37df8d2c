"""Several frontends of one engine process: each gets its own outputs, and one that ends harms nobody."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rose.engine.attached_client import AttachedEngineClient
from rose.engine.process_client import ProcessEngineClient
from rose.engine.sampling_params import SamplingParams
from rose.errors import EngineDead, RequestError
from tests.engine.engines import GREEDY, check_tokens
from tests.engine.test_clients import LONG, collect, request, started, wait_until
from tests.fake_model import FakeModel


@asynccontextmanager
async def frontends(num: int, model: str = "sound") -> AsyncIterator[tuple[ProcessEngineClient, list]]:
    async with started(ProcessEngineClient, model) as owner:
        assert isinstance(owner, ProcessEngineClient)
        attached = [AttachedEngineClient(owner.folder, f"f{i}", owner.info) for i in range(num)]
        try:
            yield owner, attached
        finally:
            await asyncio.gather(*(client.close() for client in attached))


def test_each_gets_its_own_outputs_though_the_ids_are_the_same() -> None:
    async def main() -> None:
        params = SamplingParams(temperature=0.0, max_tokens=12, n=2)
        async with frontends(3) as (owner, attached):
            clients = [owner, *attached]
            wanted = [(client, f"r{i}", [7 * number + i, 5]) for number, client in enumerate(clients) for i in range(6)]
            all_results = await asyncio.gather(
                *(collect(client, request(name, prompt, params)) for client, name, prompt in wanted)
            )
            for (_, _, prompt), results in zip(wanted, all_results, strict=True):
                assert len(results) == 2
                for result in results.values():
                    assert result.finish_reason == "length"
                    assert len(result.finals) == 1
                    check_tokens(FakeModel(), prompt, result.token_ids, GREEDY)
            for client in clients:
                await wait_until(lambda client=client: client.stats == owner.stats)
            assert owner.stats.num_scheduled_tokens > 0
            with pytest.raises(RequestError, match="'twin' is open"):
                for _ in range(2):
                    attached[0].submit(request("twin", params=LONG))

    asyncio.run(main())


def test_what_a_frontend_leaves_open_is_aborted() -> None:
    async def main() -> None:
        async with frontends(2, "long") as (owner, (gone, stays)):
            lost = [gone.submit(request(name, params=LONG)) for name in "ab"]
            kept = stays.submit(request("a", params=SamplingParams(temperature=0.0, max_tokens=600)))
            await anext(lost[0])
            owner.forget_frontend("f0")  # as when its process was killed
            await wait_until(lambda: stays.stats.num_running == 1)
            gone.submit(request("late", params=LONG))  # what such a process had sent may still arrive
            outputs = [output async for output in kept]
            assert sum(len(output.token_ids) for output in outputs) == 600
            assert outputs[-1].finish_reason == "length"
            await wait_until(lambda: owner.stats.num_running + owner.stats.num_waiting == 0)
            gone.engine_ended("the test is over")
            with pytest.raises(EngineDead):
                async for _ in lost[0]:
                    pass

    asyncio.run(main())


def test_closing_one_ends_its_requests_and_leaves_the_engine_to_the_others() -> None:
    async def main() -> None:
        async with frontends(2, "long") as (_, (closing, stays)):
            stream, other = (client.submit(request("a", params=LONG)) for client in (closing, stays))
            await anext(stream)
            await closing.close()
            assert [output async for output in stream][-1].finish_reason == "abort"
            assert not closing.is_alive
            await anext(other)
            await other.aclose()
            assert (await collect(stays, request("next"))).popitem()[1].finish_reason is not None

    asyncio.run(main())


def test_the_engines_death_is_told_by_its_owner() -> None:
    async def main() -> None:
        async with frontends(1, "long") as (owner, (client,)):
            stream = client.submit(request("a", params=LONG))
            await anext(stream)
            os.kill(owner.pid, signal.SIGKILL)
            why = await asyncio.wait_for(owner.wait_for_end(), 5)
            assert "status -9" in why
            client.engine_ended(why)
            with pytest.raises(EngineDead, match="status -9"):
                async for _ in stream:
                    pass

    asyncio.run(main())


def test_who_gives_up_waiting_for_the_end_leaves_the_engine_alone() -> None:
    async def main() -> None:
        async with frontends(0) as (owner, _):
            waiting = asyncio.create_task(owner.wait_for_end())
            await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert waiting.cancelled()
            assert owner.is_alive
            assert (await collect(owner, request("next"))).popitem()[1].finish_reason is not None
            began = time.monotonic()
        assert time.monotonic() - began < 4.5, "it ended when asked to"

    asyncio.run(main())


def test_an_engine_that_hangs_is_silent() -> None:
    async def main() -> None:
        async with frontends(1) as (owner, (client,)):
            for each in (owner, client):
                assert each.silence_s() < 0.1
                await wait_until(lambda each=each: each.silence_s() < 0.001)
            await asyncio.sleep(0.2)
            assert owner.silence_s() < 0.1, "an engine that is asked nothing owes nothing"
            os.kill(owner.pid, signal.SIGSTOP)
            try:
                owner.silence_s()
                stream = client.submit(request("a"))
                await asyncio.sleep(0.3)
                assert owner.silence_s() > 0.25
                assert client.silence_s() > 0.25
            finally:
                os.kill(owner.pid, signal.SIGCONT)
            async for _ in stream:
                pass
            await wait_until(lambda: owner.silence_s() < 0.1 and client.silence_s() < 0.1)

    asyncio.run(main())
