"""Sums in chats: asked plainly, as a story, as a follow-up, or with a demand on the form of the answer."""

import json
from collections.abc import Callable
from random import Random

from demo.tasks.arithmetic import OPERATIONS, Operation, Problem, number, random_problem, working
from demo.tasks.example import Draft, Example, Reply
from demo.tasks.questions import chain, follow_up, question, story
from demo.tasks.setting import conversation
from demo.tasks.small_talk import small_talk
from demo.tasks.split import draw, is_held_out
from demo.tasks.words import invented
from rose.chat.conversation import Message

_CATEGORIES: dict[Operation, str] = {"+": "add", "-": "subtract", "*": "multiply"}
_ADDITIVE: tuple[Operation, ...] = ("+", "-")
_KEYS = ("result", "answer", "value", "total", "number", "sum", "output", "solution",
         "x", "n", "res", "final", "response", "data")  # fmt: skip
_MANY_KEYS: dict[str, Operation] = {"sum": "+", "difference": "-", "product": "*"}


def plain(op: Operation) -> Callable[[Draft], Example]:
    """The builder of plain questions with one operation."""

    def build(draft: Draft) -> Example:
        problem = random_problem(draft.rng, draft.split, (op,))
        turns = [Message("user", question(draft.rng, problem))]
        reply = Reply(problem.equation, working(problem, draft.effort))
        return Example(_CATEGORIES[op], conversation(draft, turns), reply, "number")

    return build


def word_problem(draft: Draft) -> Example:
    """A short story with a sum in it."""
    rng = draft.rng

    def sample() -> Problem | None:
        problem = random_problem(rng, draft.split)
        return problem if problem.result >= 0 and min(problem.a, problem.b) > 1 else None

    problem = draw(draft.split, sample, lambda drawn: drawn.key)
    text = story(rng, problem)
    turns = [Message("user", text.text)]
    reply = Reply(text.answer, working(problem, draft.effort))
    return Example("word problem", conversation(draft, turns), reply, "text")


def _next_problem(rng: Random, result: int) -> Problem | None:
    """A problem that goes on from `result`, if a random one is in range."""
    op = rng.choice(OPERATIONS)
    problem = Problem(op, result, number(rng, 2 if op == "*" else 4))
    return problem if problem.in_range else None


def follow_up_question(draft: Draft) -> Example:
    """A second or third question that goes on from the last result, maybe after small talk."""
    rng = draft.rng
    messages: list[Message] = []
    if rng.random() < 0.2:
        text, reply = small_talk(Draft(rng, draft.effort, "train"))
        messages += [Message("user", text), reply.as_message()]

    def sample() -> list[Problem] | None:
        problems = [random_problem(rng, "train")]
        for _ in range(rng.choice((1, 1, 1, 2))):
            last = problems[-1].result
            problem = _next_problem(rng, last) if last >= 0 else None
            if problem is None:
                return None
            problems.append(problem)
        return problems

    problems = draw(draft.split, sample, lambda drawn: drawn[-1].key)
    for index, problem in enumerate(problems):
        text = follow_up(rng, problem.op, problem.b) if index else question(rng, problem)
        reply = Reply(problem.equation, working(problem, draft.effort))
        messages += [Message("user", text), reply.as_message()]
    return Example("follow-up", conversation(draft, messages[:-1]), reply, "number")


def second_question(draft: Draft) -> Example:
    """An unrelated sum after earlier turns: the earlier numbers must be left alone."""
    rng = draft.rng
    messages: list[Message] = []
    for _ in range(rng.choice((1, 1, 2))):
        first = random_problem(rng, "train")
        messages += [Message("user", question(rng, first)), Reply(first.equation).as_message()]
    problem = random_problem(rng, draft.split)
    messages.append(Message("user", question(rng, problem)))
    reply = Reply(problem.equation, working(problem, draft.effort))
    return Example("second question", conversation(draft, messages), reply, "number")


def three_terms(draft: Draft) -> Example:
    """A sum or difference of three numbers, one step after the other."""
    rng = draft.rng

    def sample() -> tuple[Problem, Problem] | None:
        first = random_problem(rng, "train", _ADDITIVE)
        second = Problem(rng.choice(_ADDITIVE), first.result, number(rng, 3))
        return (first, second) if second.in_range and min(first.result, second.result) >= 0 else None

    first, second = draw(draft.split, sample, lambda drawn: drawn[1].key)
    terms = f"{first.left} {second.op} {second.b}"
    if draft.effort == "low":
        steps = f"{first.equation}, {second.equation}"
    else:
        steps = "\n".join(working(problem, draft.effort) or "" for problem in (first, second))
    reply = Reply(f"{terms} = {second.result}", steps)
    return Example("three terms", conversation(draft, [Message("user", chain(rng, terms))]), reply, "number")


def number_only(draft: Draft) -> Example:
    """The bare number is asked for, by the user or by the developer."""
    rng = draft.rng
    problem = random_problem(rng, draft.split)
    demand = rng.choice(
        ("Answer with the number only.", "Only the number, please.", "Reply with just the number.", "Just the number.",
         "Give me only the number.", "Respond with the number only.", "Output only the number.")
    )  # fmt: skip
    text = question(rng, problem)
    if rng.random() < 0.3:
        draft.developer.append(demand)
    else:
        text = f"{demand} {text}" if rng.random() < 0.3 else f"{_sentence(text)} {demand}"
    reply = Reply(str(problem.result), working(problem, draft.effort) or problem.equation)
    return Example("number only", conversation(draft, [Message("user", text)]), reply, "text")


