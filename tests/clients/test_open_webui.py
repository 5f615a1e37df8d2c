"""Open WebUI: its own server in front of ours, asked as its page asks it."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rose.server.http import address_of, bind
from tests.clients.conftest import KEY, environment_without, installed
from tests.clients.environments import python_environment

pytestmark = pytest.mark.timeout(1500)

SETTINGS = {
    "OPENAI_API_KEY": KEY,
    "ENABLE_OLLAMA_API": "False",
    "WEBUI_AUTH": "False",
    "WEBUI_SECRET_KEY": "any",
    "OFFLINE_MODE": "True",
    "HF_HUB_OFFLINE": "1",
    "RAG_EMBEDDING_ENGINE": "openai",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "ANONYMIZED_TELEMETRY": "False",
}
START_TIMEOUT_S = 180.0


@pytest.fixture
def web_ui(demo: str, tmp_path: Path) -> Iterator[httpx.Client]:
    """A client of Open WebUI's own API, signed in."""
    bin_folder = installed(python_environment, "open-webui", "torch==2.13.0", "open-webui==0.12.4")
    with bind("127.0.0.1", 0) as listener:  # a free port
        url = address_of(listener)
    env = environment_without("ROSE_", "OPENAI_", "HF_") | SETTINGS
    env |= {"HOME": str(tmp_path), "DATA_DIR": str(tmp_path), "OPENAI_API_BASE_URL": f"{demo}/v1"}
    command = [bin_folder / "open-webui", "serve", "--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=tmp_path)
    try:
        with httpx.Client(base_url=url, timeout=60) as client:
            wait_for(client, process, tmp_path / "log")
            token = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()["token"]
            client.headers["authorization"] = f"Bearer {token}"
            yield client
    finally:
        process.terminate()
        process.wait(30)


def wait_for(client: httpx.Client, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it serves."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if client.get("/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])


def test_open_webui(web_ui: httpx.Client) -> None:
    assert [model["id"] for model in web_ui.get("/api/models").json()["data"]] == ["rose-demo"]
    body = {
        "model": "rose-demo",
        "messages": [{"role": "user", "content": "What is 127 + 385?"}],
        "temperature": 0,
    }
    whole = web_ui.post("/api/chat/completions", json=body).json()["choices"][0]["message"]
    assert whole["content"] == "127 + 385 = 512"
    assert "512" in whole["reasoning_content"], "which its page shows as thoughts"
    streamed = web_ui.post("/api/chat/completions", json=body | {"stream": True}).text
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    deltas = [choice["delta"] for event in events for choice in json.loads(event)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]
