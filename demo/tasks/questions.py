"""Ways of asking for a sum in English."""

from dataclasses import dataclass
from random import Random

from demo.tasks.arithmetic import Operation, Problem
from demo.tasks.words import ITEMS, PEOPLE

_NOUNS: dict[Operation, tuple[str, ...]] = {
    "+": ("{a} plus {b}", "{a} added to {b}", "the sum of {a} and {b}"),
    "-": ("{a} minus {b}", "{a} less {b}", "the difference of {a} and {b}", "{a} take away {b}"),
    "*": ("{a} times {b}", "{a} multiplied by {b}", "the product of {a} and {b}"),
}
_ORDERS: dict[Operation, tuple[str, ...]] = {
    "+": ("add {a} and {b}", "sum {a} and {b}", "add up {a} and {b}"),
    "-": ("subtract {b} from {a}", "take {b} from {a}", "take {b} away from {a}"),
    "*": ("multiply {a} by {b}", "multiply {a} and {b}", "multiply {a} with {b}"),
}
_SIGNS: dict[Operation, tuple[str, ...]] = {"+": ("+",), "-": ("-", "-", "−"), "*": ("*", "×", "x")}
_ASK = (
    "what is {}",
    "what's {}",
    "how much is {}",
    "tell me {}",
    "can you tell me {}",
    "what does {} make",
    "whats {}",
)
_DO = ("compute {}", "calculate {}", "work out {}", "evaluate {}", "solve {}", "please compute {}", "find {}", "{} =")
_POLITE = ("please {}", "{} please", "can you {}", "could you {}", "{}", "{}", "hey, {}", "now {}", "i need you to {}")
_QUESTION = ("what", "how", "can", "could")


@dataclass(frozen=True, slots=True)
class Story:
    """A word problem and the sentence that answers it, with the result filled in."""

    text: str
    answer: str


def expression(rng: Random, problem: Problem) -> str:
    """The bare sum, as people type it."""
    sign = rng.choice(_SIGNS[problem.op])
    gap = rng.choice((" ", " ", ""))
    return f"{problem.a}{gap}{sign}{gap}{problem.b}"


def question(rng: Random, problem: Problem) -> str:
    """The problem in one of many phrasings."""
    style = rng.random()
    if style < 0.12:
        text = expression(rng, problem) + rng.choice(("", "", "?", " =", "=", " = ?"))
    elif style < 0.45:
        text = rng.choice(_ASK).format(expression(rng, problem))
    elif style < 0.6:
        text = rng.choice(_DO).format(expression(rng, problem))
    elif style < 0.8:
        text = rng.choice(_ASK + _DO[:3]).format(rng.choice(_NOUNS[problem.op]).format(a=problem.a, b=problem.b))
    elif style < 0.85:
        text = rng.choice(_NOUNS[problem.op][:2]).format(a=problem.a, b=problem.b)
    else:
        text = rng.choice(_POLITE).format(rng.choice(_ORDERS[problem.op]).format(a=problem.a, b=problem.b))
    return _surround(rng, _dress(rng, text))


def chain(rng: Random, terms: str) -> str:
    """A question for a sum of several terms, given as they stand."""
    text = rng.choice((*_ASK, *_DO, "{}", "{}")).format(terms if rng.random() < 0.7 else terms.replace(" ", ""))
    return _surround(rng, _dress(rng, text))


def follow_up(rng: Random, op: Operation, b: int) -> str:
    """A second question that takes the last result for granted."""
    words = {
        "+": ("and plus {b}", "now add {b}", "add {b} to that", "plus {b}", "and if you add {b}", "and {b} more"),
        "-": ("and minus {b}", "now subtract {b}", "subtract {b} from that", "minus {b}", "take away {b}"),
        "*": ("and times {b}", "now multiply by {b}", "multiply that by {b}", "times {b}", "that times {b}"),
    }[op]
    return _dress(rng, rng.choice(words).format(b=b))


def story(rng: Random, problem: Problem) -> Story:
    """A short word problem. The result must not be negative."""
    who, item = rng.choice(PEOPLE), rng.choice(ITEMS)
    a, b, result = problem.a, problem.b, problem.result
    text, answer = rng.choice(_STORIES[problem.op])
    fields = {"who": who, "item": item, "a": a, "b": b, "result": result}
    return Story(text.format(**fields), f"{problem.equation}, so {answer.format(**fields)}")


_STORIES: dict[Operation, tuple[tuple[str, str], ...]] = {
    "+": (
        ("{who} has {a} {item} and buys {b} more. How many {item} does {who} have now?", "{who} has {result} {item}."),
        ("There are {a} {item} on the table. {who} brings {b} more. How many are there?", "there are {result} {item}."),
        ("{who} found {a} {item} on Monday and {b} on Tuesday. How many is that?", "that is {result} {item}."),
        ("A shop sold {a} {item} in May and {b} in June. How many {item} in all?", "it sold {result} {item}."),
    ),
    "-": (
        ("{who} has {a} {item} and gives {b} away. How many {item} are left?", "{result} {item} are left."),
        ("A shop had {a} {item} and sold {b}. How many are left?", "{result} {item} are left."),
        ("{who} had {a} {item} and lost {b}. How many {item} does {who} have now?", "{who} has {result} {item}."),
        ("Of {a} {item}, {b} are broken. How many {item} are whole?", "{result} {item} are whole."),
    ),
    "*": (
        ("There are {a} bags with {b} {item} each. How many {item} is that?", "that is {result} {item}."),
        ("{who} buys {a} boxes of {b} {item}. How many {item} does {who} have?", "{who} has {result} {item}."),
        ("One ticket costs {a} coins. How much do {b} tickets cost?", "they cost {result} coins."),
        ("{who} reads {a} pages a day. How many pages in {b} days?", "that is {result} pages."),
    ),
}


def _surround(rng: Random, text: str) -> str:
    """Sometimes a greeting before or a remark after; neither changes the answer."""
    if rng.random() < 0.06:
        text = rng.choice(("Hello! ", "Hi, ", "Hey, ", "Hello, ", "Good morning. ", "Quick question: ", "Ok. ")) + text
    if rng.random() < 0.06:
        remarks = ("Thanks!", "Show your work.", "Think step by step.", "Thank you.", "Be quick.", "Please explain.")
        text = f"{text if text[-1] in '.?!=' else text + '.'} {rng.choice(remarks)}"
    return text


def _dress(rng: Random, text: str) -> str:
    """Capital letter and final mark, or neither, as people type."""
    if rng.random() < 0.65:
        text = text[0].upper() + text[1:]
    if text[-1].isalnum() and rng.random() < 0.65:
        text += "?" if text.lower().startswith((*_QUESTION, "and", "tell", "plus", "minus", "times")) else "."
    return text
