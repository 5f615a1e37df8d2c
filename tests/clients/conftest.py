"""Real clients against the real server with the bundled model.

Those that the lock has are part of the suite. The others are opt-in: `make test-clients` installs them first, and skips
one that cannot be installed, with the reason.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import NotInstallable
from tests.e2e.server_process import ServerProcess

if not os.environ.get("ROSE_TEST_CLIENTS"):
    collect_ignore = ["test_load_generators.py", "test_npm_clients.py", "test_open_webui.py", "test_python_clients.py"]

SCRIPTS = Path(__file__).parent / "scripts"
KEY = "sk-clients"


@pytest.fixture(scope="session")
def demo() -> Iterator[str]:
    """The URL of a server with the bundled model, without `/v1`."""
    with ServerProcess("rose-demo", "--api-key", KEY) as server:
        yield server.url


def installed(make: Callable[..., Path], name: str, *packages: str) -> Path:
    """The client's environment, or a skip."""
    try:
        return make(name, *packages)
    except NotInstallable as reason:
        pytest.skip(f"{name} cannot be installed: {reason}")


def environment_without(*prefixes: str) -> dict[str, str]:
    """This process's environment without the names that begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def run(command: list[str | Path], *, cwd: Path, timeout_s: float = 200, **env: str) -> str:
    """What a command prints, in a home of its own so that it reads nobody's configuration."""
    quiet = environment_without("ROSE_", "OPENAI_", "XDG_", "HF_")
    ran = subprocess.run(
        command,
        cwd=cwd,
        env=quiet | {"HOME": str(cwd), "PWD": str(cwd), "ROSE_KEY": KEY} | env,  # some believe PWD, not where they are
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def run_script(interpreter: str | Path, script: Path, url: str, *, cwd: Path) -> dict[str, Any]:
    """The JSON object that a script prints as its last line."""
    return json.loads(run([interpreter, script], cwd=cwd, ROSE_URL=url).strip().splitlines()[-1])
