"""Sums with their working.

Each line of a working is a small step from what stands just before it, so that a small model can learn every step:
columns of digits from the right, with carries; products by partial products. The working depends on nothing but the
problem and the effort, so there is one right text to learn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from demo.tasks.example import Split
from demo.tasks.split import draw
from rose.chat.conversation import ReasoningEffort

Operation = Literal["+", "-", "*"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

MAX_ADDEND = 9999
MAX_FACTORS = (999, 99)
_COLUMNS = ("ones", "tens", "hundreds", "thousands", "ten thousands")


@dataclass(frozen=True, slots=True)
class Problem:
    """`a` `op` `b`, of non-negative operands."""

    op: Operation
    a: int
    b: int

    @property
    def result(self) -> int:
        """The right answer."""
        return {"+": self.a + self.b, "-": self.a - self.b, "*": self.a * self.b}[self.op]

    @property
    def left(self) -> str:
        """The problem as it stands in an answer."""
        return f"{self.a} {'×' if self.op == '*' else self.op} {self.b}"

    @property
    def equation(self) -> str:
        """Problem and result as they stand in an answer."""
        return f"{self.left} = {self.result}"

    @property
    def key(self) -> str | None:
        """What decides the split: the same for both orders of a sum or product. None for one-digit problems, which
        are the facts everything else rests on.
        """
        if max(self.a, self.b) < 10:
            return None
        a, b = (self.a, self.b) if self.op == "-" else sorted((self.a, self.b))
        return f"{a}{self.op}{b}"

    @property
    def in_range(self) -> bool:
        """Whether the problem is of a size that is trained."""
        if self.op == "*":
            return max(self.a, self.b) <= MAX_FACTORS[0] and min(self.a, self.b) <= MAX_FACTORS[1]
        return max(self.a, self.b) <= MAX_ADDEND


def number(rng: Random, max_digits: int) -> int:
    """A number with a random count of digits; longer ones are likelier, there being more of them."""
    num_digits = rng.choices(range(1, max_digits + 1), (2, 4, 5, 4)[:max_digits])[0]
    return rng.randint(0 if num_digits == 1 else 10 ** (num_digits - 1), 10**num_digits - 1)


def random_problem(rng: Random, split: Split, ops: Sequence[Operation] = OPERATIONS) -> Problem:
    """A problem of the split, of a random operation and size."""

    def sample() -> Problem:
        op = rng.choice(ops)
        if op == "*":
            a, b = number(rng, 3), number(rng, 2)
            return Problem(op, a, b) if rng.random() < 0.7 else Problem(op, b, a)
        a, b = number(rng, 4), number(rng, 4)
        if op == "-" and a < b and rng.random() < 0.5:
            a, b = b, a
        return Problem(op, a, b)

    return draw(split, sample, lambda problem: problem.key)


def working(problem: Problem, effort: ReasoningEffort) -> str | None:
    """The reasoning for a problem. None if at this effort the answer is given at once."""
    if effort == "low":
        return _product_in_one_line(problem) if problem.op == "*" else None
    head = f"{problem.a}{problem.op}{problem.b}"
    if problem.op == "*":
        body = _product_by_parts(problem) if effort == "medium" else _product_by_digits(problem)
    elif problem.op == "+":
        body = _sum_columns(problem.a, problem.b, effort)
    else:
        body = _difference(problem, effort)
    return f"{head}\n{body}"


def _digits_from_right(value: int, width: int) -> list[int]:
    return [value // 10**place % 10 for place in range(width)]


def _sum_columns(a: int, b: int, effort: ReasoningEffort) -> str:
    """Column addition. Medium: the sums of the columns. High: with what is written and carried."""
    width = max(len(str(a)), len(str(b)))
    lines, carry = [], 0
    for place, (x, y) in enumerate(zip(_digits_from_right(a, width), _digits_from_right(b, width), strict=True)):
        total = x + y + carry
        step = f"{x}+{y}={total}" if not carry else f"{x}+{y}+{carry}={total}"
        carry = total // 10
        if effort == "medium":
            lines.append(step)
        elif place == width - 1:
            lines.append(f"{_COLUMNS[place]}: {step}, write {total}")
        else:
            lines.append(f"{_COLUMNS[place]}: {step}, write {total % 10}, carry {carry}")
    return _close(lines, a + b, effort)


def _difference(problem: Problem, effort: ReasoningEffort) -> str:
    a, b = problem.a, problem.b
    if a >= b:
        return _difference_columns(a, b, effort)
    turned = f"{a}<{b}, so -({b}-{a})\n"
    return f"{turned}{_difference_columns(b, a, effort)}, so {a - b}"


def _difference_columns(a: int, b: int, effort: ReasoningEffort) -> str:
    """Column subtraction for a >= b, with borrowing."""
    width = len(str(a))
    lines, borrow = [], 0
    for place, (x, y) in enumerate(zip(_digits_from_right(a, width), _digits_from_right(b, width), strict=True)):
        less = f"-{borrow}" if borrow else ""
        borrowed = x - y - borrow < 0
        digit = (x - y - borrow) % 10
        step = f"1{x}-{y}{less}={digit}" if borrowed else f"{x}-{y}{less}={digit}"
        borrow = int(borrowed)
        lines.append(step if effort == "medium" else f"{_COLUMNS[place]}: {step}, write {digit}, borrow {borrow}")
    return _close(lines, a - b, effort)


def _close(lines: list[str], result: int, effort: ReasoningEffort) -> str:
    if effort == "medium":
        return f"{', '.join(lines)}: {result}"
    return "\n".join([*lines, f"read from the top: {result}"])


def _factors(problem: Problem) -> tuple[int, int]:
    """The larger factor first: it is the one that is taken apart least."""
    return max(problem.a, problem.b), min(problem.a, problem.b)


def _tens_and_ones(value: int) -> list[int]:
    """`value`, below 100, as a sum of a multiple of ten and a digit, without zeros."""
    return [part for part in (value // 10 * 10, value % 10) if part] or [0]


def _product_in_one_line(problem: Problem) -> str | None:
    """Partial products for a second factor of two digits; one digit is answered at once."""
    a, b = _factors(problem)
    parts = _tens_and_ones(b)
    if b < 10:
        return None
    products = [f"{a}*{part}={a * part}" for part in parts]
    if len(parts) == 2:
        products.append(f"{a * parts[0]}+{a * parts[1]}={a * b}")
    return ", ".join(products)


def _product_by_parts(problem: Problem) -> str:
    """Each part of the second factor times each part of the first, then column sums."""
    a, b = _factors(problem)
    lines = []
    for part in _tens_and_ones(b):
        pieces = [digit * 10**place for place, digit in enumerate(_digits_from_right(a, len(str(a)))) if digit][::-1]
        if len(pieces) < 2:
            lines.append(f"{a}*{part}={a * part}")
            continue
        products = [f"{piece}*{part}={piece * part}" for piece in pieces]
        totals, total = [], pieces[0] * part
        for piece in pieces[1:]:
            totals.append(f"{total}+{piece * part}={total + piece * part}")
            total += piece * part
        lines.append(f"{', '.join(products)}; {', '.join(totals)}; {a}*{part}={total}")
    parts = _tens_and_ones(b)
    if len(parts) == 2:
        x, y = a * parts[0], a * parts[1]
        lines.append(f"{x}+{y}: {_sum_columns(x, y, 'medium')}")
    return "\n".join(lines)


def _product_by_digits(problem: Problem) -> str:
    """Long multiplication: each digit of the second factor times the first, with carries, then a column sum."""
    a, b = _factors(problem)
    lines, rows = [], []
    for place, y in enumerate(_digits_from_right(b, len(str(b)))):
        row = a * y * 10**place
        rows.append(row)
        if y == 0:
            lines.append(f"{a}*0=0")
            continue
        steps, carry = [], 0
        for index, x in enumerate(_digits_from_right(a, len(str(a)))):
            total = x * y + carry
            step = f"{x}*{y}={x * y}" + (f", {x * y}+{carry}={total}" if carry else "")
            carry = total // 10
            last = index == len(str(a)) - 1
            steps.append(f"{step}, write {total}" if last else f"{step}, write {total % 10}, carry {carry}")
        lines.append(f"{a}*{y}:\n" + "\n".join(steps) + f"\n{a}*{y}={a * y}" + (f", shifted {row}" if place else ""))
    if len(rows) == 2:
        lines.append(f"{rows[0]}+{rows[1]}:\n{_sum_columns(rows[0], rows[1], 'high')}")
    return "\n".join(lines)
