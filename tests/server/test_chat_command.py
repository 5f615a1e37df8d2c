"""`rose chat` against a server."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from rose.chat.tokenizer import Tokenizer
from rose.cli.chat import ChatError, ChatServer, ChatSession, _command, chat, read_sse, read_tools
from rose.engine.messages import RequestFailure
from tests.fakes import FakeEngine, by_token
from tests.server.live import LiveServer, live_server

THINK = "<|channel|>analysis<|message|>Need the tide.<|end|><|start|>assistant"
ANSWER = THINK + "<|channel|>final<|message|>High at 4.<|return|>"


@pytest.fixture
def server(tokenizer: Tokenizer) -> Iterator[LiveServer]:
    steps = by_token(tokenizer.encode_with_special(ANSWER))
    with live_server(FakeEngine(lambda _: steps), tokenizer, api_keys=("sk",)) as running:
        yield running


def test_one_answer_on_a_pipe_is_the_content_alone(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    chat("tide?", base_url=server.url, api_key="sk", effort="high", temperature=0.0, max_tokens=64)
    assert capsys.readouterr().out == "High at 4.\n"
    assert server.engine.submitted[0].sampling_params.max_tokens == 64


def test_text_on_standard_input(
    server: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("tide at Oban?\n"))
    chat(base_url=f"{server.url}/v1", api_key="sk", system="Be brief.")
    assert capsys.readouterr().out == "High at 4.\n"
    prompt = tokenizer.decode(server.engine.submitted[0].prompt_token_ids)
    assert "tide at Oban?" in prompt
    assert "Be brief." in prompt
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(ChatError, match="nothing to say"):
        chat()


def test_a_call_on_a_pipe_is_told(tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine(lambda _: by_token(tokenizer.encode_with_special(CALL)))
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    with live_server(engine, tokenizer) as running:
        chat("tide?", base_url=f"{running.url}/v1", tools=tmp_path / "tools.json")
    assert capsys.readouterr().out == 'tide {"at": "[Oban]"}\n'


CALL = THINK + '<|channel|>commentary to=functions.tide <|constrain|>json<|message|>{"at": "[Oban]"}<|call|>'
TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}]


def test_on_a_terminal_reasoning_is_dim_and_calls_wait_for_their_results(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([CALL, ANSWER])
    engine = FakeEngine(lambda _: by_token(tokenizer.encode_with_special(next(answers))))
    typed = iter(["tide at Oban?", "4 pm", "/quit"])
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", highlight=False, soft_wrap=True)
    monkeypatch.setattr(console, "input", lambda prompt: screen.write(prompt) and next(typed))
    monkeypatch.setattr("rose.cli.chat.Console", lambda **_: console)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    with live_server(engine, tokenizer) as running:
        chat(base_url=f"{running.url}/v1", tools=tmp_path / "tools.json")
    shown = screen.getvalue()
    assert "\x1b[2;3mN" in shown, "dim and italic"
    plain = Text.from_ansi(shown).plain
    assert 'tide {"at": "[Oban]"}' in plain
    assert "tide gives>" in plain
    assert "High at 4." in plain
    assert re.search(r"\[\d+ tokens, [\d.]+ tokens/s, first after \d+ ms\]", plain)
    first, second = (tokenizer.decode(request.prompt_token_ids) for request in engine.submitted)
    assert "type tide" in first
    assert second.startswith(first)
    assert second.endswith("functions.tide to=assistantcommentary4 pmassistant")
    assert "Need the tide." in second, "the reasoning goes back with the call it led to"


@pytest.mark.parametrize("text", ["[", "{}"])
def test_tools_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(text)
    with pytest.raises(ChatError, match=r"tools\.json"):
        read_tools(tmp_path / "tools.json")


def test_failures_are_one_line(server: LiveServer, tokenizer: Tokenizer) -> None:
    with pytest.raises(ChatError, match=r"401.*API keys"):
        chat("hi", base_url=f"{server.url}/v1", api_key="wrong")
    with pytest.raises(ChatError, match=r"404.*'nope'"):
        chat("hi", base_url=f"{server.url}/v1", api_key="sk", model="nope")
    with pytest.raises(ChatError, match="start a server with `rose serve MODEL`"):
        chat("hi", base_url="http://127.0.0.1:9/v1")
    steps = [tokenizer.encode_with_special("<|channel|>final<|message|>a"), RequestFailure(message="no room")]
    with live_server(FakeEngine(lambda _: steps), tokenizer) as failing, pytest.raises(ChatError, match="no room"):
        chat("hi", base_url=f"{failing.url}/v1")


def test_commands() -> None:
    session = ChatSession(ChatServer(None, ""), "m", "medium", messages=[{"role": "user", "content": "hi"}])  # type: ignore[arg-type]
    _command(session, "/effort high")
    _command(session, "/effort huge")
    assert (session.effort, len(session.messages)) == ("high", 1)
    _command(session, "/system Be brief.")
    assert (session.system, session.messages) == ("Be brief.", [])


def test_reading_server_sent_events() -> None:
    lines = [": keep-alive", "", "event: x", "data: one", "data:two", "", "", "data: [DONE]", "", "data: after", ""]
    assert list(read_sse(iter(lines))) == ["one\ntwo"]
