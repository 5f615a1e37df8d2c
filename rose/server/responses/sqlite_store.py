"""Responses kept in a file, which several processes can use and which outlives them."""

import asyncio
import contextlib
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rose.errors import ConfigError
from rose.log import get_logger
from rose.server.errors import ApiError
from rose.server.responses.store import StoredResponse

logger = get_logger(__name__)

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
                    _forget(connection, "number < ?", 0)  # nothing, but a file that can only be read is known now
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.001, 0.02))

    def _put(self, record: StoredResponse) -> None:
        with self._connection() as connection:
            _forget(connection, "id = ?", record.id)
            cursor = connection.execute(
                "insert into responses (id, record) values (?, ?)", (record.id, record.encode())
            )
            connection.executemany(
                "insert or replace into items values (?, ?)", [(item_id, record.id) for item_id in record.item_ids]
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
            return None if row is None else StoredResponse.decode(row[0])
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
        return None if record is None else record.find_item(item_id)


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
