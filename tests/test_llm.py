"""The offline API and the command around it, on the fake model."""

import io
import json
import re
from pathlib import Path

import pytest

from rose.cli import generate as command
from rose.engine.sampling_params import SamplingParams
from rose.errors import EngineDead, RequestError
from rose.llm import LLM
from tests.engine.engines import GREEDY, check_tokens
from tests.fake_model import FakeModel


class LetterTokenizer:
    """Ids 0 ... 25 are the letters a ... z."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + token_id) if token_id < 26 else "?" for token_id in ids)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LLM:
    def load(name: str, **_: object) -> FakeModel:
        return FakeModel()

    monkeypatch.setattr("rose.engine.worker.worker.load_model", load)
    monkeypatch.setattr("rose.engine.worker.worker.resolve_tokenizer", lambda *_: tmp_path)
    monkeypatch.setattr("rose.llm._find_tokenizer", lambda *_: LetterTokenizer())
    return LLM("fake", device="cpu")


def test_texts_and_ids_together(llm: LLM) -> None:
    first, second = llm.generate(["abc", [3, 4]], GREEDY)
    assert (first.prompt, first.prompt_token_ids) == ("abc", [0, 1, 2])
    assert (second.prompt, second.prompt_token_ids) == (None, [3, 4])
    for generation in (first, second):
        [completion] = generation.outputs
        check_tokens(FakeModel(), generation.prompt_token_ids, completion.token_ids, GREEDY)
        assert completion.text == LetterTokenizer().decode(completion.token_ids)
        assert completion.finish_reason == "length"


@pytest.mark.parametrize("prompts", ["abc", ["abc"], [0, 1, 2], [[0, 1, 2]]])
def test_one_prompt_in_every_form(llm: LLM, prompts: list[int]) -> None:
    [generation] = llm.generate(prompts, GREEDY)
    assert generation.prompt_token_ids == [0, 1, 2]


def test_progress_is_passed_on() -> None:
    seen: list[tuple[int, int]] = []
    LLM("fake", device="cpu", load_format="tests.fake_model:load", progress=lambda *bytes_: seen.append(bytes_)).close()
    assert seen == [(0, 10), (10, 10)]


def test_no_prompts(llm: LLM) -> None:
    assert llm.generate([]) == []


def test_params_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(max_tokens=2, n=3, seed=1), SamplingParams(max_tokens=5, logprobs=1)]
    first, second = llm.generate(["abc", "abd"], params)
    assert [(c.index, len(c.token_ids)) for c in first.outputs] == [(0, 2), (1, 2), (2, 2)]
    assert second.outputs[0].logprobs is not None
    assert len(second.outputs[0].logprobs) == 5
    with pytest.raises(RequestError, match="1 sampling_params for 2 prompts"):
        llm.generate(["a", "b"], params[:1])


def test_a_bad_prompt_leaves_the_others_alone(llm: LLM) -> None:
    bad, good = llm.generate([[0] * 500, "abc"], GREEDY)
    assert bad.outputs[0].finish_reason == "error"
    assert bad.outputs[0].error is not None
    assert "500" in bad.outputs[0].error
    assert good.outputs[0].finish_reason == "length"


def test_bad_params_and_options_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="temperature"):
        llm.generate("abc", SamplingParams(temperature=-1))
    with pytest.raises(TypeError, match="max_length"):
        LLM("fake", max_length=3)


def test_an_interrupt_leaves_nothing_open(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm._core, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("abc")
    [generation] = llm.generate("abc", GREEDY)
    assert generation.outputs[0].finish_reason == "length"


def test_closing(llm: LLM) -> None:
    with llm:
        llm.generate("abc", GREEDY)
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("abc")
    with pytest.raises(EngineDead, match="closed"):
        llm.info  # noqa: B018


def test_a_model_without_a_tokenizer_takes_ids() -> None:
    with LLM("fake", device="cpu", load_format="tests.fake_model:load") as llm:
        assert llm.generate([1, 2], GREEDY)[0].outputs[0].text is None
        with pytest.raises(RequestError, match="token ids"):
            llm.generate("abc")
        assert llm.generate([1, 2], GREEDY)[0].outputs[0].finish_reason == "length"


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_generate_prints_json_lines(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    command.generate(
        "fake", prompt=["abc", "b"], max_tokens=3, n=2, seed=1, logprobs=1, prompt_logprobs=0, device="cpu"
    )
    rows = lines_of(capsys)
    assert [(row["index"], row["completion"], row["prompt"]) for row in rows] == [
        (0, 0, "abc"),
        (0, 1, "abc"),
        (1, 0, "b"),
        (1, 1, "b"),
    ]
    [expected] = llm.generate("abc", SamplingParams(max_tokens=3, seed=1))
    assert rows[0]["token_ids"] == expected.outputs[0].token_ids
    assert rows[0]["text"] == expected.outputs[0].text
    assert rows[0]["finish_reason"] == "length"
    assert isinstance(rows[0]["logprobs"], list)
    assert [len(row["prompt_logprobs"]) for row in rows] == [
        2,
        2,
        0,
        0,
    ]  # a token a letter, and nothing foretells the first


def test_generate_reads_files_and_standard_input(
    llm: LLM, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = '{"prompt": "abc"}\n\n{"prompt_token_ids": [0, 1, 500]}\n'
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    with pytest.raises(SystemExit, match="1"):  # a completion failed
        command.generate("fake", input=file, max_tokens=2, device="cpu")
    first, second = lines_of(capsys)
    assert first["prompt"] == "abc"
    assert second["finish_reason"] == "error"
    assert "500" in str(second["error"])
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    with pytest.raises(SystemExit, match="1"):
        command.generate("fake", input=Path("-"), max_tokens=2, device="cpu")
    assert len(lines_of(capsys)) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("abc\n"))
    command.generate("fake", max_tokens=2, device="cpu")
    [row] = lines_of(capsys)
    assert row["prompt"] == "abc"


@pytest.mark.parametrize("line", ['{"text": 1}', "{", '{"prompt_token_ids": [true]}', '"abc"'])
def test_generate_names_a_bad_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(RequestError, match="line 2"):
        command.generate("fake", input=file)


def test_generate_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot read"):
        command.generate("fake", input=tmp_path / "nothing")
    with pytest.raises(RequestError, match="use one of them"):
        command.generate("fake", prompt=["a"], input=tmp_path)


def test_the_bundled_model_follows_a_grammar() -> None:
    with LLM("rose-demo", device="cpu", num_blocks=64) as llm:
        params = SamplingParams(grammar='start: "yes" | "no, " /[0-9]{3}/', max_tokens=20, seed=3, n=4)
        [generation] = llm.generate("Is it so?", params)
    for completion in generation.outputs:
        assert completion.finish_reason == "stop"
        assert re.fullmatch(r"yes|no, \d{3}", completion.text or "")
