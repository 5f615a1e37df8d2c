"""How agreement is measured, and whose answers are compared."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.weights.agreement import NEAR_TIE, AgreementMeter, Text, compare, distinct_contexts, greedy_answers
from rose.weights.checkpoint import Checkpoint
from rose.weights.loader import load_model
from rose.weights.oracle import reference_oracle
from tests.checkpoints import TinyShape, write_checkpoint


def test_a_hand_computed_agreement():
    other = torch.tensor([[0.0, 1.0], [0.0, 0.2], [3.0, 0.0], [0.0, 5.0]])
    ours = torch.tensor([[0.0, 1.0], [0.3, 0.2], [0.0, 3.0], [0.0, 4.0]])
    meter = AgreementMeter()
    assert meter.result() is None
    meter.add(ours[:1], other[:1])
    meter.add(ours[:0], other[:0])
    meter.add(ours[1:], other[1:])
    agreement = meter.result()
    assert (agreement.num_positions, agreement.num_different, agreement.num_near_ties) == (4, 2, 1)
    assert agreement.top1 == 0.5
    assert agreement.max_abs == 3
    assert agreement.rms == pytest.approx(((0.3**2 + 9 + 9 + 1) / 8) ** 0.5)
    assert agreement.relative_rms == pytest.approx(((0.09 + 19) / (2 * (0.5**2 + 0.1**2 + 1.5**2 + 2.5**2))) ** 0.5)
    p, q = other.softmax(-1), ours.softmax(-1)
    assert agreement.mean_kl == pytest.approx(float((p * (p / q).log()).sum() / 4), rel=1e-5)


def test_a_near_tie_is_the_others():
    """How far apart the two are where the comparison is with, not in the model that is measured."""
    meter = AgreementMeter()
    meter.add(torch.tensor([[0.0, 9.0]]), torch.tensor([[NEAR_TIE * 0.9, 0.0]]))
    meter.add(torch.tensor([[0.0, 0.01]]), torch.tensor([[NEAR_TIE * 1.1, 0.0]]))
    assert (meter.result().num_different, meter.result().num_near_ties) == (2, 1)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), max_size=8))
def test_distinct_contexts(all_ids):
    seen = set()
    for ids, is_new in zip(all_ids, distinct_contexts([Text(ids, 1) for ids in all_ids]), strict=True):
        beginnings = [tuple(ids[: end + 1]) for end in range(len(ids))]
        assert is_new == [beginning not in seen for beginning in beginnings]
        seen.update(beginnings)


def test_answers_and_prompts_are_told_apart():
    """The row of a prompt's last token decides the answer's first, and the last row decides nothing."""
    texts = [Text([1, 2, 3, 4, 0], 3), Text([1, 2, 5], 3), Text([1, 2, 3, 4, 0], 3)]
    other = [torch.eye(6)[torch.tensor([2, 3, 4, 0])], torch.eye(6)[torch.tensor([2, 5])], torch.zeros(4, 6)]

    def ours(text):
        rows = torch.eye(6)[torch.tensor([*text.token_ids[1:], 0])]
        if len(text.token_ids) == 5:
            rows[1] = torch.tensor([0, 0, 0, 0, 0, 9.0])  # in the prompt
        return rows

    comparison = compare(ours, [other, other], texts)
    assert (comparison.same_answers, comparison.num_answers) == (2, 2)
    for answers, prompts in zip(comparison.answers, comparison.prompts, strict=True):
        # The last text begins like the first throughout, so its logits of zero are not looked at.
        assert (answers.num_positions, answers.num_different) == (2, 0)
        assert (prompts.num_positions, prompts.num_different, prompts.max_abs) == (2, 1, 9)


@pytest.mark.parametrize("draft_seed", [0, 1])
def test_the_answers_are_the_oracles_whoever_drafts(draft_seed, tmp_path):
    shape = TinyShape(vocab_size=300, num_layers=2)
    folder = write_checkpoint(tmp_path / "model", shape)
    other = write_checkpoint(tmp_path / "draft", shape, seed=draft_seed)
    oracle = reference_oracle(Checkpoint(folder))
    draft = load_model(other, device="cpu", dtype=torch.float32)
    prompts = [[7, 8, 9], [250], [3, 1, 4, 1, 5]]
    num_passes = 0

    def counted(texts):
        nonlocal num_passes
        num_passes += 1
        return oracle(texts)

    def step_by_step(prompt, stop_ids):
        answer = []
        while len(answer) < 6 and not (answer and answer[-1] in stop_ids):
            answer.append(int(oracle([prompt + answer])[0][-1].argmax()))
        return answer

    free = [step_by_step(prompt, ()) for prompt in prompts]
    stop_ids = {free[0][3], free[2][0]}
    texts, logits = greedy_answers(counted, draft, prompts, 6, stop_ids)
    assert [text.answer for text in texts] == [step_by_step(prompt, stop_ids) for prompt in prompts]
    assert num_passes == 1 if draft_seed == 0 else num_passes > 1
    for text, prompt, rows in zip(texts, prompts, logits, strict=True):
        assert text.token_ids[: text.num_prompt_tokens] == prompt
        assert torch.allclose(rows, oracle([text.token_ids])[0][:-1], atol=1e-5)
