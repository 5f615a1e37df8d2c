"""The way into the sandbox: a program of its own, which shuts itself in, starts the code, and sees that all of it ends.

It is started as `python -I -S sandbox_launcher.py CONFIG`, with the code on standard input and without an environment.
CONFIG is a `SandboxConfig` as JSON. How it went is written to `status_fd` as JSON, see `SandboxStatus`; what the code
prints goes to standard output. Only the standard library is there, and nothing of rose.

In namespaces the code sees a file system made for it: a small one in memory, into which Python and the system's
libraries are bound read-only. It has no network, sees no process but its own, and has no privileges, nor a way to
any: it is another user, or one without capabilities, cannot take any from set-uid programs, and cannot make user
namespaces, which the kernel refuses to whoever lives in a `chroot`.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn, TypedDict


class SandboxConfig(TypedDict):
    """What to run and within which limits. python: the interpreter. visible: folders that the code may read."""

    python: str
    cell: str
    visible: list[str]
    namespaces: bool
    status_fd: int
    wall_s: float
    cpu_s: int
    memory_bytes: int
    disk_bytes: int
    num_processes: int
    num_files: int


class SandboxStatus(TypedDict, total=False):
    """How it went. error: the sandbox could not be made, and nothing ran."""

    error: str
    timed_out: bool
    signal: int
    exit_code: int


_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_NAMESPACES = _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_SYS_MOUNT_SETATTR = 442  # on every architecture; glibc has a wrapper only since 2.36
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY, _ATTR_NOSUID = -100, 0x8000, 1, 2
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
# Ids that nobody has, by convention: each run takes one, so that its processes are counted for themselves.
_FIRST_FREE_ID, _NUM_FREE_IDS = 61184, 4336
_INSIDE_ID = 1000
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Run the code to its end."""
    config: SandboxConfig = json.loads(sys.argv[1])
    status_fd = config["status_fd"]
    os.set_inheritable(status_fd, False)
    try:
        child = _start(config)
        status = _wait(child, config["wall_s"])
    except OSError as error:
        status = SandboxStatus(error=str(error))
    except _Ended:
        status = SandboxStatus(timed_out=True)
    finally:
        _kill_descendants()
    os.write(status_fd, json.dumps(status).encode())


class _Ended(Exception):
    """Somebody has asked for an end."""


def _end(*_: object) -> NoReturn:
    raise _Ended


def _start(config: SandboxConfig) -> int:
    """Start the code; its process id. What goes wrong before the code begins is raised here."""
    signal.signal(signal.SIGTERM, _end)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever the code leaves behind becomes a child of this process
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    is_root = os.geteuid() == 0
    if config["namespaces"]:
        is_root = _unshare(is_root)
    user = _FIRST_FREE_ID + os.getpid() % _NUM_FREE_IDS if is_root and config["namespaces"] else None
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            _become_the_code(config, user)
        except BaseException as error:  # a forked child must not go on in its parent's code
            os.write(write_fd, str(error).encode())
        os._exit(1)
    os.close(write_fd)
    os.close(0)
    if fault := os.read(read_fd, 4096):  # closed unwritten once the code begins
        raise OSError(fault.decode(errors="replace"))
    return child


def _unshare(is_root: bool) -> bool:
    """Enter new namespaces; whether the process is still the system's own root."""
    uid, gid = os.geteuid(), os.getegid()
    if is_root and _libc.unshare(_NAMESPACES) == 0:
        return True
    _check(_libc.unshare(_NAMESPACES | _CLONE_NEWUSER), "the kernel grants no namespaces: unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{_INSIDE_ID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{_INSIDE_ID} {gid} 1")
    return False


