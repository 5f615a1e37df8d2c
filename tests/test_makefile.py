"""`make install`: when it makes the environment anew. With a stand-in for Python, so nothing is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

# Calls `-c CODE` with the version it claims to have; for `-m venv --clear DIR` makes an environment of itself.
STAND_IN = """#!{python}
import os, shutil, sys
if sys.argv[1] == "-c":
    sys.version_info = {version}
    exec(sys.argv[2])
else:
    with open("{log}", "a") as log:
        print(*sys.argv[1:], file=log)
if sys.argv[1:3] == ["-m", "venv"]:
    os.makedirs(sys.argv[-1] + "/bin", exist_ok=True)
    shutil.copy(__file__, sys.argv[-1] + "/bin/python")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a blank in its name that holds what `make install` reads."""
    folder = tmp_path / "my rose"
    folder.mkdir()
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    return folder


def install(folder: Path, version: tuple[int, int] = (3, 11)) -> tuple[list[str], str]:
    """What Python was called with, and what make said on stderr."""
    python, log = folder.parent / "python3", folder.parent / "log"
    python.write_text(STAND_IN.format(python=sys.executable, version=version, log=log))
    python.chmod(0o755)
    log.write_text("")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "install", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return log.read_text().splitlines(), done.stderr


def test_it_installs_once_and_again_when_the_lock_changes(folder: Path) -> None:
    calls, _ = install(folder)
    assert calls[0] == "-m venv --clear .venv"
    assert calls[1].startswith("-m pip install --quiet torch==")
    assert calls[2].endswith("-r requirements.lock")
    assert install(folder)[0] == []
    stamp = next((folder / ".venv").glob(".installed*"))
    os.utime(stamp, (0, 0))  # older than the lock
    assert install(folder)[0] == calls[1:]


def test_a_copied_folder_gets_an_environment_of_its_own(folder: Path) -> None:
    install(folder)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    assert install(copy)[0][0] == "-m venv --clear .venv"


def test_an_old_python_is_named_and_leaves_nothing_behind(folder: Path) -> None:
    calls, error = install(folder, version=(3, 10))
    assert calls == []
    assert "rose needs Python 3.11 or newer" in error
    assert "is 3.10: name another with make PYTHON=" in error
    assert not (folder / ".venv").exists()
    assert install(folder)[0][0] == "-m venv --clear .venv"
