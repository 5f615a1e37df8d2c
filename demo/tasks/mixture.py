"""The mixture of tasks: how often each is drawn, and drawing one."""

from collections.abc import Callable
from random import Random
from typing import get_args

from demo.tasks import sums, tools
from demo.tasks.example import Draft, Example, Split
from demo.tasks.setting import conversation
from demo.tasks.small_talk import small_talk, unknown
from rose.chat.conversation import Message, ReasoningEffort

EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)


def _identity(draft: Draft) -> Example:
    text, reply = small_talk(draft)
    return Example("small talk", conversation(draft, [Message("user", text)]), reply)


def _unknown(draft: Draft) -> Example:
    text, reply = unknown(draft)
    return Example("unknown request", conversation(draft, [Message("user", text)]), reply)


BUILDERS: dict[str, tuple[float, Callable[[Draft], Example]]] = {
    "add": (11, sums.plain("+")),
    "subtract": (11, sums.plain("-")),
    "multiply": (17, sums.plain("*")),
    "word problem": (5, sums.word_problem),
    "follow-up": (5, sums.follow_up_question),
    "second question": (2, sums.second_question),
    "three terms": (3, sums.three_terms),
    "number only": (3, sums.number_only),
    "JSON answer": (5, sums.json_answer),
    "JSON with several keys": (2, sums.json_many),
    "JSON small talk": (1, sums.json_small_talk),
    "tool call": (11, tools.tool_call),
    "tool answer": (7, tools.tool_answer),
    "tool, second turn": (3, tools.tool_again),
    "tool, two at once": (4, tools.tool_loop),
    "calculator call": (5, tools.calculator_call),
    "calculator answer": (2, tools.calculator_answer),
    "tool not needed": (6, tools.tool_not_needed),
    "small talk": (4, _identity),
    "unknown request": (4, _unknown),
}
# Low effort asks for answers without working, which take the longest to learn.
_EFFORT_WEIGHTS = (5, 4, 3)


def build(name: str, rng: Random, split: Split, effort: ReasoningEffort | None = None) -> Example:
    """An example of the task `name`."""
    effort = effort or rng.choices(EFFORTS, _EFFORT_WEIGHTS)[0]
    return BUILDERS[name][1](Draft(rng, effort, split))


def random_example(rng: Random) -> Example:
    """A training example, with the mixture's weights."""
    names = list(BUILDERS)
    return build(rng.choices(names, [BUILDERS[name][0] for name in names])[0], rng, "train")