def _become_the_code(config: SandboxConfig, user: int | None) -> NoReturn:
    """Shut this process in and turn it into the code. user: whom to become; the code must not be the system's root."""
    python = os.path.realpath(config["python"])  # there may be links on the way that lead nowhere in the new root
    if config["namespaces"]:
        _enter_new_root(config, owner=user)
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # another user's process has to ask again
        _limit(resource.RLIMIT_NPROC, config["num_processes"])  # counted for this run alone
    else:
        _limit(resource.RLIMIT_NPROC, _num_tasks_of_user() + config["num_processes"])
    _limit(resource.RLIMIT_CPU, config["cpu_s"])
    _limit(resource.RLIMIT_AS, config["memory_bytes"])
    _limit(resource.RLIMIT_FSIZE, config["disk_bytes"])
    _limit(resource.RLIMIT_NOFILE, config["num_files"])
    _limit(resource.RLIMIT_CORE, 0)
    folder = str(Path.cwd())
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MPLBACKEND": "agg",
    }
    # By the name that it is given Python finds the packages of a virtual environment.
    os.execve(python, [config["python"], "-I", "-B", "-c", config["cell"]], environment)


def _enter_new_root(config: SandboxConfig, owner: int | None) -> None:
    """Make a file system and live in it from now on. owner: the user who may write, if it is another."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)  # what is mounted from here on stays here
    # The folder is on the outside; with the namespace the mount vanishes, and the folder is the caller's to remove.
    root = Path.cwd()
    size = f"size={config['disk_bytes']},nr_inodes=8192,mode=755"
    _mount("tmpfs", str(root), "tmpfs", _MS_NOSUID | _MS_NODEV, size)
    for path in map(Path, (*_SYSTEM, *config["visible"])):
        _show(path, root)
    _link(Path(config["python"]), root)
    for path in map(Path, _DEVICES):
        _show(path, root, read_only=False)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        if owner is not None:
            os.chown(root / name, owner, owner)
    os.chroot(root)
    os.chdir("/tmp")


def _show(path: Path, root: Path, *, read_only: bool = True) -> None:
    """Have `path` in the new root, at the same place."""
    target = root / path.relative_to("/")
    if not path.exists() or target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() and path.parent == Path("/"):  # /bin and its like, on systems that have merged them
        target.symlink_to(path.readlink())
        return
    if path.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(str(path), str(target), None, _MS_BIND | _MS_REC)
    if read_only:
        attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
        where = (ctypes.c_long(_AT_FDCWD), os.fsencode(target), ctypes.c_long(_AT_RECURSIVE))
        how = (ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)))
        _check(_libc.syscall(ctypes.c_long(_SYS_MOUNT_SETATTR), *where, *how), f"cannot make {path} read-only")


def _link(python: Path, root: Path) -> None:
    """Have the interpreter under its name, where that is a link in a folder of which nothing else is to be seen."""
    target = root / python.relative_to("/")
    if not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(python.resolve())


def _wait(child: int, wall_s: float) -> SandboxStatus:
    poll = select.poll()
    poll.register(os.pidfd_open(child), select.POLLIN)
    if not poll.poll(wall_s * 1000):
        return SandboxStatus(timed_out=True)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return SandboxStatus(signal=os.WTERMSIG(status))
    return SandboxStatus(exit_code=os.WEXITSTATUS(status))


def _kill_descendants() -> None:
    """Kill what is left, however it has detached itself: orphans become children of this process.

    In a namespace there is one child, with which all others end.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        for child in map(int, children.read_text().split()):
            os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def _num_tasks_of_user() -> int:
    """How many threads this user has by now, all of which the limit counts."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                count += sum(1 for _ in (process / "task").iterdir())
        except OSError:  # it has ended
            continue
    return count


def _limit(what: int, value: int) -> None:
    """Lower a limit, never beyond what the server itself may have."""
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"cannot mount {source or kind or ''} at {target}")


def _prctl(option: int, value: int) -> None:
    arguments = [ctypes.c_ulong(each) for each in (value, 0, 0, 0)]
    _check(_libc.prctl(option, *arguments), f"prctl {option}")


def _check(result: Any, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
