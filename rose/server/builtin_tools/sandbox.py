"""Runs untrusted Python in a process of its own: this end starts it, reads what it prints, and sees it end.

What shuts the code in is in `sandbox_launcher`; docs/tools.md says what that protects against, and what not.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rose.errors import ConfigError
from rose.server.builtin_tools import sandbox_launcher
from rose.server.builtin_tools.config import Isolation
from rose.server.builtin_tools.sandbox_launcher import SandboxConfig

_CELL = (Path(__file__).parent / "sandbox_cell.py").read_text()
_GRACE_S = 5.0  # what making and unmaking the sandbox may take, beyond the time of the code


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one run may use. wall_s and cpu_s: seconds; memory_bytes: address space of each process; disk_bytes: of all
    files together, and of one file without namespaces; num_processes: threads count too; output_bytes: what it may
    print before it is ended.
    """

    wall_s: float = 60.0
    cpu_s: int = 60
    memory_bytes: int = 1 << 30
    disk_bytes: int = 64 << 20
    num_processes: int = 32
    num_files: int = 256
    output_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to. output: what it printed, standard error too. fault: why it was ended, if it was."""

    output: str
    fault: str | None = None


class SandboxFailed(Exception):
    """The sandbox could not be made, so that nothing ran."""


class _Status(msgspec.Struct, frozen=True):
    error: str | None = None
    timed_out: bool = False
    signal: int | None = None
    exit_code: int | None = None


class Sandbox:
    """Runs pieces of Python, a few at a time. Nothing is kept from one to the next.

    isolation: `namespaces`, or `limits` alone where the kernel grants none.
    """

    def __init__(self, isolation: Isolation, limits: SandboxLimits | None = None, *, max_running: int = 4) -> None:
        self.isolation = isolation
        self.limits = limits or SandboxLimits()
        self._turns = asyncio.Semaphore(max_running)
        self._at_work: set[asyncio.Task[RunResult]] = set()

    async def run(self, code: str) -> RunResult:
        """Run the code. Raises `SandboxFailed`. When cancelled, it ends everything that it has started first."""
        work = asyncio.create_task(self._run_in_turn(code))
        self._at_work.add(work)
        work.add_done_callback(self._is_done)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # In a task of its own: this one may be cancelled again while it waits, which must not break off that end.
            work.cancel()
            await asyncio.wait({work})
            raise

    def _is_done(self, work: asyncio.Task[RunResult]) -> None:
        self._at_work.discard(work)
        if not work.cancelled():
            work.exception()  # has been looked at, even if nobody waits for it any more

    async def _run_in_turn(self, code: str) -> RunResult:
        async with self._turns:
            try:
                folder = tempfile.mkdtemp(prefix="rose-sandbox-")
                try:
                    return await self._run(code, folder)
                finally:
                    await asyncio.to_thread(_remove, folder)
            except OSError as error:  # the disk is full, or there are no processes or files to be had
                raise SandboxFailed(str(error)) from None

    async def check(self) -> None:
        """Raise `ConfigError` if nothing can be run here."""
        try:
            result = await self.run("6 * 7")
        except SandboxFailed as failed:
            advice = (
                "start the server where user namespaces are allowed (in Docker: with a seccomp profile that allows "
                "unshare and mount), or say --code-interpreter limits, which leaves the code the server's own rights "
                "to read files and to use the network"
            )
            raise ConfigError(f"--code-interpreter: the sandbox cannot be made: {failed}; {advice}") from None
        if result != RunResult("42\n"):
            raise ConfigError(
                f"--code-interpreter: Python does not run in the sandbox: {result.output or result.fault}"
            )

    async def _run(self, code: str, folder: str) -> RunResult:
        status_reader, status_writer = os.pipe()
        with contextlib.ExitStack() as open_files:
            open_files.callback(os.close, status_reader)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", sandbox_launcher.__file__, self._config(status_writer)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=folder,
                    env={},
                    pass_fds=(status_writer,),
                    start_new_session=True,
                )
            finally:
                os.close(status_writer)
            is_late = False
            try:
                async with asyncio.timeout(self.limits.wall_s + _GRACE_S):
                    output, is_cut = await self._talk(process, code)
            except TimeoutError:
                output, is_cut, is_late = b"", False, True
            finally:
                await _end(process)
            status = _read_status(status_reader)
        if status is None:
            silent = _Status(error="its launcher ended without a word: " + output.decode(errors="replace"))
            status = _Status(timed_out=True) if is_late or is_cut else silent
        if status.error is not None:
            raise SandboxFailed(status.error)
        text = output.decode(errors="replace")
        return RunResult(text, self._fault(status, is_cut=is_cut))

    def _config(self, status_fd: int) -> str:
        limits = self.limits
        config = SandboxConfig(
            python=sys.executable,
            cell=_CELL,
            visible=_python_folders(),
            namespaces=self.isolation == "namespaces",
            status_fd=status_fd,
            wall_s=limits.wall_s,
            cpu_s=limits.cpu_s,
            memory_bytes=limits.memory_bytes,
            disk_bytes=limits.disk_bytes,
            num_processes=limits.num_processes,
            num_files=limits.num_files,
        )
        return json.dumps(config)

    async def _talk(self, process: asyncio.subprocess.Process, code: str) -> tuple[bytes, bool]:
        """Give the code, and read to the end, or to the limit of output; whether it was the limit."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(code.encode(errors="replace"))
            await process.stdin.drain()
        process.stdin.close()
        output = bytearray()
        while piece := await process.stdout.read(1 << 16):
            output += piece
            if len(output) > self.limits.output_bytes:
                return bytes(output[: self.limits.output_bytes]), True
        await process.wait()
        return bytes(output), False

    def _fault(self, status: _Status, *, is_cut: bool) -> str | None:
        limits = self.limits
        if is_cut:
            return f"it printed more than {limits.output_bytes} bytes and was ended"
        if status.timed_out:
            return f"it was not done after {limits.wall_s:g} s and was ended"
        if status.signal is not None:
            why = f", as for more than {limits.cpu_s} s of CPU time" if status.signal == signal.SIGKILL else ""
            return f"it was ended by the signal {_signal_name(status.signal)}{why}"
        return None


