"""Where responses are kept, so that a later request can go on from one by its id.

A record has the items that its own request brought, and what the model answered. What came before them is in the
record of the response before, so a chat of many turns takes no more room than its texts.
"""

import asyncio
import contextlib
import random
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from rose.errors import ConfigError, RequestError
from rose.log import get_logger
from rose.server.errors import ApiError

logger = get_logger(__name__)

MAX_IN_MEMORY = 4096
MAX_BYTES_IN_MEMORY = 256 << 20
MAX_IN_SQLITE = 100_000
_SQLITE_THREADS = 4
_BUSY_TIMEOUT_S = 10

ResultT = TypeVar("ResultT")

_SCHEMA = """
create table if not exists responses (
    number integer primary key autoincrement, id text unique not null, record blob not null);
create table if not exists items (id text primary key, response_id text not null) without rowid;
create index if not exists items_by_response on items (response_id);
"""


class StoredResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one response. response: the JSON object. input: its request's items, in order."""

    id: str
    previous_response_id: str | None
    response: dict[str, Any]
    input: list[dict[str, Any]]

    def items(self) -> list[dict[str, Any]]:
        """The input, then the output."""
        output: list[dict[str, Any]] = self.response["output"]
        return self.input + output


class ResponseStore(Protocol):
    """A place for responses. It may forget the oldest ones, which is no error."""

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        ...

    async def put(self, record: StoredResponse) -> None:
        """Keep a record, in place of the one with its id."""
        ...

    async def get(self, response_id: str) -> StoredResponse | None:
        """The record with this id, if it is still there."""
        ...

    async def delete(self, response_id: str) -> bool:
        """Forget a record; false if there was none."""
        ...

    async def find_item(self, item_id: str) -> dict[str, Any] | None:
        """The output item with this id, if its response is still there."""
        ...


def open_store(spec: str, shared_folder: str | None = None) -> ResponseStore:
    """The store for `memory`, `none`, or `sqlite:PATH`. Raises `ConfigError` for anything else, or a bad file.

    shared_folder: of several processes that answer as one, whose `memory` is a file in it.
    """
    kind, _, path = spec.partition(":")
    match kind, path:
        case "memory", "" if shared_folder is not None:
            return SqliteStore(Path(shared_folder) / "responses.sqlite", MAX_IN_MEMORY, MAX_BYTES_IN_MEMORY)
        case "memory", "":
            return MemoryStore()
        case "none", "":
            return NoStore()
        case "sqlite", path if path:
            return SqliteStore(Path(path).expanduser())
    raise ConfigError(f"--response-store must be memory, none or sqlite:PATH, not {spec!r}")


