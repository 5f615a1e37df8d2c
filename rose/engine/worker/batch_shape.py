"""Shapes of a step: its own, or the larger one of a CUDA graph that it is padded to."""

from dataclasses import dataclass

_SMALLEST_TOKENS = 64
_LARGEST_TOKENS = 8192  # a step of more keeps the GPU busy for longer than its launches take
# Above this, launching kernel by kernel costs some 6 % of a step, which padding must not exceed; below it costs more.
_FINE_FROM_TOKENS, _FINE_TOKENS, _MOST_PADDING = 4096, 512, 1 / 16
_SMALLEST_SLOTS = 2  # one prompt, and the padding
_SLOTS_FACTOR = 4


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a forward pass's launches depend on; see `ForwardBatch` for the bounds.

    A shape with max_query_len 1 has one token for each request.
    """

    num_tokens: int
    num_requests: int
    max_query_len: int
    max_kv_len: int


class GraphShapes:
    """The shapes that have graphs.

    Decode steps are padded to 1, 2, 3, 4, 6, 8, 12, 16 ... requests. Other steps, of prompts alone or beside decoding
    requests, are padded to 64, 96, 128, 192, 256 ... 4096, 4608, 5120 ... 8192 tokens and 2, 8, 32 ... requests, of
    which one may be needed for the padding. Steps of more tokens have none, nor have those between 4096 and 8192 that
    padding would lengthen by more than launches do.
    """

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        """max_model_len: also the bound of every graph's lengths."""
        self._max_kv_len = max_model_len
        largest = min(_LARGEST_TOKENS, max_num_batched_tokens, max_model_len)
        self._decode_sizes = _half_steps(1, max_num_seqs)
        sizes = _half_steps(_SMALLEST_TOKENS, min(_FINE_FROM_TOKENS, largest))
        sizes += [*range(_FINE_FROM_TOKENS + _FINE_TOKENS, largest, _FINE_TOKENS), largest]
        self._token_sizes = sorted({size for size in sizes if _SMALLEST_TOKENS <= size <= largest})
        self._slot_sizes = [_SMALLEST_SLOTS]
        while self._slot_sizes[-1] < max_num_seqs + 1:
            self._slot_sizes.append(min(self._slot_sizes[-1] * _SLOTS_FACTOR, max_num_seqs + 1))

    def choose(self, step: BatchShape) -> BatchShape | None:
        """The smallest shape that a step fits in; None if there is none."""
        if step.max_query_len == 1:
            size = _first_at_least(step.num_requests, self._decode_sizes)
            return None if size is None else self._decode(size)
        num_tokens = _first_at_least(step.num_tokens, self._token_sizes)
        if num_tokens is None:
            return None
        if num_tokens > _FINE_FROM_TOKENS and num_tokens - step.num_tokens > num_tokens * _MOST_PADDING:
            return None
        slots = _first_at_least(step.num_requests + (num_tokens > step.num_tokens), self._slot_sizes)
        return None if slots is None else self._mixed(num_tokens, slots)

    def common(self) -> list[BatchShape]:
        """Those worth having from the start, largest first: one prompt of the most tokens and of the fewest, and decode
        steps of 1, 2, 4, 8 ... and the most requests.

        Recording a shape takes some 50 ms whenever it is done, so at the start only for what comes of it beside the
        graph: that graphs are possible at all, the memory that all of them share (which the largest need), and nearly
        every kernel compiled (which one it is depends on the number of tokens: one a request or more, and up to 16, 32
        or 64). Another shape is recorded when it first occurs: a prompt then waits once for the 20 to 30 ms more than
        its launches would have taken, and requests that decode wait no longer than for the prompt of the request that
        made them as many.
        """
        mixed = [
            self._mixed(size, _SMALLEST_SLOTS) for size in sorted({*self._token_sizes[-1:], *self._token_sizes[:1]})
        ]
        powers = [size for size in self._decode_sizes if size & (size - 1) == 0 or size == self._decode_sizes[-1]]
        return [*reversed(mixed), *(self._decode(size) for size in reversed(powers))]

    @property
    def max_num_tokens(self) -> int:
        """Of the largest shape."""
        return max([*self._token_sizes[-1:], self._decode_sizes[-1]])

    @property
    def max_num_requests(self) -> int:
        """Of the largest shape, the padding included."""
        return max(self._decode_sizes[-1], self._slot_sizes[-1])

    def _decode(self, size: int) -> BatchShape:
        return BatchShape(size, size, 1, self._max_kv_len)

    def _mixed(self, num_tokens: int, slots: int) -> BatchShape:
        return BatchShape(num_tokens, slots, num_tokens, self._max_kv_len)


def _half_steps(smallest: int, largest: int) -> list[int]:
    """Powers of two and the numbers halfway between them, from `smallest`, a power, to the first at `largest`."""
    sizes, size = [smallest], smallest
    while sizes[-1] < largest:
        sizes += [size + size // 2, size * 2] if size > 1 else [2]
        size *= 2
    return [*(size for size in sizes if size < largest), max(smallest, largest)]


def _first_at_least(wanted: int, sizes: list[int]) -> int | None:
    return next((size for size in sizes if size >= wanted), None)
