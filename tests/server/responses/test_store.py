"""The stores, each by itself."""

from pathlib import Path

import pytest

from rose.errors import ConfigError
from rose.server.responses.store import MemoryStore, SqliteStore, StoredResponse, open_store

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


@pytest.mark.parametrize("spec", ["", "disk", "sqlite:", "memory:x", "sqlite:/no/such/folder/a.db"])
def test_what_is_no_store(spec: str) -> None:
    with pytest.raises(ConfigError):
        open_store(spec)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    file.write_text("not a database, but long enough to be taken for one" * 20)
    with pytest.raises(ConfigError, match=r"a\.db"):
        open_store(f"sqlite:{file}")
