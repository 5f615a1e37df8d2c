import json
from importlib.resources import files
from random import Random

import pytest

from demo.tasks.arithmetic import Problem
from demo.tasks.mixture import BUILDERS, EFFORTS, build, random_example
from demo.tasks.split import is_held_out
from demo.tasks.words import invented
from demo.verify_chats import chats


def _examples(split, count=40):
    rng = Random(0)
    for name in BUILDERS:
        for effort in EFFORTS:
            for _ in range(count):
                yield build(name, rng, split, effort)


@pytest.mark.parametrize("split", ["train", "held_out"])
def test_every_task_gives_a_fitting_reply(split):
    for example in _examples(split):
        reply = example.reply
        assert (reply.call is not None) == (example.grade == "call")
        assert bool(reply.content) != (reply.call is not None)
        if example.grade == "json":
            json.loads(reply.content)
        if reply.call is not None:
            tool = next(tool for tool in example.conversation.tools if tool.name == reply.call.name)
            assert set(tool.parameters["required"]) <= set(reply.call.arguments) <= set(tool.parameters["properties"])
            asked = " ".join(m.content for m in example.conversation.messages if m.role == "user").lower()
            for value in reply.call.arguments.values():
                if example.category != "calculator call":
                    assert str(value).lower() in asked, (value, asked)


def test_names_of_offered_tools_are_distinct():
    for example in _examples("train"):
        names = [tool.name for tool in example.conversation.tools]
        assert len(names) == len(set(names))


def test_the_same_randomness_gives_the_same_examples():
    assert [random_example(Random(i)) for i in range(50)] == [random_example(Random(i)) for i in range(50)]


def test_held_out_sums_are_never_asked_in_training():
    rng = Random(1)
    for _ in range(2000):
        for name in ("add", "subtract", "multiply"):
            example = build(name, rng, "train")
            left = example.reply.content.split(" = ")[0].split()
            problem = Problem({"×": "*"}.get(left[1], left[1]), int(left[0]), int(left[2]))
            assert problem.key is None or not is_held_out(problem.key)


def test_held_out_words_are_never_invented_in_training():
    rng = Random(2)
    assert not any(is_held_out(invented(rng)) for _ in range(5000))
    assert all(is_held_out(invented(rng, "held_out")) for _ in range(200))


def test_both_orders_of_a_sum_are_on_the_same_side():
    assert Problem("+", 12, 345).key == Problem("+", 345, 12).key
    assert Problem("-", 12, 345).key != Problem("-", 345, 12).key
    assert Problem("*", 7, 8).key is None


def test_the_chats_of_verify_are_what_the_tasks_make():
    path = files("rose").joinpath("assets", "verify", "chats.jsonl")
    assert path.read_text(encoding="utf-8").splitlines() == list(chats())