async def _end(process: asyncio.subprocess.Process) -> None:
    """Have the launcher end all that it has started; kill its group if it does not."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    waiting = asyncio.ensure_future(_read_to_the_end(process))
    try:
        await asyncio.wait({waiting}, timeout=_GRACE_S)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        waiting.cancel()


def _remove(folder: str) -> None:
    """Remove a folder, whatever code has left in it: folders nested deeper than a path can name, or that are closed.

    Each is moved to the top before it is emptied. What cannot be removed is left.
    """
    top, mark, numbers = Path(folder), uuid.uuid4().hex, itertools.count()
    found = [top]
    with contextlib.suppress(OSError):
        while found:
            emptied = found.pop()
            emptied.chmod(0o700)
            for entry in list(emptied.iterdir()):
                if entry.is_symlink() or not entry.is_dir():
                    entry.unlink()
                elif emptied == top:
                    found.append(entry)
                else:
                    entry.chmod(0o700)  # a closed folder cannot be moved
                    found.append(entry.rename(top / f"{mark}-{next(numbers)}"))
            if emptied != top:
                emptied.rmdir()
        top.rmdir()


async def _read_to_the_end(process: asyncio.subprocess.Process) -> None:
    """Wait for the end, which comes only once all that was printed is read."""
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()


def _read_status(status_fd: int) -> _Status | None:
    """What the launcher said; None if it had to be killed, or did not even begin."""
    os.set_blocking(status_fd, False)
    try:
        said = os.read(status_fd, 1 << 16)
    except BlockingIOError:
        said = b""
    return msgspec.json.decode(said, type=_Status) if said else None


def _python_folders() -> list[str]:
    """The folders that Python itself and its packages are in; one inside another comes after it.

    Where the interpreter is a link, the folder of the link is none of them: it may be anybody's home.
    """
    found = {Path(each) for each in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)}
    found.add(Path(sys.executable).resolve().parent)
    return [str(folder) for folder in sorted(found) if folder != Path("/")]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
