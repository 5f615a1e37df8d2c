"""schemathesis against the real server with the bundled model, by `/openapi.json`, one operation after another.

No answer may be a 5xx, hang, or have a status, a content type or a shape that the document does not have. Bodies of all
kinds are sent, sound and not. `ROSE_API_CASES` says how many each operation gets from the fuzzer, beside those that go
through the schema's corners.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.environments import NotInstallable, python_environment
from tests.e2e.server_process import ServerProcess

PATHS = (
    *("/v1/chat/completions", "/v1/responses", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/responses/{response_id}/input_items"),
    *("/v1/models", "/v1/models/{name}", "/tokenize", "/detokenize", "/health", "/ping", "/metrics", "/version"),
)
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
TIMEOUT_S = 3600


@pytest.fixture(scope="module")
def schemathesis() -> Path:
    try:
        return python_environment("schemathesis", "schemathesis==4.32.5") / "schemathesis"
    except NotInstallable as reason:
        pytest.skip(f"schemathesis cannot be installed: {reason}")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("rose-demo", "--max-model-len", "256") as running:
        yield running


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("path", PATHS)
def test_an_operation_keeps_to_the_document(
    schemathesis: Path, server: ServerProcess, path: str, tmp_path: Path
) -> None:
    command = [
        *(schemathesis, "run", f"{server.url}/openapi.json", "--include-path", path),
        *("--phases", "coverage,fuzzing", "--max-examples", os.environ.get("ROSE_API_CASES", "100")),
        *("--checks", ",".join(CHECKS), "--continue-on-failure", "--request-timeout", "60"),
        *("--suppress-health-check", "all", "--generation-database", "none", "--no-shrink", "--no-color"),
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not [line for line in server.log if "Traceback" in line], "".join(server.log)


def test_every_operation_is_tried(server: ServerProcess) -> None:
    assert set(httpx.get(f"{server.url}/openapi.json").json()["paths"]) == set(PATHS)
