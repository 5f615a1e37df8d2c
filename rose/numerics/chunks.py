"""Going through a tensor in pieces that stay in a CPU's cache."""

from collections.abc import Iterator

import torch

# What torch leaves to one thread. Where several share a core (a conversion also reads, hashes and writes), they may
# spin for each other in every operation: with pieces four times as large one of two conversions took 447 s, not 36.
# And temporaries this small are not mapped, filled with zeros and unmapped anew each time.
_CHUNK_ELEMENTS = 1 << 15


def row_chunks(num_rows: int, row_elements: int, *, device: torch.device, multiple: int = 1) -> Iterator[slice]:
    """Neighbouring rows, from the first to the last. multiple: of how many rows all but the last piece are.

    On a GPU all rows at once: there a launch costs more than memory does.
    """
    fit = _CHUNK_ELEMENTS // max(1, row_elements) // multiple * multiple
    step = max(multiple, fit) if device.type == "cpu" else max(1, num_rows)
    return (slice(start, min(start + step, num_rows)) for start in range(0, num_rows, step))
