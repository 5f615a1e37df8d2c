"""The sandbox with real processes: what runs in it, and what it cannot do."""

import asyncio
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rose.errors import ConfigError
from rose.server.builtin_tools import sandbox as sandbox_module
from rose.server.builtin_tools import sandbox_launcher
from rose.server.builtin_tools.sandbox import Isolation, RunResult, Sandbox, SandboxFailed, SandboxLimits
from tests.server.builtin_tools.serving import Sandboxes, sandboxes

pytestmark = pytest.mark.anyio
__all__ = ["sandboxes"]


def has_namespaces() -> bool:
    try:
        asyncio.run(Sandbox("namespaces").check())
    except ConfigError:
        return False
    return True


NAMESPACES = pytest.param(
    "namespaces", marks=pytest.mark.skipif(not has_namespaces(), reason="the kernel grants no namespaces here")
)
KINDS = pytest.mark.parametrize("isolation", [NAMESPACES, "limits"])


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("print('a')\n6 * 7", "a\n42\n"),
        ("x = 3\nx", "3\n"),
        ("x = 3", ""),
        ("None", ""),
        ("", ""),
        ("# nothing", ""),
        ("import sys\nprint('b', file=sys.stderr)", "b\n"),
        ("import pickle\nclass A:\n  b = 1\npickle.loads(pickle.dumps(A())).b", "1\n"),
        ("print('é 你')", "é 你\n"),
        ("'\\udc80'.encode('utf-8', 'surrogatepass')", "b'\\xed\\xb2\\x80'\n"),
        ("import sys\nsys.exit()", ""),
    ],
)  # fmt: skip
async def test_code_runs_as_in_a_notebook(code: str, output: str) -> None:
    assert await Sandbox("limits").run(code) == RunResult(output)


async def test_exceptions_are_told_without_the_frames_around() -> None:
    result = await Sandbox("limits").run("def f():\n    return 1 / 0\nprint('before')\nf()")
    assert result.output == (
        'before\nTraceback (most recent call last):\n  File "<code>", line 4, in <module>\n    f()\n'
        '  File "<code>", line 2, in f\n    return 1 / 0\n           ~~^~~\nZeroDivisionError: division by zero\n'
    )
    syntax = await Sandbox("limits").run("def f(:")
    assert syntax.output.startswith('  File "<code>", line 1\n')
    assert syntax.output.endswith("SyntaxError: invalid syntax\n")
    assert "EOFError" in (await Sandbox("limits").run("input()")).output


@KINDS
async def test_nothing_of_the_servers_environment_is_there(isolation: Isolation, monkeypatch) -> None:
    monkeypatch.setenv("ROSE_API_KEY", "sk-secret")
    result = await Sandbox(isolation).run("import os\nprint(dict(os.environ))\nprint(sorted(os.listdir('.')))")
    assert "sk-secret" not in result.output
    # In namespaces its folder is /tmp, where the way to Python begins if Python or its environment lies below it.
    below = [Path(place).parts[2] for place in sandbox_module._python_folders() if Path(place).is_relative_to("/tmp")]
    there = sorted(set(below)) if isolation == "namespaces" else []
    assert result.output.endswith(f"{there}\n"), "its folder is empty"
    read = "import os, glob\nfor p in glob.glob('/proc/*/environ'):\n  print(open(p).read())"
    if isolation == "namespaces":
        assert "sk-secret" not in (await Sandbox(isolation).run(read)).output


@KINDS
async def test_nothing_is_kept_from_one_run_to_the_next(isolation: Isolation) -> None:
    sandbox = Sandbox(isolation)
    assert (await sandbox.run("x = 1\nopen('kept', 'w').write('y')")).output == "1\n"
    assert "NameError" in (await sandbox.run("x")).output
    assert (await sandbox.run("import os\nos.path.exists('kept')")).output == "False\n"


