"""`rose parse`, run in this process."""

import io
import json
import sys

import pytest

from rose.cli.main import app
from rose.errors import CheckpointError, ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_backend):
    folder = tmp_path_factory.mktemp("model")
    tiny_backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def rose_parse(model, capsys, tmp_path):
    def run(option: str, content: str | bytes, *more: str):
        source = tmp_path / "source"
        source.write_bytes(content if isinstance(content, bytes) else content.encode())
        app(["parse", "--model", str(model), option, str(source), *more], result_action="return_value")
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_text(rose_parse):
    sample = "<|channel|>analysis<|message|>é<|end|><|start|>assistant<|channel|>final<|message|><|what|><|return|>\n"
    assert rose_parse("--text", sample) == [
        {"reasoning": "é", "content": "<|what|>", "tool_calls": [], "finish_reason": "stop", "recovered": []}
    ]


@pytest.mark.parametrize("write", [json.dumps, lambda ids: " ".join(map(str, ids)) + "\n"])
def test_tokens(rose_parse, tiny, write):
    sample = '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"p":1}'
    ids = [*tiny.encode_with_special(sample), 10**9, -1]
    call = {"name": "tide", "arguments": '{"p":1}'}
    [answer] = rose_parse("--tokens", write(ids))
    assert (answer["tool_calls"], answer["finish_reason"]) == ([call], "tool_calls")
    [answer] = rose_parse("--tokens", write(ids), "--finish", "length")
    assert (answer["tool_calls"], answer["content"], answer["finish_reason"]) == ([], '{"p":1}', "length")


def test_jsonl_has_a_result_a_line(rose_parse, tiny):
    lines = [
        {"text": "<|channel|>final<|message|>a"},
        {"tokens": tiny.encode("b"), "finish": "stop"},
        {"tokens": []},
        {"text": "d", "tokens": None, "finish": None},
    ]
    answers = rose_parse("--jsonl", "\n".join(map(json.dumps, lines)) + "\n\n", "--finish", "length")
    assert [(answer["content"], answer["finish_reason"]) for answer in answers] == [
        ("a", "length"),
        ("b", "stop"),
        ("", "length"),
        ("d", "length"),
    ]


def test_standard_input(model, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("é".encode())))
    app(["parse", "--model", str(model / "tokenizer.json"), "--text", "-"], result_action="return_value")
    assert json.loads(capsys.readouterr().out)["content"] == "é"


@pytest.mark.parametrize(
    ("option", "content"),
    [
        ("--tokens", "1 2 x"),
        ("--tokens", "[1, 2.5]"),
        ("--tokens", "[1, [2]]"),
        ("--tokens", "[1, true]"),
        ("--tokens", "[" * 100_000),
        ("--text", b"\xff"),
        ("--jsonl", "{"),
        ("--jsonl", "[1]"),
        ("--jsonl", "{}"),
        ("--jsonl", "[" * 100_000),
        ("--jsonl", '{"text": null, "tokens": null}'),
        ("--jsonl", '{"tokens": "1"}'),
        ("--jsonl", '{"text": 1}'),
        ("--jsonl", '{"text": "a", "finish": "soon"}'),
    ],
)
def test_a_malformed_file_is_one_line(rose_parse, option, content):
    with pytest.raises(ConfigError) as error:
        rose_parse(option, content)
    assert "\n" not in str(error.value)
    assert "source" in str(error.value)


def test_a_folder_in_the_way_does_not_hide_a_bundled_model(tmp_path, monkeypatch, capsys):
    """As for every other command."""
    (tmp_path / "rose-demo").mkdir()
    (tmp_path / "ids").write_text("[]")
    monkeypatch.chdir(tmp_path)
    app(["parse", "--model", "rose-demo", "--tokens", "ids"], result_action="return_value")
    assert json.loads(capsys.readouterr().out)["content"] == ""


@pytest.mark.parametrize("options", [[], ["--text", "a", "--tokens", "b"], ["--text", "missing"], ["--text", "."]])
def test_options_that_cannot_work(model, options):
    with pytest.raises(ConfigError):
        app(["parse", "--model", str(model), *options], result_action="return_value")


def test_a_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "ids").write_text("1")
    with pytest.raises(CheckpointError, match="no such tokenizer"):
        app(["parse", "--model", str(tmp_path), "--tokens", str(tmp_path / "ids")], result_action="return_value")
