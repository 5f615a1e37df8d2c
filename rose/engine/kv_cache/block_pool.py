"""Who may use each block: reference counts, and the order in which unused blocks are given out again."""

from collections import OrderedDict
from collections.abc import Iterable

from rose.engine.kv_cache.prefix_cache import PrefixCache

NULL_BLOCK = 0
"""Stands in block tables where a request holds no block. Never given out, never read."""


class BlockPool:
    """Blocks 1 ... num_blocks - 1, each free or held by one or more requests.

    A free block may still hold tokens that the prefix cache can find. Such blocks are given out last, the one that was
    released longest ago first, and are then forgotten by the cache.
    """

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache) -> None:
        self.num_blocks = num_blocks
        self._cache = prefix_cache
        self._ref_counts = [0] * num_blocks
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._reusable: OrderedDict[int, None] = OrderedDict()  # free and cached, oldest first

    @property
    def num_free(self) -> int:
        """Blocks that can be given out now."""
        return len(self._blank) + len(self._reusable)

    def is_free(self, block: int) -> bool:
        """Whether no request holds the block."""
        return self._ref_counts[block] == 0

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks, of which there must be enough free."""
        blocks = []
        for _ in range(count):
            if self._blank:
                block = self._blank.pop()
            else:
                block, _ = self._reusable.popitem(last=False)
                self._cache.forget(block)
            self._ref_counts[block] = 1
            blocks.append(block)
        return blocks

    def share(self, block: int) -> None:
        """Hold a cached block, together with whoever holds it already."""
        if self._ref_counts[block] == 0:
            del self._reusable[block]
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Give blocks back; null blocks are skipped. Those released first are given out again first."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if block in self._cache:
                    self._reusable[block] = None
                else:
                    self._blank.append(block)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise `AssertionError` unless the counts match `held`, the blocks in all block tables, repeated as held."""
        expected = [0] * self.num_blocks
        for block in held:
            expected[block] += block != NULL_BLOCK
        assert expected == self._ref_counts, "reference counts differ from the block tables"
        free = [*self._blank, *self._reusable]
        assert sorted(free) == [b for b in range(1, self.num_blocks) if expected[b] == 0], "free lists are torn"
        assert all(block in self._cache for block in self._reusable), "an unfindable block waits for reuse"
        assert not any(block in self._cache for block in self._blank), "a blank block is findable"
