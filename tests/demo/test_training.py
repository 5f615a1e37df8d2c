from random import Random

import numpy as np
import torch

from demo.config import DemoConfig
from demo.dataset import DOCUMENT_SHIFT, WEIGHT_SHIFT, batches, pack
from demo.evaluate import is_right, request_body
from demo.held_out import Problem, as_table, grade
from demo.model import DemoModel
from demo.targets import Encoded, Encoder
from demo.tasks.example import Call, Example, Reply
from demo.tasks.mixture import build
from demo.train import loss_of
from rose.chat.conversation import Conversation, Message


def test_packing_keeps_every_token_and_marks_the_targets():
    examples = [Encoded([7] * n, [n, 9]) for n in (3, 20, 11, 40, 1)]
    rows = pack(examples, row_length=24, pad_id=0)
    tokens, documents, weights = rows & 0xFFFF, rows >> DOCUMENT_SHIFT & 0xFF, rows >> WEIGHT_SHIFT
    assert rows.shape[1] == 24 and (rows >= 0).all()
    found = sorted(
        tokens[row][documents[row] == number].tolist()
        for row in range(len(rows))
        for number in set(documents[row]) - {0}
    )
    assert found == sorted(example.prompt + example.target for example in examples if len(example) <= 24)
    assert ((weights > 0) == ((documents > 0) & (tokens != 7))).all()


def test_short_replies_weigh_more_per_token():
    rows = pack([Encoded([1], [2] * 10), Encoded([1], [3] * 100)], row_length=120, pad_id=0)
    weights = (rows >> WEIGHT_SHIFT)[(rows & 0xFFFF) == 2], (rows >> WEIGHT_SHIFT)[(rows & 0xFFFF) == 3]
    assert weights[0].min() > weights[1].max() > 0


def test_batches_are_of_one_shape_and_reproducible(tokenizer_folder):
    first, second = (batches(str(tokenizer_folder), 5, num_rows=8, row_length=512) for _ in range(2))
    for _ in range(3):
        batch = next(first)
        assert batch.shape == (8, 512) and np.array_equal(batch, next(second))


def test_a_few_steps_lower_the_loss_and_a_learned_reply_is_graded_right(tokenizer):
    encode = Encoder(tokenizer)
    example = encode(build("small talk", Random(0), "train", "low"))
    rows = torch.from_numpy(pack([example], row_length=256, pad_id=0)).long()
    model = DemoModel(DemoConfig(hidden_size=64, num_layers=2, num_q_heads=2, num_kv_heads=1, intermediate_size=64))
    model.initialize()
    problem = Problem("small talk", "low", example)
    assert grade(model, [problem])["small talk"]["low"] == 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        loss, entropy = loss_of(model, rows, 0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(entropy.item())
    assert losses[-1] < 0.2 < losses[0]
    results = grade(model, [problem])
    assert results["small talk"]["low"] == 1
    assert "| small talk | 100.0 |  |  |" in as_table(results)


def _example(reply, grade):
    return Example("x", Conversation((Message("user", "?"),)), reply, grade)


def test_answers_from_the_api_are_graded_by_what_they_say():
    number = _example(Reply("5 - 8 = -3"), "number")
    assert is_right(number, {"content": "It is 5 - 8 = -3"})
    assert is_right(number, {"content": "-3"})
    assert not is_right(number, {"content": "5 - 8 = 3"})
    assert not is_right(number, {"content": None})
    assert is_right(_example(Reply("8 - 3 = 5"), "number"), {"content": "8 - 3 = 5"})
    assert is_right(_example(Reply('{"answer": 5}'), "json"), {"content": '{ "answer":5 }'})
    assert not is_right(_example(Reply('{"answer": 5}'), "json"), {"content": "5"})
    call = _example(Reply(call=Call("f", {"a": 1})), "call")
    assert is_right(call, {"tool_calls": [{"function": {"name": "f", "arguments": '{"a":1}'}}]})
    assert not is_right(call, {"tool_calls": [{"function": {"name": "g", "arguments": '{"a":1}'}}]})
    assert not is_right(call, {"content": "f"})


def test_a_conversation_becomes_a_request():
    example = build("tool answer", Random(0), "held_out", "high")
    body = request_body(example.conversation, "rose-demo")
    assert body["reasoning_effort"] == "high" and body["temperature"] == 0
    assert body["messages"][-1]["role"] == "tool"
    assert body["messages"][-2]["tool_calls"][0]["id"] == body["messages"][-1]["tool_call_id"]
    assert {tool["type"] for tool in body["tools"]} == {"function"}
