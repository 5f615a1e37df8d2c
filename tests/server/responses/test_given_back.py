"""Everything that the server answers can be given back unchanged: as items, by reference, by the response's id."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from rose.chat.tokenizer import Tokenizer
from rose.server.builtin_tools.config import McpAddress, ToolSettings, WebSearchSettings
from rose.server.builtin_tools.web_search import find_tools
from rose.server.responses.objects import OutputItem
from tests.fakes import by_token
from tests.server.builtin_tools.serving import mcp_server
from tests.server.conftest import Serve
from tests.server.responses.conftest import CALL, FINAL, THINK, TIDE, ask_stream, ask_whole

pytestmark = pytest.mark.anyio

KINDS = {str(kind.__struct_config__.tag) for kind in get_args(OutputItem)}
TOOLS = [TIDE, {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "web_search"}]
PYTHON = THINK + "<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>"
ENDLESS = "<|channel|>analysis to=python code<|message|>import os\nos.kill(os.getpid(), 9)<|call|>"
SEARCH = '<|channel|>analysis to=browser.search code<|message|>{"query": "Oban", "topn": 3}<|call|>'
OPEN = '<|channel|>analysis to=browser.open code<|message|>{"url": "https://tides.example/oban"}<|call|>'
NOTHING = "<|channel|>analysis to=browser.open code<|message|>{}<|call|>"
SAY = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
TURNS = {
    "an answer": [FINAL],
    "a call": [THINK + SAY + CALL.removeprefix(THINK)],
    "code, then an answer": [PYTHON, FINAL],
    "tools, then a call": [PYTHON, SEARCH, OPEN, CALL],
    "tools that fail": [ENDLESS, NOTHING, CALL],
    "nothing": ["<|return|>"],
}
INCLUDE = ["code_interpreter_call.outputs", "web_search_call.results", "web_search_call.action.sources"]
QUESTION = {"role": "user", "content": "tide?"}


@pytest.fixture(scope="module")
def web() -> Iterator[WebSearchSettings]:
    import asyncio

    with mcp_server() as url:
        yield asyncio.run(find_tools(McpAddress(url, timeout_s=30), {"open": "fetch_page"}))


class Played:
    """A server's script: turns in a row, then final answers."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode_with_special
        self.turns: list[str] = []

    def __call__(self, _: Any) -> Any:
        return by_token(self._encode(self.turns.pop(0) if self.turns else FINAL))


def results_of(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the client adds: the results of its own functions."""
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call_id, "output": "4"} for call_id in calls]


@pytest.mark.parametrize(
    ("store", "is_streamed", "summary", "include"),
    [
        ("memory", True, None, []),
        ("memory", False, {"summary": "auto"}, INCLUDE),
        ("sqlite", True, {"summary": "auto"}, []),
        ("sqlite", False, None, INCLUDE),
    ],
)
async def test_in_every_way_the_prompt_is_the_same(
    serve: Serve,
    tokenizer: Tokenizer,
    web: WebSearchSettings,
    tmp_path: Path,
    store: str,
    is_streamed: bool,
    summary: Any,
    include: Any,
) -> None:
    where = "memory" if store == "memory" else f"sqlite:{tmp_path}/responses.db"
    options = {"tools": TOOLS, "include": include, "reasoning": summary}
    settings = {
        "tools": ToolSettings("limits", web),
        "response_store": where,
        "reasoning_summary": "text",
        "max_model_len": 8192,
    }
    kinds: set[str] = set()
    for name, turns in TURNS.items():
        script = Played(tokenizer)
        script.turns = list(turns)
        async with serve(script=script, **settings) as server:
            if is_streamed:
                made = (await ask_stream(server, input=[QUESTION], **options))[-1]["response"]
            else:
                made = await ask_whole(server, input=[QUESTION], **options)
            output = made["output"]
            kinds |= {item["type"] for item in output}
            tail = [*results_of(output), {"role": "user", "content": "And then?"}]
            references = [{"type": "item_reference", "id": item["id"]} for item in output]
            await ask_whole(server, input=[QUESTION, *output, *tail], **options)
            await ask_whole(server, input=[QUESTION, *references, *tail], **options)
            await ask_whole(server, previous_response_id=made["id"], input=tail, **options)
            stored = (await server.http.get(f"/v1/responses/{made['id']}")).json()["output"]
            await ask_whole(server, input=[QUESTION, *stored, *tail], **options)
            prompts = [added.prompt_token_ids for added in server.engine.submitted[-4:]]
        assert all(prompt == prompts[0] for prompt in prompts), name
        text = tokenizer.decode(prompts[0], keep_special=True)
        for turn in turns if turns[-1].endswith("<|call|>") else ():
            assert turn in text, "the model's own words, to the token"
        if store == "sqlite":
            async with serve(script=script, **settings) as restarted:
                await ask_whole(restarted, previous_response_id=made["id"], input=tail, **options)
                assert restarted.engine.submitted[-1].prompt_token_ids == prompts[0], "after a restart too"
    assert kinds == KINDS


async def test_without_a_store_what_was_not_told_is_named_as_unknown(
    serve: Serve, tokenizer: Tokenizer, web: WebSearchSettings
) -> None:
    script = Played(tokenizer)
    options = {"tools": TOOLS, "store": False}
    async with serve(script=script, tools=ToolSettings("limits", web)) as server:
        for include in ([], INCLUDE):
            script.turns = [PYTHON, SEARCH, OPEN, CALL]
            output = (await ask_whole(server, input=[QUESTION], include=include, **options))["output"]
            await ask_whole(server, input=[QUESTION, *output, *results_of(output)], **options)
    texts = [
        tokenizer.decode(server.engine.submitted[i].prompt_token_ids, keep_special=True)
        for i, added in enumerate(server.engine.submitted)
        if i in (4, 9)
    ]
    assert [text.count("The result of this call is not known any more.") for text in texts] == [3, 0]
    for text in texts:
        assert "<|channel|>analysis to=python code<|message|>print(6 * 7)<|call|>" in text
        assert '<|channel|>analysis to=browser.search code<|message|>{"query": "Oban"}<|call|>' in text
        assert '<|channel|>analysis to=browser.open code<|message|>{"id": "https://tides.example/oban"}<|call|>' in text


@pytest.mark.parametrize(
    "item",
    [
        {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": None, "container_id": "c"},
        {"type": "code_interpreter_call", "id": "ci_1", "outputs": [{"type": "image", "url": "https://a.b"}]},
        {"type": "code_interpreter_call", "id": "ci_1", "status": "interpreting", "code": "1"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "find_in_page", "pattern": "a", "url": "b"}},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "something_new"}},
    ],
)
async def test_items_as_other_servers_make_them_are_accepted(serve: Serve, item: dict[str, Any]) -> None:
    async with serve(FINAL) as server:
        made = await ask_whole(server, input=[QUESTION, item, {"role": "user", "content": "And then?"}])
        listed = (await server.http.get(f"/v1/responses/{made['id']}/input_items")).json()["data"]
    assert len(listed) == 3
