"""Clients from npm."""

import shutil
from pathlib import Path

import pytest

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.clients.conftest import KEY, SCRIPTS, installed, run, run_script
from tests.clients.environments import npm_folder
from tests.fakes import FakeEngine, Step, by_token
from tests.server.live import live_server

pytestmark = pytest.mark.timeout(900)

CALL = (
    "<|channel|>analysis<|message|>Let me run it.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.exec_command <|constrain|>json<|message|>{"cmd": "echo out-of-the-shell"}<|call|>'
)
FINAL = "<|channel|>final<|message|>It printed what it should.<|return|>"
CODEX_CONFIG = """
model = "rose-test"
model_provider = "rose"
[model_providers.rose]
name = "rose"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "ROSE_KEY"
request_max_retries = 0
stream_max_retries = 0
"""


def test_ai_sdk(demo: str) -> None:
    packages = ("ai@6.0.326", "@ai-sdk/openai@3.0.141", "@ai-sdk/openai-compatible@2.0.92", "zod@4.6.7")
    folder = installed(npm_folder, "ai-sdk", *packages)
    answers = run_script(shutil.which("node") or "node", SCRIPTS / "ai_sdk.mjs", demo, cwd=folder)
    assert set(answers) == {"responses", "chat", "compatible"}
    assert all("21" in text for texts in answers.values() for text in texts), answers


def test_codex(tmp_path: Path) -> None:
    """A tool loop and a resumed session. The engine plays a script, for the bundled model knows no shell."""
    codex = installed(npm_folder, "codex", "@openai/codex@0.171.0") / "node_modules" / ".bin" / "codex"
    tokenizer = Tokenizer(tiny_tokenizer())

    def script(request: AddRequest) -> list[Step]:
        has_result = "functions.exec_command to=assistant" in tokenizer.decode(request.prompt_token_ids)
        return by_token(tokenizer.encode_with_special(FINAL if has_result else CALL))

    engine = FakeEngine(script, max_model_len=200_000)
    with live_server(engine, tokenizer, api_keys=(KEY,)) as server:
        (tmp_path / "config.toml").write_text(CODEX_CONFIG.format(url=server.url))
        execute = [codex, "exec", "--skip-git-repo-check", "-s", "danger-full-access"]
        env = {"CODEX_HOME": str(tmp_path)}
        first = run([*execute, "Run it."], cwd=tmp_path, **env)
        second = run([*execute, "resume", "--last", "And again."], cwd=tmp_path, **env)
    assert "It printed what it should." in first
    assert "It printed what it should." in second
    before, after, resumed = (
        tokenizer.decode(request.prompt_token_ids, keep_special=True) for request in engine.submitted
    )
    assert "<|channel|>analysis<|message|>Let me run it.<|end|>" in after, "the reasoning came back with its call"
    assert "out-of-the-shell\n<|end|>" in after, "the command ran, and its output came back"
    assert after.startswith(before), "so that the prefix cache has all that came before"
    assert "And again." in resumed
