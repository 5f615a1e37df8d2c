"""`rose serve`'s flags: spellings, environment, and what becomes of them."""

from pathlib import Path

import msgspec
import pytest

from rose.cli.main import app
from rose.cli.serve import default_model_names, engine_config, server_settings
from rose.cli.serve_flags import ApiFlags, EngineFlags, ServerFlags
from rose.cli.tool_flags import ToolFlags, tool_settings
from rose.errors import CheckpointError, ConfigError
from rose.server.builtin_tools.config import McpAddress, McpTool, ToolSettings, WebSearchSettings
from rose.server.settings import ServerSettings


def parse(*arguments: str) -> dict:
    _, bound, _ = app.parse_args(["serve", "some/model", *arguments], exit_on_error=False)
    return bound.arguments


@pytest.mark.parametrize(("text", "number"), [("4096", 4096), ("128k", 128_000), ("128K", 131_072), ("1.5k", 1500)])
@pytest.mark.parametrize("flag", ["--max-model-len", "--context-length", "-c"])
def test_the_context_in_thousands(flag: str, text: str, number: int) -> None:
    assert parse(flag, text)["engine"].max_model_len == number


def test_other_servers_spellings() -> None:
    flags = "--tp 1 --mem-fraction-static 0.5 --max-running-requests 3 --chunked-prefill-size 2k --page-size 32"
    engine = parse(*flags.split(), "--disable-radix-cache", "--reasoning-parser", "x", "--enable-auto-tool-choice")[
        "engine"
    ]
    assert engine == EngineFlags(
        gpu_memory_utilization=0.5,
        max_num_seqs=3,
        max_num_batched_tokens=2000,
        block_size=32,
        enable_prefix_caching=False,
    )
    assert parse("-tp", "2")["engine"].tensor_parallel_size == 2


def test_the_environment_is_below_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROSE_API_KEY", "sk-env")
    monkeypatch.setenv("ROSE_MAX_NUM_SEQS", "7")
    monkeypatch.setenv("ROSE_STRICT_FIELDS", "true")
    found = parse("--max-num-seqs", "9")
    assert found["api"] == ApiFlags(api_key=["sk-env"], strict_fields=True)
    assert found["engine"].max_num_seqs == 9


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (None, r"has no tokenizer\.json.*`rose synth --tokenizer rose-demo`"),
        ("", r"tokenizer\.json: it is empty"),
        ("version https://git-lfs.github.com/spec/v1\n", r"tokenizer\.json: it is a Git LFS pointer.*git lfs pull"),
    ],
)
def test_a_checkpoint_without_a_tokenizer_is_refused_before_it_is_loaded(
    tokenizer: str | None, message: str, tmp_path: Path
) -> None:
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    with pytest.raises(CheckpointError, match=message):  # of the weights, which are missing too, nothing is told
        app(["serve", str(tmp_path), "--port", "0"], exit_on_error=False)


def test_settings() -> None:
    flags = parse("--served-model-name", "a", "b", "--no-vllm-metrics", "--current-date", "none")
    settings = server_settings("some/model", ServerFlags(), flags["api"])
    assert (settings.served_model_names, settings.vllm_metrics, settings.current_date) == (("a", "b"), False, None)
    with pytest.raises(ConfigError, match="--current-date"):
        server_settings("m", ServerFlags(), ApiFlags(current_date="soon"))
    for api in (ApiFlags(api_key=["sk", ""]), ApiFlags(served_model_name=[""]), ApiFlags(max_body_bytes=0)):
        with pytest.raises(ConfigError, match="--"):
            server_settings("m", ServerFlags(), api)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--shutdown-timeout"):
            server_settings("m", ServerFlags(shutdown_timeout=seconds), ApiFlags())
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        engine_config("m", EngineFlags(tensor_parallel_size=2))


def test_default_names(tmp_path: Path) -> None:
    assert default_model_names("openai/gpt-oss-20b") == ("openai/gpt-oss-20b", "gpt-oss-20b")
    assert default_model_names("rose-demo") == ("rose-demo",)
    assert default_model_names(str(tmp_path)) == (tmp_path.name,)


def test_the_response_store_is_checked_before_a_model_is_loaded(tmp_path: Path) -> None:
    api = parse("--response-store", f"sqlite:{tmp_path}/responses.db")["api"]
    assert server_settings("m", ServerFlags(), api).response_store == api.response_store
    with pytest.raises(ConfigError, match="--response-store"):
        server_settings("m", ServerFlags(), ApiFlags(response_store="disk"))


def test_tools_are_off_and_tried_out_when_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tool_settings(ToolFlags()) == ToolSettings()
    assert tool_settings(parse("--code-interpreter", "limits")["tools"]) == ToolSettings("limits")
    monkeypatch.setenv("ROSE_WEB_SEARCH_TOKEN", "secret")
    flags = parse("--web-search", "http://127.0.0.1:9/mcp", "--web-search-tool", "search=look")["tools"]
    assert flags.web_search_token == "secret"
    with pytest.raises(ConfigError, match="no tools at http://127"):
        tool_settings(flags)
    for wrong in (
        ToolFlags(web_search="ftp://a"),
        ToolFlags(web_search_token="secret"),
        ToolFlags(web_search_tool=["search=a"]),
        ToolFlags(web_search="http://a", web_search_tool=["search"]),
    ):
        with pytest.raises(ConfigError, match="--web-search"):
            tool_settings(wrong)
    api = parse("--reasoning-summary", "text")["api"]
    assert server_settings("m", ServerFlags(), api).reasoning_summary == "text"


def test_settings_with_tools_cross_to_another_process() -> None:
    search = WebSearchSettings(McpAddress("http://a"), {"search": McpTool("s", None, {"type": "object"})})
    settings = ServerSettings(served_model_names=("m",), tools=ToolSettings("namespaces", search))
    assert msgspec.json.decode(msgspec.json.encode(settings), type=ServerSettings) == settings
