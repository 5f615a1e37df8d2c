"""`rose serve --api-server-count`: several API processes at one address, in front of one engine."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, tiny_checkpoint
from tests.e2e.test_server_process import body, is_running, refused

NUM_STREAMS = 96
ENDLESS = body(stream=True, ignore_eos=True)
# The random model's chats may be silent for long; this text is not.
TALKATIVE = {"prompt": "x", "max_tokens": 800, "stream": True, "guided_regex": "[a-z ]{9000}"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[ServerProcess]:
    with ServerProcess(str(checkpoint), "--api-server-count", "2", "--shutdown-timeout", "0.2") as running:
        yield running


def api_pids(server: ServerProcess) -> list[int]:
    """The processes that serve the API."""
    return [pid for pid in server.engine_pids() if b"api_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def engine_pid(server: ServerProcess) -> int:
    (pid,) = set(server.engine_pids()) - set(api_pids(server))
    return pid


def series(server: ServerProcess, name: str) -> float:
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith((f"{name} ", f"{name}{{")):
            return float(line.split()[-1])
    raise AssertionError(f"no series {name}")


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def wait_until(condition, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


async def texts_of(server: ServerProcess, texts: list[str]) -> list[str]:
    """What streams give for these texts, each of which is forced on the model token by token."""

    async def one(client: httpx.AsyncClient, text: str) -> str:
        wanted = {"prompt": "x", "max_tokens": 400, "stream": True, "guided_choice": [text]}
        pieces = []
        async with client.stream("POST", "/v1/completions", json=wanted) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    pieces.append(json.loads(line.removeprefix("data: "))["choices"][0])
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == ["stop"]
        return "".join(piece["text"] for piece in pieces)

    limits = httpx.Limits(max_connections=len(texts))
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=100) as client:
        return await asyncio.gather(*(one(client, text) for text in texts))


def unique_texts(count: int, length: int = 24) -> list[str]:
    return [" ".join(f"{stream}:{i}" for i in range(length)) for stream in range(count)]


def test_streams_come_whole_and_in_order_from_both_processes(server: ServerProcess) -> None:
    pids = api_pids(server)
    assert len(pids) == 2
    before = {pid: cpu_ticks(pid) for pid in pids}
    num_before, tokens_before = (
        series(server, f"rose:{name}") for name in ("prompt_tokens_total", "generation_tokens_total")
    )
    texts = unique_texts(NUM_STREAMS)
    assert asyncio.run(texts_of(server, texts)) == texts
    assert all(cpu_ticks(pid) > before[pid] for pid in pids), "both had a share"
    # Any process tells of all of them.
    seen = {series(server, "rose:prompt_tokens_total") - num_before for _ in range(8)}
    assert seen == {NUM_STREAMS}
    assert series(server, "rose:generation_tokens_total") - tokens_before > NUM_STREAMS * 24
    assert series(server, "vllm:time_to_first_token_seconds_count") >= NUM_STREAMS
    wait_until(lambda: {series(server, "rose:num_requests_running") for _ in range(8)} == {0.0})


def test_a_killed_process_takes_only_its_own_streams_and_is_replaced(server: ServerProcess) -> None:
    pids = api_pids(server)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        num_open, num_cut = 12, 0
        request = client.build_request("POST", "/v1/completions", json=TALKATIVE)
        streams = [client.send(request, stream=True).iter_lines() for _ in range(num_open)]
        for lines in streams:
            next(lines)
        wait_until(lambda: series(server, "rose:num_requests_running") == num_open)
        os.kill(pids[0], signal.SIGKILL)
        # What the dead one had asked for costs the engine nothing any more.
        wait_until(lambda: series(server, "rose:num_requests_running") < num_open)
        num_running = series(server, "rose:num_requests_running")
        for lines in streams:
            try:
                assert [line for line in lines if line][-1] == "data: [DONE]"
            except httpx.RemoteProtocolError:
                num_cut += 1
        assert 0 < num_cut < num_open, "connections are spread over the processes"
        assert num_running == num_open - num_cut
    wait_until(lambda: len(api_pids(server)) == 2)
    assert pids[0] not in api_pids(server)
    assert any("ended with status -9; starting another" in line for line in server.log)
    texts = unique_texts(16)
    assert asyncio.run(texts_of(server, texts)) == texts
    assert all(httpx.get(f"{server.url}/health").status_code == 200 for _ in range(6))
    assert series(server, "rose:prompt_tokens_total") > NUM_STREAMS, "what a dead process counted still counts"


def test_a_chat_goes_on_whichever_process_answers(server: ServerProcess) -> None:
    previous = None
    for _ in range(6):  # each on a connection of its own, so that the processes take turns by chance
        wanted = {"input": "tide?", "max_output_tokens": 4, "previous_response_id": previous}
        made = httpx.post(f"{server.url}/v1/responses", json=wanted, timeout=30)
        assert made.status_code == 200, made.text
        previous = made.json()["id"]
        assert all(httpx.get(f"{server.url}/v1/responses/{previous}").status_code == 200 for _ in range(4))
    refused = httpx.post(f"{server.url}/v1/responses", json={"input": "tide?", "background": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "background")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_it_ends_in_order_with_streams_open(checkpoint: Path, number: int) -> None:
    with ServerProcess(str(checkpoint), "--api-server-count", "2", "--shutdown-timeout", "0.2") as server:
        pids = server.engine_pids()
        with httpx.Client(base_url=server.url, timeout=60) as client:
            requests = [client.build_request("POST", "/v1/chat/completions", json=ENDLESS) for _ in range(6)]
            lines = [client.send(request, stream=True).iter_lines() for request in requests]
            for each in lines:
                next(each)
            server.signal(number)
            for each in lines:
                events = [line for line in each if line]
                assert '"code":"aborted"' in events[-2]
                assert events[-1] == "data: [DONE]"
        assert server.wait() == 0
        assert not any(is_running(pid) for pid in pids)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
    assert not any("Traceback" in line or "the engine" in line for line in server.log), "".join(server.log)


def test_a_dead_engine_is_told_by_every_process_and_all_end_with_the_first(checkpoint: Path) -> None:
    with ServerProcess(str(checkpoint), "--api-server-count", "2") as server:
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=ENDLESS) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(engine_pid(server), signal.SIGKILL)
            events = [line for line in lines if line]
        assert '"code":"engine_dead"' in events[-2]
        wait_until(lambda: {httpx.get(f"{server.url}/health").status_code for _ in range(6)} == {503})
        # A process that is replaced now knows it as well.
        dead = api_pids(server)[0]
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: len(set(api_pids(server)) - {dead}) == 2)
        assert {httpx.get(f"{server.url}/health", timeout=30).status_code for _ in range(6)} == {503}

        pids = server.engine_pids()
        assert len(pids) == 2
        server.signal(signal.SIGKILL)
        server.wait()
        wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_what_cannot_be_is_one_line(checkpoint: Path, server: ServerProcess) -> None:
    assert "--api-server-count" in refused(str(checkpoint), "--api-server-count", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.e2e.server_process.VOCAB_SIZE", 400)  # fewer than the tokenizer has
        broken = tiny_checkpoint(checkpoint.parent / "broken")
    assert "do not belong together" in refused(str(broken), "--port", "0", "--api-server-count", "2")
    port = server.url.rsplit(":", 1)[1]
    for count in ("1", "2"):
        assert "in use" in refused(str(checkpoint), "--port", port, "--api-server-count", count)
