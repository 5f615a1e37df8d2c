"""What is kept of responses, so that a later request can go on from one by its id.

A record has the items that its own request brought, and what the model answered. What came before them is in the
record of the response before, so a chat of many turns takes no more room than its texts.
"""

from typing import Any, Protocol, Self

import msgspec

from rose.errors import RequestError


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

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """From JSON. Raises `msgspec.DecodeError` or `UnicodeDecodeError`."""
        return msgspec.json.decode(encoded, type=cls)

    @property
    def item_ids(self) -> list[str]:
        """Of the output."""
        return [item["id"] for item in self.response["output"]]

    def find_item(self, item_id: str) -> dict[str, Any] | None:
        """The output's item with this id."""
        return next((item for item in self.response["output"] if item["id"] == item_id), None)


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