@KINDS
@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("while True: pass", "not done after"),
        ("import time\nprint('begun', flush=True)\ntime.sleep(60)", "not done after"),
        ("import os, time\nif os.fork() == 0:\n  os.setsid()\ntime.sleep(60)", "not done after"),
        ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)", "not done after"),
        ("while True: print('x' * 1000)", "more than 100000 bytes"),
    ],
)
async def test_what_takes_too_much_is_ended(isolation: Isolation, code: str, fault: str, sandboxes: Sandboxes) -> None:
    wall_s = 4 if "begun" in code else 1  # so that it has begun by then
    sandbox = Sandbox(isolation, SandboxLimits(wall_s=wall_s, output_bytes=100_000))
    started = time.monotonic()
    result = await sandbox.run(code)
    assert result.fault is not None
    assert fault in result.fault
    assert time.monotonic() - started < 15
    assert "begun" not in code or result.output == "begun\n", "what it printed before is told"
    assert sandboxes.are_gone()


@KINDS
async def test_the_time_that_it_computes_is_limited_too(isolation: Isolation) -> None:
    result = await Sandbox(isolation, SandboxLimits(wall_s=60, cpu_s=1)).run("while True: pass")
    assert result.fault is not None
    assert "SIGKILL" in result.fault
    assert "1 s of CPU time" in result.fault


@KINDS
async def test_limits_of_memory_and_files(isolation: Isolation) -> None:
    sandbox = Sandbox(isolation, SandboxLimits(memory_bytes=256 << 20, disk_bytes=1 << 20, num_files=32))
    assert "MemoryError" in (await sandbox.run("x = bytearray(1 << 30)")).output
    assert "OSError" in (await sandbox.run("open('a', 'wb').write(b'x' * (2 << 20))")).output
    assert "Too many open files" in (await sandbox.run("x = [open('a', 'w') for _ in range(64)]")).output


@pytest.mark.parametrize("isolation", [NAMESPACES])
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import socket\nsocket.create_connection(('127.0.0.1', 22), 2)", "Network is unreachable|Connection refused"),
        ("import socket\nsocket.create_connection(('10.0.0.1', 80), 2)", "Network is unreachable"),
        ("open('/etc/passwd').read()", "No such file"),
        (f"import os\nos.listdir({str(Path(__file__).parent)!r})", "No such file"),
        ("import os\nos.listdir('/proc')", "No such file"),
        ("open('/usr/rose', 'w')", "Read-only file system"),
        ("import sys\nopen(sys.prefix + '/rose', 'w')", "Read-only file system|Permission denied"),
        ("import os\nos.kill(os.getppid(), 9) or os.getppid()", "0|PermissionError"),
        ("import os\nos.setuid(0)", "Operation not permitted"),
        ("import os\nos.chroot('/tmp')", "Operation not permitted"),
        ("import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nc.unshare(0x10000000), ctypes.get_errno()", "(-1, 1)"),
        ("import ctypes\nc = ctypes.CDLL(None)\nc.mount(b'x', b'/tmp', b'tmpfs', 0, None)", "-1"),
        (
            "import os, time\nn = 0\ntry:\n  while os.fork(): n += 1\n  time.sleep(9)\n"
            "except OSError as error: print(n, error)",
            "31 [Errno 11]",
        ),
        ("for i in range(9):\n  open(str(i), 'wb').write(b'x' * (1 << 20))", "No space left"),
    ],
)
async def test_the_code_is_shut_in(isolation: Isolation, code: str, told: str) -> None:
    result = await Sandbox(isolation, SandboxLimits(wall_s=20, disk_bytes=4 << 20)).run(code)
    assert any(each in result.output for each in told.split("|")), result


@KINDS
async def test_a_cancelled_run_leaves_nothing(isolation: Isolation, sandboxes: Sandboxes) -> None:
    task = asyncio.create_task(Sandbox(isolation).run("import time\ntime.sleep(60)"))
    async with asyncio.timeout(20):
        while len(sandboxes.processes()) < (1 if isolation == "namespaces" else 2):
            await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sandboxes.are_gone()


LEFT_BEHIND = """
import os, pathlib
os.makedirs("closed/inside")
pathlib.Path("closed/file").touch()
os.symlink("/", "closed/link")
os.chmod("closed", 0)
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
"""


@KINDS
async def test_folders_that_are_hard_to_remove_are_removed(isolation: Isolation, sandboxes: Sandboxes) -> None:
    assert await Sandbox(isolation).run(LEFT_BEHIND) == RunResult("")
    assert sandboxes.are_gone()


