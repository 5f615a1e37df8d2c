"""The stores, each by itself."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from rose.errors import ConfigError
from rose.server.errors import ApiError
from rose.server.responses.memory_store import MemoryStore
from rose.server.responses.open_store import open_store
from rose.server.responses.sqlite_store import SqliteStore
from rose.server.responses.store import StoredResponse

pytestmark = pytest.mark.anyio


def record(name: str, text: str = "x") -> StoredResponse:
    output = [{"id": f"msg_{name}", "type": "message", "content": text}]
    return StoredResponse(id=name, previous_response_id=None, response={"id": name, "output": output}, input=[])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_both_keep_the_newest(kind: str, tmp_path: Path) -> None:
    store = MemoryStore(max_responses=2) if kind == "memory" else SqliteStore(tmp_path / "a.db", max_responses=2)
    for name in "abc":
        await store.put(record(name))
    assert await store.get("a") is None
    assert await store.find_item("msg_a") is None
    assert (await store.get("c")) == record("c")
    assert (await store.find_item("msg_b"))["content"] == "x"
    await store.put(record("b", "new"))
    assert (await store.find_item("msg_b"))["content"] == "new"
    assert await store.delete("b")
    assert not await store.delete("b")
    assert await store.find_item("msg_b") is None
    assert await store.get("c") is not None


async def test_memory_is_bounded_in_bytes_and_keeps_what_is_used() -> None:
    store = MemoryStore(max_bytes=3000)
    for name in "abc":
        await store.put(record(name, "x" * 700))
    assert await store.get("a") is not None
    await store.put(record("d", "x" * 700))
    assert await store.get("b") is None
    assert await store.get("a") is not None
    await store.put(record("e", "x" * 9000))
    assert await store.get("e") is not None, "the newest stays, whatever its size"


async def test_the_memory_of_several_processes_is_bounded_in_bytes_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rose.server.responses.open_store.MAX_BYTES_IN_MEMORY", 1 << 20)
    ours, theirs = (open_store("memory", str(tmp_path)) for _ in range(2))
    for i in range(40):
        await (ours, theirs)[i % 2].put(record(f"resp_{i}", "x" * 100_000))
    kept = [i for i in range(40) if await ours.get(f"resp_{i}") is not None]
    assert kept == list(range(40 - len(kept), 40)), "the newest"
    assert 8 <= len(kept) <= 10
    assert (tmp_path / "responses.sqlite").stat().st_size < 2 << 20
    await theirs.put(record("resp_large", "x" * (2 << 20)))
    assert await ours.get("resp_large") is not None, "one that is larger than all that may be is still kept"
    assert await ours.get("resp_39") is None
    assert await ours.find_item("msg_resp_39") is None


async def test_a_record_that_cannot_be_read_counts_as_forgotten(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    for name in "ab":
        await store.put(record(name))
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("update responses set record = ? where id = 'a'", (b'{"id": "a", \xff',))
    assert await store.get("a") is None
    assert await store.find_item("msg_a") is None
    assert await store.get("b") == record("b")
    assert await store.delete("a")


async def test_a_file_that_breaks_is_told_as_such(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    await store.put(record("a"))
    for file in tmp_path.iterdir():
        file.write_bytes(b"no database any more" * 500)
    for operation in (store.get("a"), store.put(record("b")), store.delete("a"), store.find_item("msg_a")):
        with pytest.raises(ApiError) as raised:
            await operation
        assert (raised.value.status, raised.value.code) == (503, "store_unavailable")


async def test_a_locked_file_holds_up_nothing_else(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("begin exclusive")
        waiting = [asyncio.create_task(store.put(record(f"r{i}"))) for i in range(64)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(5):
            assert await asyncio.to_thread(lambda: "done") == "done"
        assert not any(task.done() for task in waiting)
        connection.execute("rollback")
        await asyncio.gather(*waiting)
    assert await store.get("r63") is not None


@pytest.mark.parametrize("lock", ["begin; select * from sqlite_master", "begin immediate", "begin exclusive"])
async def test_a_new_file_that_another_process_makes_ready_is_waited_for(tmp_path: Path, lock: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("create table others (x)")
        for statement in lock.split("; "):
            connection.execute(statement).fetchall()
        opening = asyncio.create_task(asyncio.to_thread(SqliteStore, tmp_path / "a.db"))
        await asyncio.sleep(0.3)
        assert not opening.done()
        connection.execute("rollback")
        store = await opening
    await store.put(record("a"))
    assert await store.get("a") == record("a")


def test_a_file_that_stays_locked_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rose.server.responses.sqlite_store._BUSY_TIMEOUT_S", 0.1)
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("begin exclusive")
        with pytest.raises(ConfigError, match="locked"):
            SqliteStore(tmp_path / "a.db")


def test_a_file_that_can_only_be_read_is_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SqliteStore(path)
    content = bytearray(path.read_bytes())
    content[18] = 3  # a format that SQLite does not write
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="readonly"):
        SqliteStore(path)


@pytest.mark.parametrize("spec", ["", "disk", "sqlite:", "memory:x", "sqlite:/no/such/folder/a.db"])
def test_what_is_no_store(spec: str) -> None:
    with pytest.raises(ConfigError):
        open_store(spec)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(ConfigError, match=r"a\.db"):
        open_store(f"sqlite:{file}")
