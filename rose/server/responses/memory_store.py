"""Responses kept in memory, or not at all."""

from collections import OrderedDict
from typing import Any

from rose.server.responses.store import StoredResponse

MAX_IN_MEMORY = 4096
MAX_BYTES_IN_MEMORY = 256 << 20


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
        encoded = record.encode()
        self._records[record.id] = encoded
        self._num_bytes += len(encoded)
        self._item_owners |= dict.fromkeys(record.item_ids, record.id)
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
        return StoredResponse.decode(encoded)

    async def delete(self, response_id: str) -> bool:
        """Forget a record."""
        return self._remove(response_id)

    async def find_item(self, item_id: str) -> dict[str, Any] | None:
        """The output item with this id."""
        record = await self.get(self._item_owners.get(item_id, ""))
        return None if record is None else record.find_item(item_id)

    def _remove(self, response_id: str) -> bool:
        encoded = self._records.pop(response_id, None)
        if encoded is None:
            return False
        self._num_bytes -= len(encoded)
        for item_id in StoredResponse.decode(encoded).item_ids:
            self._item_owners.pop(item_id, None)
        return True
