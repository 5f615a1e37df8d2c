"""Built-in tools over HTTP: the model's calls are scripted, the tools and the servers behind them are real."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APITimeoutError, OpenAI

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest
from rose.server.builtin_tools.config import McpAddress, ToolSettings, WebSearchSettings
from rose.server.builtin_tools.web_search import find_tools
from rose.server.responses.run import ResponseRun
from tests.fakes import FakeEngine, Script, by_token
from tests.server.builtin_tools.serving import Sandboxes, mcp_server, sandboxes
from tests.server.conftest import Serve
from tests.server.live import LiveServer, live_server
from tests.server.responses.conftest import CALL, FINAL, THINK, TIDE, ask, ask_stream, ask_whole, names

pytestmark = pytest.mark.anyio
__all__ = ["sandboxes"]

CODE = ToolSettings(code_interpreter="limits")  # which needs nothing of the kernel; test_sandbox has the other kind
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
SEARCH = {"type": "web_search"}


def runs(code: str) -> str:
    """A turn that ends in a call of python."""
    return THINK + f"<|channel|>analysis to=python code<|message|>{code}<|call|>"


def browses(function: str, arguments: str) -> str:
    return f"<|channel|>analysis to=browser.{function} code<|message|>{arguments}<|call|>"


@pytest.fixture
def rounds(tokenizer: Tokenizer) -> Any:
    """A script that plays one turn after the other."""

    def script_of(*turns: str) -> Script:
        left = iter([by_token(tokenizer.encode_with_special(turn)) for turn in turns])
        return lambda _: next(left)

    return script_of


@pytest.fixture(scope="module")
def web() -> Iterator[WebSearchSettings]:
    with mcp_server() as url:
        yield asyncio.run(find_tools(McpAddress(url, timeout_s=30), {"open": "fetch_page"}))


CODE_EVENTS = [
    "output_item.added",
    "code_interpreter_call.in_progress",
    "code_interpreter_call_code.delta",
    "code_interpreter_call_code.done",
    "code_interpreter_call.interpreting",
    "code_interpreter_call.completed",
    "output_item.done",
]
SEARCH_EVENTS = [
    "output_item.added",
    "web_search_call.in_progress",
    "web_search_call.searching",
    "web_search_call.completed",
    "output_item.done",
]
TEXT = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
REASONING = [name.replace("output_text", "reasoning_text") for name in TEXT]
INCLUDE = ["code_interpreter_call.outputs", "web_search_call.results", "web_search_call.action.sources"]


async def test_code_is_run_in_the_middle_of_an_answer(serve: Serve, rounds: Any, tokenizer: Tokenizer) -> None:
    async with serve(script=rounds(runs("print('seen:', 6 * 7)"), FINAL), tools=CODE) as server:
        body = await ask_whole(server, tools=[PYTHON, TIDE], include=INCLUDE)
    _, call, _, message = body["output"]
    assert [item["type"] for item in body["output"]] == ["reasoning", "code_interpreter_call", "reasoning", "message"]
    assert (call["code"], call["status"]) == ("print('seen:', 6 * 7)", "completed")
    assert call["outputs"] == [{"type": "logs", "logs": "seen: 42\n"}]
    assert call["container_id"].startswith("cntr_")
    assert message["content"][0]["text"] == "High at 4."
    assert body["tools"][0] == PYTHON
    first, second = (tokenizer.decode(added.prompt_token_ids, keep_special=True) for added in server.engine.submitted)
    assert "# Tools\n\n## python\n\n" in first.split("<|end|>")[0], "announced in the system message"
    sampled = "<|start|>assistant" + runs("print('seen:', 6 * 7)")
    assert second.startswith(first.removesuffix("<|start|>assistant") + sampled), "the cached prefix holds"
    assert second.endswith(
        "<|call|><|start|>python to=assistant<|channel|>analysis<|message|>seen: 42\n<|end|><|start|>assistant"
    )


async def test_usage_is_that_of_all_generations(serve: Serve, rounds: Any, tokenizer: Tokenizer) -> None:
    turns = (runs("1"), runs("2"), FINAL)
    async with serve(script=rounds(*turns), tools=CODE) as server:
        usage = (await ask_whole(server, tools=[PYTHON]))["usage"]
    prompts = [len(added.prompt_token_ids) for added in server.engine.submitted]
    assert len(prompts) == 3
    assert usage["input_tokens"] == sum(prompts)
    assert usage["input_tokens_details"]["cached_tokens"] == sum(n // 2 for n in prompts)
    assert usage["output_tokens"] == sum(len(tokenizer.encode_with_special(turn)) for turn in turns)
    thoughts = len(tokenizer.encode("Need the tide."))
    assert usage["output_tokens_details"]["reasoning_tokens"] == 3 * thoughts


async def test_the_order_of_events(serve: Serve, rounds: Any, web: WebSearchSettings) -> None:
    turns = (runs("print(4)"), browses("search", '{"query": "Oban"}'), CALL)
    tools = ToolSettings(code_interpreter="limits", web_search=web)
    async with serve(script=rounds(*turns), tools=tools) as server:
        events = await ask_stream(server, tools=[PYTHON, SEARCH, TIDE])
    arguments = [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert names(events) == [
        *("created", "in_progress"),
        *(*REASONING, *CODE_EVENTS),
        *SEARCH_EVENTS,
        *(*REASONING, *arguments),
        "completed",
    ]
    added = [event for event in events if event["type"].endswith("item.added")]
    done = [event for event in events if event["type"].endswith("item.done")]
    assert [event["output_index"] for event in added] == [event["output_index"] for event in done] == [0, 1, 2, 3, 4]
    assert [event["item"] for event in done] == events[-1]["response"]["output"]
    for index, event in enumerate(added):
        assert event["item"]["status"] == "in_progress"
        ids = {e["item_id"] for e in events if "item_id" in e and e["output_index"] == index}
        assert ids == {event["item"]["id"]}
    deltas = [e["delta"] for e in events if e["type"] == "response.code_interpreter_call_code.delta"]
    (code,) = [e["code"] for e in events if e["type"] == "response.code_interpreter_call_code.done"]
    assert len(deltas) > 1
    assert "".join(deltas) == code == "print(4)"
    assert done[1]["item"]["outputs"] is None, "not asked for"
    assert done[2]["item"] == {
        "type": "web_search_call",
        "id": added[2]["item"]["id"],
        "status": "completed",
        "action": {"type": "search", "query": "Oban", "queries": ["Oban"]},
    }


async def test_the_web_is_searched_and_read(
    serve: Serve, rounds: Any, web: WebSearchSettings, tokenizer: Tokenizer
) -> None:
    turns = (
        browses("search", '{"query": "oban", "topn": 3}'),
        browses("open", '{"url": "https://tides.example/oban"}'),
        browses("search", '{"query": "break"}'),
        browses("find", '{"pattern": "high"}'),
        FINAL,
    )
    async with serve(script=rounds(*turns), tools=ToolSettings(web_search=web)) as server:
        body = await ask_whole(server, tools=[{"type": "web_search_preview"}], include=INCLUDE)
        path = f"/v1/responses/{body['id']}"
        whole = (await server.http.get(path, params={"include": INCLUDE})).json()
        listed = (await server.http.get(path, params={"include[]": INCLUDE})).json()
        plain = (await server.http.get(path)).json()
    search, opened, broken, lacking, _, _ = body["output"]
    assert search["action"]["sources"] == [{"type": "url", "url": "https://tides.example/oban"}]
    assert search["results"] == [{"type": "text", "text": "https://tides.example/oban Oban: high at 4."}]
    assert opened["action"] == {"type": "open_page", "url": "https://tides.example/oban"}
    assert [item["status"] for item in body["output"]] == ["completed"] * 2 + ["failed"] * 2 + ["completed"] * 2
    assert lacking["action"] == {"type": "find_in_page", "pattern": "high", "url": ""}
    assert broken["action"]["query"] == "break"
    prompts = [tokenizer.decode(added.prompt_token_ids, keep_special=True) for added in server.engine.submitted]
    assert "namespace browser {" in prompts[0].split("<|end|>")[0]
    assert "type search = (_: {" in prompts[0]
    assert turns[0] in prompts[1]
    assert "<|start|>browser.search to=assistant<|channel|>analysis<|message|>https://tides.example/oban" in prompts[1]
    assert "<|start|>browser.open to=assistant<|channel|>analysis<|message|>Oban: high at 4.<|end|>" in prompts[2]
    assert "the index is broken" in prompts[3], "what went wrong is told to the model"
    assert "There is no function 'find', only search, open." in prompts[4]
    assert listed == whole
    assert [item.keys() - {"recipient", "arguments"} for item in whole["output"]] == [i.keys() for i in body["output"]]
    assert "results" not in plain["output"][0]
    assert "sources" not in plain["output"][0]["action"]


@pytest.mark.parametrize(
    ("tools", "ignored"),
    [
        ([PYTHON, SEARCH], "tools.code_interpreter, tools.web_search"),
        ([{"type": "web_search", "external_web_access": False}, {"type": "web_search_preview"}],
         "tools.web_search, tools.web_search_preview"),
    ],
)  # fmt: skip
async def test_what_is_not_switched_on_is_left_out(serve: Serve, tools: Any, ignored: str) -> None:
    async with serve(runs("print(4)")) as server:
        response = await ask(server, tools=tools)
    assert response.headers["x-rose-ignored-fields"] == ignored
    assert response.json()["tools"] == []
    assert response.json()["output"][1]["type"] == "function_call", "a call of what was not offered is the client's"


async def test_a_search_that_must_not_reach_the_web_is_left_out(serve: Serve, web: WebSearchSettings) -> None:
    async with serve(FINAL, tools=ToolSettings(web_search=web)) as server:
        response = await ask(server, tools=[SEARCH | {"external_web_access": False}])
    assert response.headers["x-rose-ignored-fields"] == "tools.web_search"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "code_interpreter", "container": "cntr_1"}, "tools[0].container"),
        ({"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["f"]}}, "tools[0].container.file_ids"),
        (
            {"type": "code_interpreter", "container": {"type": "auto", "network_policy": {"type": "allowlist"}}},
            "tools[0].container.network_policy",
        ),
        (SEARCH | {"filters": {"allowed_domains": ["a.org"]}}, "tools[0].filters"),
        ({"type": "function", "name": "python"}, "tools[0].name"),
        ({"type": "function", "name": "browser.search"}, "tools[0].name"),
    ],
)
async def test_what_cannot_be_had_is_refused(serve: Serve, web: WebSearchSettings, tool: Any, param: str) -> None:
    tools = ToolSettings(code_interpreter="limits", web_search=web)
    async with serve(FINAL, tools=tools) as server:
        response = await ask(server, tools=[tool, PYTHON, SEARCH])
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "code_interpreter"},
        {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "1g", "file_ids": []}},
        {"type": "code_interpreter", "container": {"type": "auto", "network_policy": {"type": "disabled"}}},
        SEARCH | {"filters": {"allowed_domains": []}, "search_context_size": "low", "user_location": None},
    ],
)
async def test_what_asks_for_nothing_more_is_accepted(serve: Serve, web: WebSearchSettings, tool: Any) -> None:
    async with serve(FINAL, tools=ToolSettings(code_interpreter="limits", web_search=web)) as server:
        assert (await ask_whole(server, tools=[tool]))["status"] == "completed"


def grammars(submitted: list[AddRequest]) -> list[str]:
    return [added.sampling_params.grammar or "" for added in submitted]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "code_interpreter"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "code_interpreter"}]},
    ],
)
async def test_a_forced_call_is_forced_once(serve: Serve, rounds: Any, choice: Any) -> None:
    async with serve(script=rounds(runs("1"), FINAL), tools=CODE) as server:
        body = await ask_whole(server, tools=[PYTHON, TIDE | {"strict": False}], tool_choice=choice)
    first, second = grammars(server.engine.submitted)
    assert " to=python" in first
    assert "functions.tide" not in first
    assert "final:" not in first
    assert second == "", "then the model is free"
    assert body["tool_choice"] == choice


async def test_a_search_can_be_demanded_by_any_of_its_types(serve: Serve, rounds: Any, web: WebSearchSettings) -> None:
    script = rounds(browses("search", '{"query": "Oban"}'), FINAL)
    async with serve(script=script, tools=ToolSettings(web_search=web)) as server:
        await ask_whole(server, tools=[SEARCH], tool_choice={"type": "web_search_preview"})
        refused = await ask(server, tools=[TIDE], tool_choice={"type": "web_search_preview"})
    assert "browser.search" in grammars(server.engine.submitted)[0]
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice.type")


async def test_the_number_of_calls_is_bounded_by_the_grammar(serve: Serve, rounds: Any) -> None:
    async with serve(script=rounds(runs("1"), runs("2"), FINAL), tools=CODE) as server:
        body = await ask_whole(server, tools=[PYTHON, TIDE | {"strict": False}], max_tool_calls=2)
        none = rounds(FINAL)
        server.engine.script = none
        await ask_whole(server, tools=[PYTHON], max_tool_calls=0)
    assert body["max_tool_calls"] == 2
    assert [item["type"] for item in body["output"]].count("code_interpreter_call") == 2
    *free, last, zero = grammars(server.engine.submitted)
    assert free == ["", ""]
    assert "functions.tide" in last
    assert "python" not in last
    assert "python" not in zero
    assert "final" in zero


async def test_a_call_beyond_the_bound_is_not_run(serve: Serve, rounds: Any) -> None:
    """As of an engine that cannot be constrained."""
    async with serve(script=rounds(runs("1"), runs("open('/tmp/rose-ran', 'w')")), tools=CODE) as server:
        body = await ask_whole(server, tools=[PYTHON], max_tool_calls=1, include=INCLUDE)
    assert (body["output"][-1]["status"], body["output"][-1]["outputs"]) == ("incomplete", None)
    assert not Path("/tmp/rose-ran").exists()


async def test_the_limit_of_tokens_is_for_all_generations(serve: Serve, rounds: Any, tokenizer: Tokenizer) -> None:
    num_first = len(tokenizer.encode_with_special(runs("1")))
    turns = (runs("1"), FINAL)
    async with serve(script=rounds(*turns), tools=CODE) as server:
        body = await ask_whole(server, tools=[PYTHON], max_output_tokens=num_first + 10)
        server.engine.script = rounds(*turns)
        nothing_left = await ask_whole(server, tools=[PYTHON], max_output_tokens=num_first)
        server.engine.script = rounds(*turns)
        in_code = await ask_whole(server, tools=[PYTHON], max_output_tokens=num_first - 1)
    assert [added.sampling_params.max_tokens for added in server.engine.submitted[:2]] == [num_first + 10, 10]
    for cut in (body, nothing_left, in_code):
        assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["usage"]["output_tokens"] == num_first + 10
    assert nothing_left["output"][-1]["status"] == "completed", "the call was run"
    assert in_code["output"][-1]["status"] == "incomplete", "the call was not"


async def test_a_result_that_leaves_no_room_ends_the_response(serve: Serve, rounds: Any) -> None:
    script = rounds(runs("print('tide ' * 3000)"), FINAL)
    async with serve(script=script, tools=CODE, max_model_len=2000) as server:
        body = await ask_whole(server, tools=[PYTHON])
    assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert body["output"][-1]["status"] == "completed"


async def test_an_exception_in_the_code_is_a_result(serve: Serve, rounds: Any) -> None:
    async with serve(script=rounds(runs("1 / 0"), FINAL), tools=CODE) as server:
        call = (await ask_whole(server, tools=[PYTHON], include=INCLUDE))["output"][1]
    assert call["status"] == "completed"
    assert "ZeroDivisionError" in call["outputs"][0]["logs"]


async def test_a_failure_after_a_call(serve: Serve, rounds: Any, tokenizer: Tokenizer) -> None:
    turns = iter([by_token(tokenizer.encode_with_special(runs("1"))), [0.2]])
    async with serve(script=lambda _: next(turns), tools=CODE) as server:
        started = await ask_whole(server, tools=[PYTHON], background=True)
        while len(server.engine.submitted) < 2:
            await asyncio.sleep(0.01)
        server.engine.die()
        for _ in range(500):
            response = (await server.http.get(f"/v1/responses/{started['id']}")).json()
            if response["status"] != "in_progress":
                break
            await asyncio.sleep(0.01)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert [item["type"] for item in response["output"]] == ["reasoning", "code_interpreter_call"]


async def test_the_engines_end_ends_the_code(serve: Serve, rounds: Any) -> None:
    async with serve(script=rounds(runs("import time\ntime.sleep(60)")), tools=CODE) as server:
        asking = asyncio.create_task(ask(server, tools=[PYTHON]))
        await asyncio.sleep(0.5)
        await server.engine.close()
        async with asyncio.timeout(10):
            response = await asking
    assert (response.status_code, response.json()["error"]["code"]) == (503, "aborted")


async def test_cancelling_in_the_moment_in_which_the_next_generation_has_started(
    serve: Serve, rounds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_generation, loop = ResponseRun._next_generation, asyncio.get_running_loop()
    cancellings: list[asyncio.Task[Any]] = []

    async def and_cancel(run: ResponseRun) -> Any:
        following = await next_generation(run)
        # When this is over, and before the run knows.
        loop.call_soon(lambda: cancellings.append(loop.create_task(run.cancel())))
        return following

    monkeypatch.setattr(ResponseRun, "_next_generation", and_cancel)
    async with serve(script=rounds(runs("1"), FINAL), step_s=0.05, tools=CODE) as server:
        body = await ask_whole(server, tools=[PYTHON])
    assert body["status"] == "cancelled"
    [cancelling] = cancellings
    assert (await cancelling).status == "cancelled"


async def test_cancelling_while_code_runs(serve: Serve, rounds: Any) -> None:
    async with serve(script=rounds(runs("import time\ntime.sleep(60)")), tools=CODE) as server:
        started = await ask_whole(server, tools=[PYTHON], background=True)
        path = f"/v1/responses/{started['id']}"
        await asyncio.sleep(0.5)
        async with asyncio.timeout(10):
            cancelled = (await server.http.post(f"{path}/cancel")).json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][-1]["type"] == "code_interpreter_call"
    assert cancelled["output"][-1]["status"] == "incomplete"


@pytest.fixture
def live(tokenizer: Tokenizer, web: WebSearchSettings) -> Iterator[LiveServer]:
    """A server on a socket whose model runs code that takes its time, then searches, then answers."""

    def script(request: AddRequest) -> Any:
        prompt = tokenizer.decode(request.prompt_token_ids, keep_special=True)
        seconds = "60" if "slowly" in prompt else "0"
        turns = [runs(f"import time\ntime.sleep({seconds})\nprint(4)"), browses("search", '{"query": "Oban"}'), FINAL]
        return by_token(tokenizer.encode_with_special(turns[prompt.count(" to=assistant")]))

    tools = ToolSettings(code_interpreter="limits", web_search=web)
    with live_server(FakeEngine(script), tokenizer, tools=tools) as running:
        yield running


def test_the_official_client_reads_it_all(live: LiveServer) -> None:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        with client.responses.stream(model="rose-test", input="?", tools=[PYTHON, SEARCH], include=INCLUDE) as stream:
            types = {event.type for event in stream}
            streamed = stream.get_final_response()
        whole = client.responses.retrieve(streamed.id, include=INCLUDE)
        again = client.responses.create(
            model="rose-test", input=[{"role": "user", "content": "?"}, *streamed.output], tools=[PYTHON, SEARCH]
        )
    assert {f"response.{name}" for name in (*CODE_EVENTS, *SEARCH_EVENTS)} <= types
    assert [item.type for item in streamed.output][1:3] == ["code_interpreter_call", "web_search_call"]
    assert streamed.output[1].outputs[0].logs == "4\n"
    assert streamed.output[2].action.sources[0].url == "https://tides.example/oban"
    assert streamed.output_text == again.output_text == "High at 4."
    assert whole.output[1] == streamed.output[1]


def test_a_reader_who_goes_away_ends_the_code(live: LiveServer, sandboxes: Sandboxes) -> None:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        options = {"model": "rose-test", "input": "slowly", "tools": [PYTHON]}
        with client.responses.create(stream=True, **options) as stream:
            for event in stream:
                if event.type == "response.code_interpreter_call.interpreting":
                    break
            until(lambda: len(sandboxes.processes()) > 1)
        until(sandboxes.are_gone)
        with pytest.raises(APITimeoutError):
            client.with_options(timeout=2).responses.create(**options)
        until(sandboxes.are_gone)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
