"""The KV cache as the scheduler sees it: room for tokens, by request.

Each request has one block table per group of layers, all of the same length; entry j stands for positions
j*block_size ... of the request:

    full        [ 7  3  9  4 ]
    sliding     [ 0  0  8  5 ]     blocks that left the window are freed at once and become the null block
                          ^ num_computed_tokens
"""

import sys
from dataclasses import dataclass

from rose.engine.kv_cache.block_pool import NULL_BLOCK, BlockPool
from rose.engine.kv_cache.prefix_cache import PrefixCache, hash_block
from rose.engine.kv_cache.spec import KVCacheSpec
from rose.engine.request import Request


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cached beginning of a request: `num_tokens`, a multiple of the block size, and a table for each group."""

    num_tokens: int
    tables: tuple[list[int], ...]


@dataclass(slots=True)
class _Tables:
    """What one request holds. `first_live[g]`: entries of table g before it are null.

    idle_below: `num_computed_tokens` for which `commit` finds nothing to do.
    """

    tables: tuple[list[int], ...]
    first_live: list[int]
    num_registered: int  # leading blocks that the prefix cache was told about
    idle_below: int = 0


class KVCacheManager:
    """Blocks for every admitted request. Not thread-safe; one scheduler owns it."""

    def __init__(self, spec: KVCacheSpec, num_blocks: int, *, enable_prefix_caching: bool = True) -> None:
        self.spec = spec
        self._caching = enable_prefix_caching
        self._cache = PrefixCache()
        self._pool = BlockPool(num_blocks, self._cache)
        self._requests: dict[int, _Tables] = {}
        self._full_groups = [index for index, group in enumerate(spec.groups) if group.sliding_window is None]
        self._found: tuple[tuple[int, int, int], PrefixHit] | None = None  # the last search, and when it holds

    @property
    def num_free_blocks(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return self._pool.num_free

    @property
    def capacity(self) -> int:
        """Blocks that requests can hold in all."""
        return self._pool.num_blocks - 1

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, from 0 to 1."""
        return 1.0 - self.num_free_blocks / self.capacity

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether a request of this many tokens fits the cache when it is alone."""
        return self.spec.min_blocks(num_tokens) <= self.capacity

    def find_prefix(self, request: Request) -> PrefixHit:
        """The longest cached beginning, at most all tokens but one: the last must be computed to get its logits.

        None of it, if the logits of the whole prompt are wanted.

        Full attention needs every block of the beginning; a sliding group only those that the next token sees.
        """
        if not self._caching or request.prompt_logprobs is not None:
            return PrefixHit(0, tuple([] for _ in self.spec.groups))
        # A request at the queue's head that finds no room asks again in each step.
        state = (request.key, request.num_tokens, self._cache.version)
        if self._found is None or self._found[0] != state:
            self._found = (state, self._search(request))
        return self._found[1]

    def admit(self, request: Request, hit: PrefixHit, num_new_tokens: int) -> bool:
        """Take the hit's blocks and room for the tokens after it; False, and nothing taken, if blocks are short."""
        held = hit.num_tokens // self.spec.block_size
        needed = self._blocks_short(hit.num_tokens + num_new_tokens, held)
        num_free = self._pool.num_free
        if needed > num_free or needed > num_free - self._num_reclaimed(hit):
            return False
        for table in hit.tables:
            for block in table:
                if block != NULL_BLOCK:
                    self._pool.share(block)
        first_live = [next((i for i, block in enumerate(t) if block != NULL_BLOCK), len(t)) for t in hit.tables]
        self._requests[request.key] = _Tables(hit.tables, first_live, held)
        self._found = None  # its tables grow from now on
        self._grow(request, hit.num_tokens + num_new_tokens)
        return True

    def extend(self, request: Request, num_new_tokens: int) -> tuple[list[int], ...] | None:
        """Make room for the next tokens.

        Returns the new blocks of each table, nothing at all if none are needed, or None if blocks are short.
        """
        num_tokens = request.num_computed_tokens + num_new_tokens
        num_held = len(self._requests[request.key].tables[0])
        if num_tokens <= num_held * self.spec.block_size:
            return ()
        if self._blocks_short(num_tokens, num_held) > self._pool.num_free:
            return None
        return self._grow(request, num_tokens)

    def room(self, request: Request, hit: PrefixHit | None = None) -> int:
        """How many tokens can be computed next with the blocks that are free. `hit`: for a request not yet admitted."""
        if hit is None:
            computed, held, free = request.num_computed_tokens, len(self.block_tables(request)[0]), self._pool.num_free
        else:
            computed, held = hit.num_tokens, len(hit.tables[0])
            free = self._pool.num_free - self._num_reclaimed(hit)
        return (held + free // len(self.spec.groups)) * self.spec.block_size - computed

    def name_blocks(self, request: Request, num_tokens: int) -> None:
        """Work out the names of the blocks that so many tokens fill, so that `commit` finds them ready."""
        if self._caching:
            self._hashes(request, num_tokens // self.spec.block_size)

    def commit(self, request: Request) -> None:
        """After a step: make newly filled blocks findable and free those that no later token sees."""
        held = self._requests[request.key]
        if request.num_computed_tokens < held.idle_below:
            return
        self._register(request, held)
        for index, group in enumerate(self.spec.groups):
            table = held.tables[index]
            first = min(group.first_visible(request.num_computed_tokens) // self.spec.block_size, len(table))
            start = held.first_live[index]
            if first > start:
                self._pool.release(reversed(table[start:first]))
                table[start:first] = [NULL_BLOCK] * (first - start)
                held.first_live[index] = first
        held.idle_below = self._next_commit(held)

    def free(self, request: Request, *, forget: bool = False) -> None:
        """Release all that the request holds. `forget`: its contents are bad, nobody may find them again."""
        held = self._requests.pop(request.key, None)
        if held is None:
            return
        for table in held.tables:
            if forget:
                for block in table:
                    self._cache.forget(block)
            self._pool.release(reversed(table))  # a prompt's beginning is shared most often: let it stay longest

    def block_tables(self, request: Request) -> tuple[list[int], ...]:
        """The request's table in each group; do not change them."""
        return self._requests[request.key].tables

    def check_integrity(self) -> None:
        """Raise `AssertionError` unless every block is accounted for."""
        self._cache.check_integrity()
        tables = [table for held in self._requests.values() for table in held.tables]
        self._pool.check_integrity(block for table in tables for block in table)
        for held in self._requests.values():
            assert len({len(table) for table in held.tables}) == 1, "block tables of one request differ in length"
            for table, first in zip(held.tables, held.first_live, strict=True):
                assert all((block == NULL_BLOCK) == (i < first) for i, block in enumerate(table)), "a hole in a table"

    def _blocks_short(self, num_tokens: int, num_held: int) -> int:
        return max(0, self.spec.blocks_for(num_tokens) - num_held) * len(self.spec.groups)

    def _num_reclaimed(self, hit: PrefixHit) -> int:
        """Blocks of the hit that count as free until it is taken."""
        return sum(self._pool.is_free(block) for table in hit.tables for block in table if block != NULL_BLOCK)

    def _grow(self, request: Request, num_tokens: int) -> tuple[list[int], ...]:
        new = []
        for table in self._requests[request.key].tables:
            blocks = self._pool.allocate(max(0, self.spec.blocks_for(num_tokens) - len(table)))
            table.extend(blocks)
            new.append(blocks)
        return tuple(new)

    def _search(self, request: Request) -> PrefixHit:
        block_size = self.spec.block_size
        end, num_tried, limit = 0, 0, (request.num_tokens - 1) // block_size
        while end == num_tried < limit:  # naming takes longer than looking: one block, and more as some are found
            names = self._hashes(request, min(2 * end + 1, limit))[end:limit]
            num_tried += len(names)
            end += min((self._cache.num_leading(index, names) for index in self._full_groups), default=len(names))
        hashes = request.block_hashes
        while (missing := self._missing_in_windows(hashes, end)) is not None:
            end = missing  # each boundary between here and there needs that block as well
        tables = []
        for index, group in enumerate(self.spec.groups):
            first = group.first_visible(end * block_size) // block_size
            cached = [self._cache.find(index, block_hash) for block_hash in hashes[first:end]]
            tables.append([NULL_BLOCK] * min(first, end) + [block for block in cached if block is not None])
        return PrefixHit(end * block_size, tuple(tables))

    def _next_commit(self, held: _Tables) -> int:
        """Computed tokens that fill the next block or move it out of a window."""
        size = self.spec.block_size
        ends = [(held.num_registered + 1) * size] if self._caching else []
        for group, first in zip(self.spec.groups, held.first_live, strict=True):
            if group.sliding_window is not None:
                ends.append((first + 1) * size + group.sliding_window - 1)
        return min(ends, default=sys.maxsize)

    def _register(self, request: Request, held: _Tables) -> None:
        if not self._caching:
            return
        num_full = request.num_computed_tokens // self.spec.block_size
        if num_full == held.num_registered:
            return
        hashes = self._hashes(request, num_full)
        for index, table in enumerate(held.tables):
            for i in range(held.num_registered, num_full):  # not yet trimmed to the window, so never null
                self._cache.add(index, hashes[i], table[i])
        held.num_registered = num_full

    def _hashes(self, request: Request, num_blocks: int) -> list[bytes]:
        """The names of at least the request's first blocks. They stay with the request: its tokens only ever grow."""
        known, size = request.block_hashes, self.spec.block_size
        while len(known) < num_blocks:
            start = len(known) * size
            known.append(hash_block(known[-1] if known else b"", request.token_ids[start : start + size]))
        return known

    def _missing_in_windows(self, hashes: list[bytes], end: int) -> int | None:
        """The last block before boundary `end` that some sliding group needs there and has not."""
        missing = -1
        for index, group in enumerate(self.spec.groups):
            if group.sliding_window is not None:
                first = group.first_visible(end * self.spec.block_size) // self.spec.block_size
                absent = (i for i in range(end - 1, first - 1, -1) if self._cache.find(index, hashes[i]) is None)
                missing = max(missing, next(absent, -1))
        return None if missing < 0 else missing
