"""`make install`: when it makes the environment anew; `make serve`: what it starts, and that this ends with it.

With stand-ins for Python and rose, so nothing is installed.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

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


def environment() -> dict[str, str]:
    """That of a user's shell: without what a `make test` around this leaves in it, and without our variables."""
    ours = ("MODEL", "HOST", "PORT", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name not in ours}


def install(folder: Path, version: tuple[int, int] = (3, 11)) -> tuple[list[str], str]:
    """What Python was called with, and what make said on stderr."""
    python, log = folder.parent / "python3", folder.parent / "log"
    python.write_text(STAND_IN.format(python=sys.executable, version=version, log=log))
    python.chmod(0o755)
    log.write_text("")
    command = ["make", "install", f"PYTHON={python}"]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
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


def test_a_server_gets_its_arguments_and_ends_with_make(folder: Path) -> None:
    install(folder)
    rose, started = folder / ".venv" / "bin" / "rose", folder.parent / "started"
    rose.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys, time\n"
        f"pathlib.Path({str(started) + '.part'!r}).write_text('\\n'.join([str(os.getpid()), *sys.argv[1:]]))\n"
        f"os.rename({str(started) + '.part'!r}, {str(started)!r})\n"
        "time.sleep(60)\n"
    )
    rose.chmod(0o755)
    command = ["make", "serve", "MODEL=/a model", "PORT=9000", f"PYTHON={folder.parent / 'python3'}"]
    with subprocess.Popen(command, cwd=folder, env=environment(), **SILENT) as make:
        deadline = time.monotonic() + 30
        while not started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pid, *arguments = started.read_text().splitlines()
        make.terminate()
    assert arguments == ["serve", "/a model", "--host", "127.0.0.1", "--port", "9000"]
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_script_beside_a_checkout_finds_the_package(tmp_path: Path) -> None:
    """In the environment that `make install` made: a folder named rose, without a module, is not taken for it."""
    script = tmp_path / "script.py"
    script.write_text("from rose import LLM\n")
    (tmp_path / "rose").mkdir()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
