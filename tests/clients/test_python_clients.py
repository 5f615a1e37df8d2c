"""Clients from PyPI."""

from pathlib import Path

import pytest

from tests.clients.conftest import KEY, SCRIPTS, installed, run, run_script
from tests.clients.environments import python_environment

pytestmark = pytest.mark.timeout(900)


def test_openai_agents(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "openai-agents", "openai-agents==0.24.0")
    answers = run_script(bin_folder / "python", SCRIPTS / "openai_agents.py", demo, cwd=tmp_path)
    assert set(answers) == {"responses", "chat"}
    assert all("21" in text for texts in answers.values() for text in texts), answers


def test_langchain(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "langchain-openai", "langchain-openai==1.7.4")
    answers = run_script(bin_folder / "python", SCRIPTS / "langchain.py", demo, cwd=tmp_path)
    for text, streamed, after_tool in (answers["responses"], answers["chat"]):
        assert "512" in text
        assert streamed == text
        assert "21" in after_tool


def test_anthropic(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "anthropic", "anthropic==2.14.0")
    answer = run_script(bin_folder / "python", SCRIPTS / "anthropic_sdk.py", demo, cwd=tmp_path)
    assert "512" in answer["text"]
    assert answer["call"] == {"city": "Paris"}
    assert "21" in answer["final"]
    assert answer["kinds"][-1] == "text"
    assert answer["count"] > 0
    assert answer["not_found"] == "not_found_error"


def test_instructor(demo: str, tmp_path: Path) -> None:
    bin_folder = installed(python_environment, "instructor", "instructor==1.17.0")
    answers = run_script(bin_folder / "python", SCRIPTS / "instructor_sdk.py", demo, cwd=tmp_path)
    assert answers == {"JSON_SCHEMA": "int", "TOOLS": "int", "RESPONSES_TOOLS": "int"}


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
