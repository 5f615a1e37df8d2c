"""The path of a Unix socket: one server has it, from before it listens until it ends."""

import os
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


def test_it_is_there_for_as_long_as_it_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "rose.sock"
    with bound_to_path(path) as listener:
        listener.listen()
        assert address_of(listener) == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("listens", [False, True])
def test_a_second_server_cannot_have_it(tmp_path: Path, listens: bool) -> None:
    path = tmp_path / "rose.sock"
    with bound_to_path(path) as listener:
        if listens:
            listener.listen()
        with pytest.raises(ConfigError, match=rf"{path} is in use by another program"), bound_to_path(path):
            pass
        assert path.exists(), "it was not the second one's to remove"
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


def test_another_programs_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ConfigError, match="in use"), bound_to_path(path):
            pass
        assert [each.name for each in tmp_path.iterdir()] == ["other.sock"]


def test_a_lock_file_that_its_owner_removes_meanwhile_is_made_anew(tmp_path: Path, monkeypatch) -> None:
    path, removed = tmp_path / "rose.sock", []

    def open_and_lose(name, *arguments, _open=os.open):
        descriptor = _open(name, *arguments)
        if not removed:
            removed.append(name)
            Path(name).unlink()
        return descriptor

    monkeypatch.setattr("rose.server.unix_socket.os.open", open_and_lose)
    with bound_to_path(path):
        assert sorted(each.name for each in tmp_path.iterdir()) == ["rose.sock", "rose.sock.lock"]


@pytest.mark.parametrize("name", ["no/such/folder.sock", "x" * 200, "file"])
def test_where_no_socket_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(ConfigError), bound_to_path(tmp_path / name):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "kept"
