"""The ring of memory that batches take turns in."""

from collections import deque

import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.weights.reading import _Ring

CPU = torch.device("cpu")


@given(st.integers(1, 300), st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=60))
def test_nobody_writes_where_another_still_is(size, steps):
    """Places are taken and left at random; each holds its own number until it is left."""
    ring, held = _Ring(size, CPU), deque()
    for number, (num_bytes, leave_first) in enumerate(steps):
        if leave_first and held:
            held.popleft()[0].leave()
        num_bytes = min(num_bytes, size)
        place = ring.take(num_bytes, wait=False)
        if place is None:
            assert held  # else there is room
            continue
        assert len(place.data) == num_bytes
        place.data.fill_(number)
        held.append((place, number))
        assert all(bool((kept.data == mark).all()) for kept, mark in held)


def test_small_batches_are_more():
    ring = _Ring(256, CPU)
    assert sum(ring.take(16, wait=False) is not None for _ in range(20)) == 16


class Event:
    """Of a device that is busy until somebody waits for it."""

    is_done = False

    def query(self):
        return self.is_done

    def synchronize(self):
        self.is_done = True


def test_the_device_is_waited_for_only_when_asked():
    ring = _Ring(64, CPU)
    first = ring.take(40, wait=False)
    assert ring.take(40, wait=True) is None  # not left yet
    first.leave()
    first._event = Event()
    assert ring.take(40, wait=False) is None
    assert not first._event.is_done
    assert ring.take(24, wait=False) is not None  # in front of nobody
    assert ring.take(40, wait=True) is not None
    assert first._event.is_done
