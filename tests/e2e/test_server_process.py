"""The server's process: how it starts, refuses to start, and ends. With a random model of no size."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess, tiny_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def body(**fields) -> dict:
    return {"messages": [{"role": "user", "content": "tide?"}]} | fields


def is_running(pid: int) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_it_serves_and_ends_cleanly_with_a_stream_open(checkpoint: Path) -> None:
    env = {"ROSE_SERVED_MODEL_NAME": "tiny", "ROSE_API_KEY": "sk-env"}
    flags = ("--context-length", "2K", "--reasoning-parser", "openai_gptoss", "--shutdown-timeout", "0.2")
    with ServerProcess(str(checkpoint), *flags, env=env) as server:
        with httpx.Client(base_url=server.url, headers={"authorization": "Bearer sk-env"}, timeout=30) as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
            assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 2048
            whole = client.post("/v1/chat/completions", json=body(max_tokens=8, seed=1, ignore_eos=True)).json()
            assert whole["usage"]["completion_tokens"] == 8
            endless = body(stream=True, ignore_eos=True)
            (engine_pid,) = server.engine_pids()
            with client.stream("POST", "/v1/chat/completions", json=endless) as response:
                lines = response.iter_lines()
                next(lines)
                server.signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.wait() == 0
        assert not is_running(engine_pid)
    assert not any("Traceback" in line for line in server.log)


def test_ctrl_c_ends_it(checkpoint: Path) -> None:
    with ServerProcess(str(checkpoint)) as server:
        (engine_pid,) = server.engine_pids()
        server.signal(signal.SIGINT)
        assert server.wait() == 0
        assert not is_running(engine_pid)
    assert not any("Traceback" in line for line in server.log)


def test_a_second_ctrl_c_waits_for_nothing(checkpoint: Path) -> None:
    with ServerProcess(str(checkpoint)) as server:
        (engine_pid,) = server.engine_pids()
        endless = body(stream=True, ignore_eos=True)
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=endless) as stream:
            next(stream.iter_lines())
            server.signal(signal.SIGINT)
            time.sleep(0.3)
            server.signal(signal.SIGINT)
            assert server.wait() == 0
        assert not is_running(engine_pid)
    assert not any("Traceback" in line for line in server.log)


def test_a_killed_engine_is_told_to_clients_and_probes(checkpoint: Path) -> None:
    with ServerProcess(str(checkpoint)) as server:
        (engine_pid,) = server.engine_pids()
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body(stream=True, ignore_eos=True)
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(engine_pid, signal.SIGKILL)
            events = [line for line in lines if line]
        assert '"code":"engine_dead"' in events[-2]
        assert events[-1] == "data: [DONE]"
        deadline = time.monotonic() + 5
        while (health := httpx.get(f"{server.url}/health")).status_code != 503:
            assert time.monotonic() < deadline
        assert health.json()["error"]["code"] == "engine_dead"
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body()).status_code == 503


def test_an_engine_that_hangs_is_told_to_probes(checkpoint: Path) -> None:
    with ServerProcess(str(checkpoint), "--health-timeout", "0.5") as server:
        (engine_pid,) = server.engine_pids()
        assert httpx.get(f"{server.url}/health").status_code == 200
        os.kill(engine_pid, signal.SIGSTOP)
        try:
            deadline = time.monotonic() + 5
            while (health := httpx.get(f"{server.url}/health")).status_code == 200:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert (health.status_code, health.json()["error"]["code"]) == (503, "engine_unresponsive")
        finally:
            os.kill(engine_pid, signal.SIGCONT)
        while httpx.get(f"{server.url}/health").status_code != 200:
            assert time.monotonic() < deadline + 5


def refused(*arguments: str, env: dict[str, str] | None = None) -> str:
    """What `rose serve` says on stderr when it will not start."""
    command = [sys.executable, "-m", "rose.cli.main", "serve", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | (env or {}), check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_what_cannot_be_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "in use" in refused(str(checkpoint), "--port", str(taken.getsockname()[1]))
    assert "no checkpoint" in refused(str(tmp_path / "nothing"), "--port", "0")
    assert "tokenizer" in refused(str(tmp_path), "--port", "0")
    assert "--tensor-parallel-size" in refused(str(checkpoint), "-tp", "2")
    assert "ROSE_LOGGING_LEVEL" in refused(str(checkpoint), env={"ROSE_LOGGING_LEVEL": "loud"})
    assert "--health-timeout" in refused(str(checkpoint), "--health-timeout", "-1")
    assert "--current-date" in refused(str(checkpoint), env={"ROSE_CURRENT_DATE": "yesterday"})


def test_an_engine_that_loads_ends_with_a_server_that_cannot_be(checkpoint: Path, tmp_path: Path) -> None:
    said = refused(str(checkpoint), "--port", "0", "--chat-format", "nonsense", env={"TMPDIR": str(tmp_path)})
    assert "unknown chat format 'nonsense'" in said
    assert not list(tmp_path.glob("rose-*")), "the engine's folder"


def test_a_checkpoint_that_the_engine_cannot_load_is_one_line(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"no tensors here")
    assert "model.safetensors" in refused(str(tmp_path / "broken"), "--port", "0")
