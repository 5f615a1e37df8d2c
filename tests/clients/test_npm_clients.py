"""Clients from npm."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.clients.conftest import KEY, SCRIPTS, installed, run, run_script
from tests.clients.environments import npm_folder
from tests.fakes import FakeEngine, Step, by_token
from tests.server.live import live_server

pytestmark = pytest.mark.timeout(1500)

THINK = "<|channel|>analysis<|message|>Let me run it.<|end|>"
FINAL = "<|channel|>final<|message|>It printed what it should.<|return|>"
CODEX_PROVIDER = """
[model_providers.rose]
name = "rose"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "ROSE_KEY"
request_max_retries = 0
stream_max_retries = 0
"""
# What makes Codex's prompt short enough for the bundled model.
CODEX_WITH_LITTLE_TO_SAY = """
model_instructions_file = "brief.md"
web_search = "disabled"
include_permissions_instructions = false
include_environment_context = false
features = {shell_tool = false, unified_exec = false, goals = false}
agents = {enabled = false}
skills = {include_instructions = false}
"""
# The bundled model is not up to opencode's own prompt and tools: this agent has a short prompt and one tool.
WEATHER_AGENT = {
    "agent": {
        "weather": {
            "mode": "primary",
            "prompt": "Be brief.",
            "temperature": 0,
            "tools": {"*": False, "get_weather": True},
        }
    },
    "mcp": {"get": {"type": "local", "command": [sys.executable, str(SCRIPTS / "mcp_weather.py")]}},
}


def call(tool: str, **arguments: str) -> str:
    """A call as the model writes it, after some reasoning."""
    header = f"<|start|>assistant<|channel|>commentary to=functions.{tool} <|constrain|>json<|message|>"
    return f"{THINK}{header}{json.dumps(arguments)}<|call|>"


def opencode(*arguments: str, url: str, model: str, cwd: Path, **config: Any) -> list[dict[str, Any]]:
    """The parts of the events that `opencode run` reports."""
    bin_folder = installed(npm_folder, "opencode", "opencode-ai@1.18.33") / "node_modules" / ".bin"
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {model: {"tool_call": True, "temperature": True, "limit": {"context": 131072, "output": 2048}}},
    }
    settings = {"autoupdate": False, "share": "disabled", "model": f"rose/{model}", "small_model": f"rose/{model}"}
    (cwd / "opencode.json").write_text(json.dumps(settings | {"provider": {"rose": provider}} | config))
    offline = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    said = run([bin_folder / "opencode", "run", "--format", "json", *arguments], cwd=cwd, **offline)
    return [event["part"] for event in map(json.loads, said.splitlines())]


def texts(parts: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def test_ai_sdk(demo: str) -> None:
    packages = ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7")
    folder = installed(npm_folder, "ai-sdk", *packages)
    answers = run_script(shutil.which("node") or "node", SCRIPTS / "ai_sdk.mjs", demo, cwd=folder)
    assert set(answers) == {"responses", "chat", "compatible"}
    for answer in answers.values():
        assert all("21" in text for text in answer["texts"]), answers
        assert answer["calls"] == [{"city": "Paris"}]
        assert answer["objects"] == [{"answer": 512}] * 2


def test_openai_agents(demo: str) -> None:
    packages = ("@openai/agents@0.20.0", "openai@7.59.0", "zod@4.6.7")
    folder = installed(npm_folder, "openai-agents-js", *packages)
    answers = run_script(shutil.which("node") or "node", SCRIPTS / "openai_agents.mjs", demo, cwd=folder)
    assert set(answers) == {"responses", "chat"}
    for answer in answers.values():
        assert answer["calls"] == ["Paris", "Paris"], "one in each of two runs"
        assert answer["whole"] == answer["streamed"] == "Paris: temperature 21, sky clear"
        assert answer["items"] == [
            *("reasoning_item", "tool_call_item", "tool_call_output_item"),
            *("reasoning_item", "message_output_item"),
        ]
        assert answer["typed"] == {"answer": 512}


def test_opencode(demo: str, tmp_path: Path) -> None:
    """A sum, and a tool loop over MCP."""

    def ask(question: str) -> list[dict[str, Any]]:
        question_to = ("--agent", "weather", question)
        return opencode(*question_to, url=demo, model="rose-demo", cwd=tmp_path, **WEATHER_AGENT)

    assert texts(ask("What is 127 + 385?")) == ["127 + 385 = 512"]
    parts = ask("What is the weather in Paris?")
    [used] = [part for part in parts if part["type"] == "tool"]
    assert (used["tool"], used["state"]["status"]) == ("get_weather", "completed")
    assert used["state"]["input"] == {"city": "Paris"}
    assert texts(parts) == ["Paris: temperature 21, sky clear"]


def test_opencodes_own_tools(tmp_path: Path) -> None:
    """Its own prompt and all its tools. The engine plays a script, for the bundled model knows no shell."""
    tokenizer = Tokenizer(tiny_tokenizer())

    def script(request: AddRequest) -> list[Step]:
        prompt = tokenizer.decode(request.prompt_token_ids)
        needs_call = "namespace functions" in prompt and "functions.bash to=assistant" not in prompt
        reply = (
            call("bash", command="echo out-of-the-shell", description="Prints")
            if needs_call
            else THINK + "<|start|>assistant" + FINAL
        )
        return by_token(tokenizer.encode_with_special(reply))

    engine = FakeEngine(script, max_model_len=200_000)
    with live_server(engine, tokenizer, api_keys=(KEY,)) as server:
        parts = opencode("Run it.", url=server.url, model="rose-test", cwd=tmp_path)
    assert "out-of-the-shell" in next(part for part in parts if part["type"] == "tool")["state"]["output"]
    assert texts(parts) == ["It printed what it should."]
    prompts = [tokenizer.decode(request.prompt_token_ids, keep_special=True) for request in engine.submitted]
    before, after = (prompt for prompt in prompts if "namespace functions" in prompt)  # not the one for a title
    assert THINK in after, "the reasoning came back with its call"
    assert "out-of-the-shell\n<|end|>" in after, "the command ran, and its output came back"
    assert after.startswith(before), "so that the prefix cache has all that came before"


def codex(*arguments: str, url: str, model: str, cwd: Path, config: str = "") -> str:
    """What `codex exec` prints."""
    executable = installed(npm_folder, "codex", "@openai/codex@0.171.0") / "node_modules" / ".bin" / "codex"
    which = f'model = "{model}"\nmodel_provider = "rose"\n'
    (cwd / "config.toml").write_text(which + config + CODEX_PROVIDER.format(url=url))
    options = ("--skip-git-repo-check", "-s", "danger-full-access")
    return run([executable, "exec", *options, *arguments], cwd=cwd, CODEX_HOME=str(cwd))


def test_codex(demo: str, tmp_path: Path) -> None:
    """A sum, also in a form that is demanded."""
    (tmp_path / "brief.md").write_text("Be brief.")
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    (tmp_path / "schema.json").write_text(json.dumps(schema | {"additionalProperties": False}))
    options = {"url": demo, "model": "rose-demo", "cwd": tmp_path, "config": CODEX_WITH_LITTLE_TO_SAY}
    assert codex("What is 127 + 385?", **options).strip() == "127 + 385 = 512"
    formed = codex("--output-schema", "schema.json", "What is 127 + 385? Answer as JSON.", **options)
    assert json.loads(formed) == {"answer": 512}


def test_codexs_own_tools(tmp_path: Path) -> None:
    """A tool loop and a resumed session. The engine plays a script, for the bundled model knows no shell."""
    tokenizer = Tokenizer(tiny_tokenizer())

    def script(request: AddRequest) -> list[Step]:
        has_result = "functions.exec_command to=assistant" in tokenizer.decode(request.prompt_token_ids)
        reply = FINAL if has_result else call("exec_command", cmd="echo out-of-the-shell")
        return by_token(tokenizer.encode_with_special(reply))

    engine = FakeEngine(script, max_model_len=200_000)
    with live_server(engine, tokenizer, api_keys=(KEY,)) as server:
        options = {"url": server.url, "model": "rose-test", "cwd": tmp_path}
        first = codex("Run it.", **options)
        second = codex("resume", "--last", "And again.", **options)
    assert "It printed what it should." in first
    assert "It printed what it should." in second
    before, after, resumed = (
        tokenizer.decode(request.prompt_token_ids, keep_special=True) for request in engine.submitted
    )
    assert THINK in after, "the reasoning came back with its call"
    assert "out-of-the-shell\n<|end|>" in after, "the command ran, and its output came back"
    assert after.startswith(before), "so that the prefix cache has all that came before"
    assert "And again." in resumed


def test_codexs_mcp_tools(tmp_path: Path) -> None:
    """Codex puts them into namespaces."""
    tokenizer = Tokenizer(tiny_tokenizer())
    name = "mcp__get__weather"

    def script(request: AddRequest) -> list[Step]:
        prompt = tokenizer.decode(request.prompt_token_ids)
        needs_call = f"type {name} = " in prompt and f"functions.{name} to=assistant" not in prompt
        return by_token(tokenizer.encode_with_special(call(name, city="Paris") if needs_call else FINAL))

    engine = FakeEngine(script, max_model_len=200_000)
    config = f'mcp_servers.get = {{command = "{sys.executable}", args = ["{SCRIPTS / "mcp_weather.py"}"]}}\n'
    with live_server(engine, tokenizer, api_keys=(KEY,)) as server:
        said = codex("The weather?", url=server.url, model="rose-test", cwd=tmp_path, config=config)
    assert "It printed what it should." in said
    before, after = (tokenizer.decode(request.prompt_token_ids, keep_special=True) for request in engine.submitted)
    assert after.startswith(before)
    assert f"functions.{name} to=assistant" in after
    assert '"temperature": 21' in after[len(before) :].replace("\\", ""), "what the MCP server said"