@pytest.mark.parametrize("which", ["mkdtemp", "create_subprocess_exec"])
async def test_a_system_that_has_no_more_to_give_is_a_sandbox_that_cannot_be_made(
    which: str, monkeypatch: pytest.MonkeyPatch, sandboxes: Sandboxes
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no more of it")

    monkeypatch.setattr(tempfile if which == "mkdtemp" else asyncio, which, refuse)
    with pytest.raises(SandboxFailed, match="no more of it"):
        await Sandbox("limits").run("1")
    assert sandboxes.are_gone()


async def test_only_a_few_run_at_a_time() -> None:
    sandbox = Sandbox("limits", max_running=1)
    code = "import time\na = time.monotonic()\ntime.sleep(0.2)\nprint(a, time.monotonic())"
    spans = sorted(
        tuple(map(float, result.output.split())) for result in await asyncio.gather(*(sandbox.run(code) for _ in "abc"))
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@pytest.mark.skipif(not has_namespaces(), reason="the kernel grants no namespaces here")
async def test_of_the_folder_of_a_link_to_python_nothing_else_is_seen(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("sk-secret")
    link = tmp_path / "python"
    link.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setattr(sandbox_module.sys, "executable", str(link))
    monkeypatch.setattr(sandbox_module.sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(sandbox_module.sys, "exec_prefix", sys.base_exec_prefix)
    code = f"import os, sys\nprint(sys.executable)\nos.listdir({str(tmp_path)!r})"
    assert await Sandbox("namespaces").run(code) == RunResult(f"{link}\n['python']\n")


@pytest.mark.skipif(not has_namespaces(), reason="the kernel grants no namespaces here")
async def test_a_virtual_environment_inside_of_the_python_that_it_is_of(monkeypatch) -> None:
    monkeypatch.setattr(sandbox_module.sys, "executable", str(Path(sys.executable).resolve()))
    for name in ("prefix", "exec_prefix"):
        monkeypatch.setattr(sandbox_module.sys, name, str(Path(json.__file__).parent))
    code = "import sys\nprint(sys.base_prefix)"
    assert await Sandbox("namespaces").run(code) == RunResult(f"{sys.base_prefix}\n")


async def test_a_sandbox_that_cannot_be_made_says_so(monkeypatch) -> None:
    monkeypatch.setattr(sandbox_module, "_python_folders", lambda: ["/usr"])
    monkeypatch.setattr(sandbox_module.sys, "executable", "/usr/bin/env")  # takes none of Python's arguments
    with pytest.raises(SandboxFailed):
        await Sandbox("limits").run("1")
    with pytest.raises(ConfigError, match="--code-interpreter"):
        await Sandbox("limits").check()


SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists() or not has_namespaces(),
    reason="needs root, to be another user, and a Python that all can read",
)
def test_a_user_without_privileges_is_as_shut_in(tmp_path_factory) -> None:
    """The same by user namespaces, which is how it goes for a server that is not root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        launcher = shutil.copy(sandbox_launcher.__file__, folder)
        work = folder / "work"
        work.mkdir()
        os.chown(work, 12345, 12345)
        reader, writer = os.pipe()
        config = sandbox_launcher.SandboxConfig(
            python=SYSTEM_PYTHON,
            cell=sandbox_module._CELL,
            visible=["/usr"],
            namespaces=True,
            status_fd=writer,
            wall_s=20,
            cpu_s=10,
            memory_bytes=1 << 30,
            disk_bytes=4 << 20,
            num_processes=8,
            num_files=64,
        )
        code = (
            "import ctypes, os\nprint(os.getuid(), os.listdir('/tmp'), os.path.exists('/etc/passwd'))\n"
            "print(ctypes.CDLL(None).unshare(0x10000000))\n"
            "try: open('/usr/rose', 'w')\nexcept OSError as error: print(error.strerror)\n"
            "n = 0\ntry:\n  while os.fork(): n += 1\n  import time; time.sleep(9)\nexcept OSError: print(n)"
        )
        done = subprocess.run(
            [SYSTEM_PYTHON, "-I", "-S", launcher, json.dumps(config)],
            input=code.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            cwd=work,
            pass_fds=(writer,),
            user=12345,
            group=12345,
            extra_groups=[],
            check=False,
        )
        os.close(writer)
        with os.fdopen(reader) as status:
            assert json.loads(status.read()) == {"exit_code": 0}
    assert done.stdout.decode() == "1000 [] False\n-1\nRead-only file system\n6\n"