def json_answer(draft: Draft) -> Example:
    """The answer as a JSON object, with the key asked for, or `answer`."""
    rng = draft.rng
    problem = random_problem(rng, draft.split)
    text = question(rng, problem)
    key = rng.choice(_KEYS) if rng.random() < 0.5 else invented(rng)
    place = rng.random()
    if place < 0.3:
        key = "answer"
        text = _demand(rng, text, _BARE_DEMANDS)
    elif place < 0.6:
        text = _demand(rng, text, tuple(demand.format(key=_quoted(rng, key)) for demand in _KEY_DEMANDS))
    elif place < 0.75:
        key = "answer"
        draft.developer.append(rng.choice(_DEVELOPER_DEMANDS))
    elif place < 0.88:
        draft.developer.append(rng.choice(_KEY_DEMANDS).format(key=_quoted(rng, key)))
    else:
        draft.developer.append(_response_format(rng, key))
    reply = Reply(json.dumps({key: problem.result}), working(problem, draft.effort) or problem.equation)
    return Example("JSON answer", conversation(draft, [Message("user", text)]), reply, "json")


def json_many(draft: Draft) -> Example:
    """Several results of the same two numbers, each under its key."""
    rng = draft.rng
    ops = rng.sample(list(_MANY_KEYS), rng.choice((2, 2, 3)))

    def sample() -> dict[str, Problem]:
        size = 2 if "product" in ops else 3
        a, b = number(rng, size), number(rng, size)
        return {name: Problem(_MANY_KEYS[name], a, b) for name in ops}

    def key(problems: dict[str, Problem]) -> str | None:
        """One held-out problem keeps all of them out of training."""
        keys = [problem.key for problem in problems.values()]
        return next((key for key in keys if key and is_held_out(key)), keys[0])

    problems = draw(draft.split, sample, key)
    a, b = problems[ops[0]].a, problems[ops[0]].b
    names = f"{', '.join(ops[:-1])} and {ops[-1]}"
    text = rng.choice(
        (f"Give me the {names} of {a} and {b} as JSON.", f"For {a} and {b}: reply in JSON with the keys {names}.",
         f"Compute the {names} of {a} and {b}. Answer in JSON.", f"JSON with keys {names} for {a} and {b}")
    )  # fmt: skip
    steps = [
        f"{name}: " + (working(problem, "low" if draft.effort == "low" else "medium") or problem.equation)
        for name, problem in problems.items()
    ]
    content = json.dumps({name: problem.result for name, problem in problems.items()})
    reply = Reply(content, "\n".join(steps))
    return Example("JSON with several keys", conversation(draft, [Message("user", text)]), reply, "json")


def json_small_talk(draft: Draft) -> Example:
    """Small talk under a developer's demand for JSON."""
    draft.developer.append(draft.rng.choice(_DEVELOPER_DEMANDS))
    text, reply = small_talk(draft)
    reply = Reply(json.dumps({"answer": reply.content}), reply.reasoning)
    return Example("JSON small talk", conversation(draft, [Message("user", text)]), reply, "json")


_BARE_DEMANDS = (
    "Answer as JSON.", "Answer in JSON.", "Reply in JSON.", "As JSON, please.", "Respond with JSON.", "as json",
    "Give the answer as a JSON object.", "JSON only.", "Return JSON.", "Format the answer as JSON.", "in JSON",
)  # fmt: skip
_KEY_DEMANDS = (
    "Answer as JSON with the key {key}.", "Reply in JSON with the key {key}.", "Respond with JSON. Use the key {key}.",
    "Return a JSON object with the key {key}.", "as JSON with the key {key}", "JSON, key {key}.",
    "Answer in JSON, with the result under {key}.", "Give me a JSON object with one key, {key}.",
)  # fmt: skip
_DEVELOPER_DEMANDS = (
    "Always answer in JSON.", "Respond only with JSON.", "Answer with a JSON object.", "All answers must be JSON.",
    "Reply in JSON.", "Output JSON only.", "Every reply is a JSON object.", "Always respond in JSON.",
)  # fmt: skip


def _quoted(rng: Random, key: str) -> str:
    return rng.choice((key, key, f'"{key}"', f"'{key}'", f"`{key}`"))


def _sentence(text: str) -> str:
    return text if text[-1] in ".?!=" else f"{text}."


def _demand(rng: Random, text: str, demands: tuple[str, ...]) -> str:
    """The question and the demand, in either order."""
    demand = rng.choice(demands)
    if rng.random() < 0.2:
        return f"{_sentence(demand)} {text}"
    gap = rng.choice((" ", " ", "\n"))
    return f"{_sentence(text) if demand[0].isupper() else text.rstrip('.?!')}{gap}{demand}"


def _response_format(rng: Random, key: str) -> str:
    """A response format as Harmony writes one into the developer message."""
    schema: dict[str, object] = {
        "type": "object",
        "properties": {key: {"type": rng.choice(("integer", "number"))}},
        "required": [key],
    }
    if rng.random() < 0.5:
        schema["additionalProperties"] = False
    name = rng.choice(("answer", "result", "response_format", invented(rng)))
    text = json.dumps(schema, separators=(",", ":") if rng.random() < 0.5 else None)
    return f"# Response Formats\n\n## {name}\n\n{text}"
