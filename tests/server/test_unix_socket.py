"""The path of a Unix socket: one server has it, from before it listens until it ends."""

import contextlib
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rose.errors import ConfigError
from rose.server.http import address_of
from rose.server.unix_socket import bound_to_path

OWNER = """
import sys, time
from pathlib import Path
from rose.server.unix_socket import bound_to_path
with bound_to_path(Path(sys.argv[1])):
    print("bound", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["rose.sock", "a b.sock", "\udcff.sock"])
def test_it_is_there_for_as_long_as_it_is_bound(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with bound_to_path(path) as listener:
        listener.listen()
        assert address_of(listener) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("listens", [False, True])
def test_a_second_server_cannot_have_it(tmp_path: Path, listens: bool, monkeypatch) -> None:
    path = tmp_path / "rose.sock"
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    with bound_to_path(path) as listener:
        if listens:
            listener.listen()
        for same in (path, Path("rose.sock"), tmp_path / "link" / "rose.sock"):
            with pytest.raises(ConfigError, match=rf"{same} is in use by another program"), bound_to_path(same):
                pass
        assert path.exists(), "it was not the second one's to remove"
        with bound_to_path(tmp_path / "another.sock"):
            pass
    with bound_to_path(path):
        pass


def test_what_a_killed_server_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "rose.sock"
    with subprocess.Popen([sys.executable, "-c", OWNER, str(path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"bound\n"
        with pytest.raises(ConfigError, match="in use"), bound_to_path(path):
            pass
        owner.send_signal(signal.SIGKILL)
    assert path.exists()
    with bound_to_path(path):
        pass


@pytest.mark.parametrize(
    ("kind", "is_busy"), [(socket.SOCK_STREAM, False), (socket.SOCK_STREAM, True), (socket.SOCK_DGRAM, False)]
)
def test_another_programs_socket_is_left_alone(tmp_path: Path, kind: socket.SocketKind, is_busy: bool) -> None:
    path = tmp_path / "other.sock"
    with contextlib.ExitStack() as opened:
        other = opened.enter_context(socket.socket(socket.AF_UNIX, kind))
        other.bind(str(path))
        if kind is socket.SOCK_STREAM:
            other.listen(1)
            while is_busy:  # until no more connections can wait
                client = opened.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                is_busy = client.connect_ex(str(path)) == 0
        with pytest.raises(ConfigError, match="in use"), bound_to_path(path):
            pass
        assert path.is_socket()


@pytest.mark.parametrize("name", ["no/such/folder.sock", "x" * 200, "file", "folder", ".", "/", "file/below"])
def test_where_no_socket_can_be(tmp_path: Path, name: str, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="cannot listen on"), bound_to_path(Path(name)):
        pass
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"
