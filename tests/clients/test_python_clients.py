"""Clients from PyPI."""

import asyncio
import json
import subprocess
from pathlib import Path

import httpx
import pytest

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from rose.server.builtin_tools.config import McpAddress, ToolSettings
from rose.server.builtin_tools.web_search import find_tools
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.clients.conftest import KEY, SCRIPTS, installed, run, run_script
from tests.clients.environments import python_environment
from tests.fakes import FakeEngine, Step, by_token
from tests.server.builtin_tools.serving import mcp_server
from tests.server.live import live_server

pytestmark = pytest.mark.timeout(1500)


def test_openai_agents(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "openai-agents", "openai-agents==0.24.0")
    answers = run_script(bin_folder / "python", SCRIPTS / "openai_agents.py", demo, cwd=tmp_path)
    assert answers["calls"] == ["Paris"] * 4, "one in each of two runs over each API"
    loop = ["ReasoningItem", "ToolCallItem", "ToolCallOutputItem", "ReasoningItem", "MessageOutputItem"]
    for api in ("responses", "chat"):
        answer = answers[api]
        assert answer["whole"] == "Paris: temperature 21, sky clear"
        assert answer["streamed"] == [answer["whole"]] * 2
        assert answer["items"] == answer["streamed_items"] == loop
        assert answer["typed"] == 512


def test_openai_agents_with_tools_of_the_server(tmp_path: Path) -> None:
    """The engine is scripted, for the bundled model calls no such tools; the tools are real."""
    bin_folder = installed(python_environment, "openai-agents", "openai-agents==0.24.0")
    tokenizer = Tokenizer(tiny_tokenizer())
    turns = [
        "<|channel|>analysis to=python code<|message|>print(4)<|call|>",
        '<|channel|>analysis to=browser.search code<|message|>{"query": "Oban"}<|call|>',
        "<|channel|>final<|message|>High at 4.<|return|>",
    ]

    def script(request: AddRequest) -> list[Step]:
        prompt = tokenizer.decode(request.prompt_token_ids, keep_special=True)
        num_results = prompt.rpartition("<|start|>user")[2].count(" to=assistant")
        return by_token(tokenizer.encode_with_special(turns[num_results]))

    with mcp_server() as url:
        search = asyncio.run(find_tools(McpAddress(url), {}))
        with live_server(FakeEngine(script), tokenizer, tools=ToolSettings("limits", search)) as server:
            script_file = SCRIPTS / "openai_agents_tools.py"
            answers = run_script(bin_folder / "python", script_file, server.url, cwd=tmp_path)
    assert answers["items"] == answers["streamed_items"] == ["code_interpreter_call", "web_search_call", "message"]
    assert answers["texts"] == ["High at 4."] * 3


def test_langchain(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "langchain-openai", "langchain-openai==1.7.4")
    answers = run_script(bin_folder / "python", SCRIPTS / "langchain.py", demo, cwd=tmp_path)
    assert set(answers) == {"responses", "chat"}
    for answer in answers.values():
        assert answer["text"] == answer["streamed"] == "127 + 385 = 512"
        assert answer["object"] == 512
        assert answer["calls"] == [{"city": "Paris"}]
        assert "21" in answer["after_tool"]


def test_instructor(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "instructor", "instructor==1.17.0")
    answers = run_script(bin_folder / "python", SCRIPTS / "instructor_sdk.py", demo, cwd=tmp_path)
    assert answers["JSON_SCHEMA"] == 512
    # Forced to call a function that is none, the bundled model fills in a number of the question.
    assert all(isinstance(answers[mode], int) for mode in ("TOOLS", "RESPONSES_TOOLS")), answers


def test_llm(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "llm", "llm==0.36")
    (tmp_path / "extra-openai-models.yaml").write_text(
        "- model_id: rose\n  model_name: rose-demo\n"
        f'  api_base: "{demo}/v1"\n'
        "  api_key_name: rose\n  supports_tools: true\n  supports_schema: true\n  reasoning: true\n"
    )

    def ask(*arguments: str) -> str:
        command = [bin_folder / "llm", "-m", "rose", "--key", KEY, "-o", "temperature", "0", *arguments]
        return run(command, cwd=tmp_path, LLM_USER_PATH=str(tmp_path))

    assert "512" in ask("What is 127 + 385?")
    assert "512" in ask("--no-stream", "What is 127 + 385?")
    tool = 'def get_weather(city: str) -> str:\n    "The weather in a city."\n    return "temperature 21, sky clear"'
    assert "21" in ask("--functions", tool, "What is the weather in Paris?")
    assert "512" in ask("--schema", "answer int", "What is 127 + 385?")


def test_litellm(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "litellm", "litellm==1.110.2")
    answers = run_script(bin_folder / "python", SCRIPTS / "litellm_sdk.py", demo, cwd=tmp_path)
    for provider in ("openai", "hosted_vllm"):
        answer = answers[provider]
        assert answer["text"] == answer["streamed"] == "127 + 385 = 512"
        assert "512" in answer["reasoning"]
        assert answer["usage"] > 0
        assert answer["call"] == ["get_weather", {"city": "Paris"}]
        assert "21" in answer["final"]
        assert json.loads(answer["object"]) == {"answer": 512}
    assert answers["anthropic"] == "127 + 385 = 512"
    assert answers["responses"] == ["127 + 385 = 512"]
    assert answers["responses_streamed"] == "127 + 385 = 512"
    body = {"prompt": "127 + 385 =", "max_tokens": 4, "temperature": 0}
    direct = httpx.post(f"{demo}/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"}).json()
    assert answers["completion"] == [direct["choices"][0]["text"], 4]


AIDER = (
    *("--model", "openai/rose-test", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes"),
    *("--analytics-disable", "--yes-always", "--no-auto-commits", "--no-gitignore", "--no-pretty", "--map-tokens", "0"),
)


def aider(*arguments: str, url: str, cwd: Path) -> str:
    """What aider prints."""
    bin_folder = installed(python_environment, "aider", "aider-chat==0.86.2")
    env = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return run([bin_folder / "aider", *AIDER, *arguments], cwd=cwd, **env)


def test_aider_asks(demo: str, tmp_path: Path) -> None:
    """The bundled model understands aider's shortest prompt."""
    question = ("--model", "openai/rose-demo", "--chat-mode", "ask", "--no-git", "--message", "What is 127 + 385?")
    thinking, _, answer = aider(*question, url=demo, cwd=tmp_path).partition("ANSWER")
    assert "THINKING" in thinking
    assert "2+8+1=11" in thinking
    assert "127 + 385 = 512" in answer


def test_aider_edits(tmp_path: Path) -> None:
    """A file written anew. The engine plays a script, for the bundled model cannot program."""
    tokenizer = Tokenizer(tiny_tokenizer())
    file = tmp_path / "greet.py"
    file.write_text("print('hello')\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    reply = (
        "<|channel|>analysis<|message|>Make it casual.<|end|><|start|>assistant"
        "<|channel|>final<|message|>greet.py\n```\nprint('hey')\n```\n<|return|>"
    )

    def script(_: AddRequest) -> list[Step]:
        return by_token(tokenizer.encode_with_special(reply))

    engine = FakeEngine(script, max_model_len=200_000)
    with live_server(engine, tokenizer, api_keys=(KEY,)) as server:
        said = aider("--message", "Be more casual.", "greet.py", url=server.url, cwd=tmp_path)
    assert "Make it casual." in said, "the reasoning is shown"
    assert file.read_text() == "print('hey')\n"
    assert "print('hello')" in tokenizer.decode(engine.submitted[0].prompt_token_ids)
