"""Order within a lane, overlap between lanes, and errors that come out."""

import threading

import pytest

from rose.weights.lanes import Lanes


def test_a_lane_keeps_the_order_and_lanes_overlap():
    seen = {0: [], 1: []}
    meet = threading.Barrier(2, timeout=30)

    def work(lane, number):
        if number == 0:
            meet.wait()  # both lanes are at work at once, or this breaks
        seen[lane].append(number)

    with Lanes(2) as lanes:
        for number in range(50):
            for lane in (0, 1):
                lanes.submit(lane, work, lane, number)
        lanes.wait()
        assert seen == {0: list(range(50)), 1: list(range(50))}


def test_no_more_than_two_wait_in_a_lane():
    go_on = threading.Event()
    with Lanes(1) as lanes:
        lanes.submit(0, go_on.wait, 30)
        lanes.submit(0, int)
        third = threading.Thread(target=lanes.submit, args=(0, int))
        third.start()
        third.join(0.2)
        assert third.is_alive()
        go_on.set()
        third.join(30)
        assert not third.is_alive()
        lanes.wait()


def test_what_work_raises_comes_out():
    def fail():
        raise OSError("no space")

    with Lanes(2) as lanes:
        lanes.submit(1, fail)
        with pytest.raises(OSError, match="no space"):
            lanes.wait()
        lanes.submit(0, fail)
        with pytest.raises(OSError, match="no space"):
            for _ in range(3):
                lanes.submit(0, int)
