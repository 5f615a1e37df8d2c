"""Which block holds which tokens, so that requests with the same beginning share it.

A full block is named by a hash over its tokens and the name of the block before, so equal names mean equal tokens from
the beginning of the prompt up to the block's end. The hash is cryptographic: two prompts that collide would read each
other's cache, and a client may choose its prompts.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST_BYTES = 32


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The name of a full block; `parent` is the name of the block before, empty for the first."""
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()


class PrefixCache:
    """The index from (group, block hash) to the block that holds those tokens, and back.

    version: another number whenever something else might be found.
    """

    def __init__(self) -> None:
        self.version = 0
        self._block_of: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        self._key_of: dict[int, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def find(self, group: int, block_hash: bytes) -> int | None:
        """The block that holds these tokens for this group of layers."""
        return self._block_of[group].get(block_hash)

    def num_leading(self, group: int, block_hashes: Sequence[bytes]) -> int:
        """How many of the blocks, up to the first that is not, are held for this group of layers."""
        held = self._block_of[group]
        return next((i for i, block_hash in enumerate(block_hashes) if block_hash not in held), len(block_hashes))

    def add(self, group: int, block_hash: bytes, block: int) -> None:
        """Make a block findable. If another block already holds the same tokens, that one stays the one found."""
        held = self._block_of[group]
        if block_hash not in held:
            held[block_hash] = block
            self._key_of[block] = (group, block_hash)
            self.version += 1

    def forget(self, block: int) -> None:
        """The block's contents are about to change, or not to be trusted."""
        key = self._key_of.pop(block, None)
        if key is not None:
            group, block_hash = key
            del self._block_of[group][block_hash]
            self.version += 1

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless the two directions agree."""
        back = {block: (group, name) for group, held in self._block_of.items() for name, block in held.items()}
        assert back == self._key_of, "the prefix index is torn"
