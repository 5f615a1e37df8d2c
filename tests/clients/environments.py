"""An environment for each client: a virtual environment or an npm folder of its own under `.venv-clients/`.

Clients want different versions of the same libraries, so they cannot share one. An environment is made once and used
until its packages change.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".venv-clients"
_TIMEOUT_S = 1200  # open-webui has 2.9 GB


class NotInstallable(Exception):
    """The client cannot be had on this machine; the text says why."""


def python_environment(name: str, *packages: str) -> Path:
    """The folder of executables of a virtual environment with these packages. Raises `NotInstallable`."""
    folder = ROOT / name
    if not _is_made(folder, packages):
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages])
        _mark_made(folder, packages)
    return folder / "bin"


def npm_folder(name: str, *packages: str) -> Path:
    """A folder whose `node_modules` has these packages. Raises `NotInstallable`."""
    if shutil.which("npm") is None:
        raise NotInstallable("npm is not there")
    folder = ROOT / name
    if not _is_made(folder, packages):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = ("--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder))
        _run(["npm", "install", *options, *packages])
        _mark_made(folder, packages)
    return folder


def _is_made(folder: Path, packages: Sequence[str]) -> bool:
    stamp = folder / ".installed"
    return stamp.is_file() and stamp.read_text() == "\n".join(packages)


def _mark_made(folder: Path, packages: Sequence[str]) -> None:
    (folder / ".installed").write_text("\n".join(packages))


def _run(command: list[str]) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstallable(str(error)) from None
    if ran.returncode:
        lines = (ran.stderr or ran.stdout).strip().splitlines()
        raise NotInstallable(f"{command[0]} failed: {lines[-1] if lines else ran.returncode}")
