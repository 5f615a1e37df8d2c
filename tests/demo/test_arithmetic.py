import re
from random import Random

import pytest

from demo.tasks.arithmetic import Problem, random_problem, working
from demo.tasks.mixture import EFFORTS


def _true_steps(text: str) -> int:
    """Check each `sum=number` of a working; returns how many there are."""
    steps = re.findall(r"(?<![\d*+=(-])(\d+(?:[-+*]\d+)+)=(-?\d+)", text)
    for left, right in steps:
        assert eval(left) == int(right), (left, right, text)
    return len(steps)


@pytest.mark.parametrize("effort", EFFORTS)
def test_every_step_of_every_working_is_true(effort):
    rng = Random(0)
    num_steps = 0
    for _ in range(3000):
        problem = random_problem(rng, "train")
        text = working(problem, effort)
        if text is not None:
            num_steps += _true_steps(text)
            assert text.endswith(str(problem.result)), (problem, text)
    assert num_steps > 1000


@pytest.mark.parametrize("effort", EFFORTS)
def test_edges(effort):
    for op, a, b in [
        ("+", 0, 0),
        ("-", 5, 5),
        ("-", 0, 9999),
        ("*", 0, 0),
        ("*", 999, 99),
        ("*", 10, 100),
        ("-", 7, 7000),
    ]:
        problem = Problem(op, a, b)
        text = working(problem, effort)
        if text is not None:
            _true_steps(text)
            assert text.endswith(str(problem.result))


def test_effort_decides_the_length():
    problem = Problem("+", 456, 789)
    low, medium, high = (working(problem, effort) for effort in EFFORTS)
    assert low is None
    assert medium == "456+789\n6+9=15, 5+8+1=14, 4+7+1=12: 1245"
    assert high is not None and "carry 1" in high and len(high) > len(medium)


def test_borrowing_and_a_negative_result():
    assert working(Problem("-", 120, 15), "medium") == "120-15\n10-5=5, 2-1-1=0, 1-0=1: 105"
    assert (
        working(Problem("-", 15, 120), "medium") == "15-120\n15<120, so -(120-15)\n10-5=5, 2-1-1=0, 1-0=1: 105, so -105"
    )