async def read_history(store: ResponseStore, response_id: str | None) -> list[dict[str, Any]]:
    """The items of a response and of all before it, oldest first.

    Raises `RequestError` if one of them is not there, or has not ended.
    """
    records: list[StoredResponse] = []
    while response_id is not None:
        record = await store.get(response_id)
        if record is None:
            raise RequestError(
                f"there is no response {response_id!r} here (any more)",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if record.response["status"] in ("queued", "in_progress"):
            raise RequestError(
                f"the response {response_id!r} is not complete: it is still being made, or its server has ended",
                param="previous_response_id",
                code="invalid_value",
            )
        records.append(record)
        response_id = record.previous_response_id
    return [item for record in reversed(records) for item in record.items()]


class NoStore:
    """Keeps nothing."""

    keeps = False

    async def put(self, record: StoredResponse) -> None:
        """Forget it."""

    async def get(self, response_id: str) -> StoredResponse | None:
        """Nothing."""
        return None

    async def delete(self, response_id: str) -> bool:
        """Nothing to forget."""
        return False

    async def find_item(self, item_id: str) -> dict[str, Any] | None:
        """Nothing."""
        return None


class MemoryStore:
    """Keeps responses in memory, up to a number and a size; those unused for longest go first."""

    keeps = True

    def __init__(self, max_responses: int = MAX_IN_MEMORY, max_bytes: int = MAX_BYTES_IN_MEMORY) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._records: OrderedDict[str, bytes] = OrderedDict()  # encoded: smaller, and nobody can change them
        self._item_owners: dict[str, str] = {}

    async def put(self, record: StoredResponse) -> None:
        """Keep a record, and forget what there is no room for any more."""
        self._remove(record.id)
        encoded = msgspec.json.encode(record)
        self._records[record.id] = encoded
        self._num_bytes += len(encoded)
        self._item_owners |= dict.fromkeys(_item_ids(record), record.id)
        while len(self._records) > self._max_responses or (
            self._num_bytes > self._max_bytes and len(self._records) > 1
        ):
            self._remove(next(iter(self._records)))

    async def get(self, response_id: str) -> StoredResponse | None:
        """The record with this id; it counts as used."""
        encoded = self._records.get(response_id)
        if encoded is None:
            return None
        self._records.move_to_end(response_id)
        return _decode(encoded)

    async def delete(self, response_id: str) -> bool:
        """Forget a record."""
        return self._remove(response_id)

    async def find_item(self, item_id: str) -> dict[str, Any] | None:
        """The output item with this id."""
        record = await self.get(self._item_owners.get(item_id, ""))
        return None if record is None else _item(record, item_id)

    def _remove(self, response_id: str) -> bool:
        encoded = self._records.pop(response_id, None)
        if encoded is None:
            return False
        self._num_bytes -= len(encoded)
        for item_id in _item_ids(_decode(encoded)):
            self._item_owners.pop(item_id, None)
        return True


class SqliteStore:
    """Keeps responses in a file that outlives the server, up to a number, and a size if one is given; the oldest go
    first.

    Each operation has its own connection, in a thread: nothing is shared, nothing has to be closed, and several
    processes can use the file. The threads are the store's own, since a file that another program locks holds them for
    long. An operation raises `ApiError` if the file cannot be used; a record that cannot be read counts as forgotten.
    """

    keeps = True

    def __init__(self, path: Path, max_responses: int = MAX_IN_SQLITE, max_bytes: int | None = None) -> None:
        self._path = path
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._threads = ThreadPoolExecutor(_SQLITE_THREADS, thread_name_prefix="response-store")
        try:
            self._create()
        except sqlite3.Error as error:
            raise ConfigError(f"cannot keep responses in {path}: {error}") from None

    async def put(self, record: StoredResponse) -> None:
        """Keep a record, and forget what is beyond the limit."""
        await self._in_thread(self._put, record)

    async def get(self, response_id: str) -> StoredResponse | None:
        """The record with this id."""
        return await self._in_thread(self._get, response_id)

    async def delete(self, response_id: str) -> bool:
        """Forget a record."""
        return await self._in_thread(self._delete, response_id)

    async def find_item(self, item_id: str) -> dict[str, Any] | None:
        """The output item with this id."""
        return await self._in_thread(self._find_item, item_id)

    async def _in_thread(self, operation: Callable[[Any], ResultT], argument: Any) -> ResultT:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, operation, argument)
        except sqlite3.Error as error:
            logger.error("the responses in %s cannot be used: %s", self._path, error)
            raise ApiError(503, "stored responses cannot be used now", code="store_unavailable") from None

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A transaction of its own, committed unless it raises."""
        with contextlib.closing(sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)) as connection, connection:
            connection.execute("pragma synchronous = normal")  # a power cut may cost the last responses, no more
            yield connection

    def _create(self) -> None:
        """Make the file ready. SQLite does not wait to change a journal's mode while another process does: we do."""
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                with self._connection() as connection:
                    connection.execute("pragma journal_mode = wal")
                    connection.executescript(_SCHEMA)
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.001, 0.02))

    def _put(self, record: StoredResponse) -> None:
        with self._connection() as connection:
            _forget(connection, "id = ?", record.id)
            cursor = connection.execute(
                "insert into responses (id, record) values (?, ?)", (record.id, msgspec.json.encode(record))
            )
            connection.executemany(
                "insert or replace into items values (?, ?)", [(item_id, record.id) for item_id in _item_ids(record)]
            )
            newest = cursor.lastrowid or 0
            _forget(connection, "number <= ?", newest - self._max_responses)
            while self._max_bytes is not None and _num_bytes(connection) > self._max_bytes:
                if not _forget(connection, "number = (select min(number) from responses) and number < ?", newest):
                    break

    def _get(self, response_id: str) -> StoredResponse | None:
        with self._connection() as connection:
            row = connection.execute("select record from responses where id = ?", (response_id,)).fetchone()
        try:
            return None if row is None else _decode(row[0])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.error("the response %s in %s cannot be read: %s", response_id, self._path, error)
            return None

    def _delete(self, response_id: str) -> bool:
        with self._connection() as connection:
            return _forget(connection, "id = ?", response_id) > 0

    def _find_item(self, item_id: str) -> dict[str, Any] | None:
        with self._connection() as connection:
            row = connection.execute("select response_id from items where id = ?", (item_id,)).fetchone()
        record = None if row is None else self._get(row[0])
        return None if record is None else _item(record, item_id)


def _forget(connection: sqlite3.Connection, which: str, value: str | int) -> int:
    """Delete the responses that `which`, a condition with one place, finds, and their items. Returns how many."""
    connection.execute(f"delete from items where response_id in (select id from responses where {which})", (value,))
    return connection.execute(f"delete from responses where {which}", (value,)).rowcount


def _num_bytes(connection: sqlite3.Connection) -> int:
    """How much of the file is in use."""
    pages, free, page_bytes = (
        connection.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * page_bytes)


def _decode(encoded: bytes) -> StoredResponse:
    return msgspec.json.decode(encoded, type=StoredResponse)


def _item_ids(record: StoredResponse) -> list[str]:
    return [item["id"] for item in record.response["output"]]


def _item(record: StoredResponse, item_id: str) -> dict[str, Any] | None:
    return next((item for item in record.response["output"] if item["id"] == item_id), None)
