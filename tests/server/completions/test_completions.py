"""`/v1/completions` over a scripted engine."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Completion

from rose.chat.tokenizer import Tokenizer
from rose.engine.messages import AddRequest, RequestFailure
from rose.errors import EngineDead
from tests.fakes import FakeEngine, by_token
from tests.server.conftest import MODEL, Serve, Server
from tests.server.live import live_server

pytestmark = pytest.mark.anyio

TEXT = "High at 4. Naïve ☕ tides."


async def ask(server: Server, **body: Any) -> httpx.Response:
    return await server.http.post("/v1/completions", json={"prompt": "The tide is", "max_tokens": 100} | body)


async def ask_whole(server: Server, **body: Any) -> dict[str, Any]:
    response = await ask(server, **body)
    assert response.status_code == 200, response.text
    Completion.model_validate(response.json(), strict=True)
    return response.json()


def read_chunks(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *frames, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    for chunk in chunks:
        if "error" not in chunk:
            Completion.model_validate(chunk | {"choices": [c | {"finish_reason": "stop"} for c in chunk["choices"]]})
    return chunks


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


async def test_a_text_is_continued_as_it_is(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve(TEXT + "<|return|>") as server:
        body = await ask_whole(server)
        chunks = read_chunks(await ask(server, stream=True, stream_options={"include_usage": True}))
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    assert body["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    assert joined(chunks) == TEXT
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], body["usage"])
    assert not any("usage" in chunk for chunk in chunks[:-1])
    prompt = server.engine.submitted[0].prompt_token_ids
    assert prompt == tokenizer.encode("The tide is"), "no chat around it"
    assert body["usage"]["prompt_tokens"] == len(prompt)


async def test_all_kinds_of_prompts(serve: Serve, tokenizer: Tokenizer) -> None:
    a, b = tokenizer.encode("one"), tokenizer.encode("two")
    async with serve("x<|return|>") as server:
        for prompt, ids in (("one", [a]), (a, [a]), (["one", "two"], [a, b]), ([a, b], [a, b])):
            server.engine.submitted.clear()
            body = await ask_whole(server, prompt=prompt)
            assert sorted(each.prompt_token_ids for each in server.engine.submitted) == sorted(ids)
            assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
            assert body["usage"]["prompt_tokens"] == sum(map(len, ids))
    text = "<|start|>user"
    assert tokenizer.special_id("<|start|>") not in tokenizer.encode(text)


async def test_several_prompts_times_n_with_echo(serve: Serve, tokenizer: Tokenizer) -> None:
    def script(request: AddRequest) -> Any:
        return by_token(tokenizer.encode_with_special(tokenizer.decode(request.prompt_token_ids).upper()))

    body = {"prompt": ["ab", "cd"], "n": 2, "echo": True}
    async with serve(script=script) as server:
        whole = await ask_whole(server, **body)
        chunks = read_chunks(await ask(server, stream=True, **body))
    texts = ["abAB", "abAB", "cdCD", "cdCD"]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert [joined(chunks, i) for i in range(4)] == texts
    ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [0, 1, 2, 3]


async def test_logprobs_in_the_old_form(serve: Serve) -> None:
    async with serve(TEXT + "<|return|>") as server:
        logprobs = (await ask_whole(server, logprobs=2))["choices"][0]["logprobs"]
        chunks = read_chunks(await ask(server, logprobs=2, stream=True))
        assert (await ask_whole(server, logprobs=0))["choices"][0]["logprobs"]["token_logprobs"][0] == -0.25
    lengths = {len(logprobs[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert len(lengths) == 1
    assert "".join(logprobs["tokens"])[:10] == TEXT[:10]
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert "\ufffd" in token or TEXT[offset:].startswith(token)
    streamed = [c["logprobs"] for chunk in chunks for c in chunk["choices"]]
    assert [t for each in streamed for t in each["tokens"]] == logprobs["tokens"]
    assert [t for each in streamed for t in each["text_offset"]] == logprobs["text_offset"]


async def test_logprobs_of_an_echoed_prompt(serve: Serve, tokenizer: Tokenizer) -> None:
    asked = {"prompt": ["The tide é", "x"], "echo": True, "logprobs": 1, "n": 2}
    async with serve(TEXT + "<|return|>") as server:
        # Not checked by OpenAI's types, which know no null in these lists, though its server writes them.
        whole = (await ask(server, **asked)).json()
        events = [line.removeprefix("data: ") for line in (await ask(server, stream=True, **asked)).text.split("\n\n")]
        chunks = [json.loads(event) for event in events if event.startswith("{")]
        unasked = (await ask_whole(server, prompt="The", echo=True))["choices"][0]
    assert (unasked["text"], unasked["logprobs"]) == ("The" + TEXT, None)
    for choice, prompt in zip(whole["choices"], ["The tide é"] * 2 + ["x"] * 2, strict=True):
        ids, logprobs = tokenizer.encode(prompt), choice["logprobs"]
        assert choice["text"] == prompt + TEXT
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        assert None not in logprobs["token_logprobs"][1:]
        assert len(logprobs["tokens"]) > len(ids)
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
            assert "\ufffd" in token or choice["text"][offset:].startswith(token)
        pieces = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [x for piece in pieces for x in piece[key]] == logprobs[key]


async def test_limits_and_stop_strings(serve: Serve) -> None:
    async with serve(TEXT + "<|return|>") as server:
        assert (await ask_whole(server, stop=["4", " tides"]))["choices"][0]["text"] == "High at "
        cut = (await ask_whole(server, max_tokens=3))["choices"][0]
        assert cut["finish_reason"] == "length"
        await ask_whole(server, max_tokens=None)
    assert server.engine.submitted[-1].sampling_params.max_tokens == 16


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, 99999]}, "prompt[1]"),
        ({"prompt": [[1, -1]]}, "prompt[0][1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": 7}, "prompt"),
        ({"prompt": "tide " * 9000}, "prompt"),
        ({"prompt": ["a", "tide " * 9000]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"structured_outputs": {"json": {"uniqueItems": True}}}, "structured_outputs.json"),
        ({"logprobs": 99}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"n": 0}, "n"),
    ],
)
async def test_what_is_refused_names_its_field(serve: Serve, body: dict[str, Any], param: str) -> None:
    async with serve(TEXT) as server:
        for stream in (False, True):
            response = await ask(server, stream=stream, **body)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


async def test_a_form_is_a_grammar_of_the_whole_text(serve: Serve) -> None:
    async with serve(TEXT) as server:
        await ask_whole(server, n=2, best_of=2)
        assert server.engine.submitted[-1].sampling_params.grammar is None
        for form, rule in (
            ({"guided_choice": ["a.b", "c"]}, r"start: /a\.b|c/"),
            ({"structured_outputs": {"regex": "[0-9]+"}}, "start: /[0-9]+/"),
            ({"response_format": {"type": "json_object"}}, 'start: %json {"type": "object"'),
        ):
            await ask_whole(server, **form)
            assert (server.engine.submitted[-1].sampling_params.grammar or "").startswith(rule)


async def test_failures(serve: Serve, tokenizer: Tokenizer) -> None:
    def script(request: AddRequest) -> Any:
        if tokenizer.decode(request.prompt_token_ids) == "bad":
            return [[5], RequestFailure(message="no", code="model_error")]
        return [[5], 30.0]

    async with serve(script=script) as server:
        assert (await ask(server, prompt=["good", "bad"])).status_code == 500
        last = read_chunks(await ask(server, prompt=["good", "bad"], stream=True))[-1]
        assert last["error"]["code"] == "model_error"
        assert server.engine.num_open == 0, "the good one was released"
    async with serve(script=lambda _: [[5], EngineDead("killed")]) as server:
        assert read_chunks(await ask(server, stream=True))[-1]["error"]["code"] == "engine_dead"


async def test_an_empty_prompt(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve("x<|return|>") as server:
        response = await ask(server, prompt="")
    start = tokenizer.special_id("<|endoftext|>")
    assert response.status_code == (400 if start is None else 200)


def test_the_official_client(tokenizer: Tokenizer) -> None:
    steps = by_token(tokenizer.encode_with_special(TEXT + "<|return|>"))
    with (
        live_server(FakeEngine(lambda _: steps), tokenizer) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        options = {"model": MODEL, "prompt": "The tide is", "max_tokens": 100}
        assert client.completions.create(**options).choices[0].text == TEXT
        assert "".join(c.choices[0].text for c in client.completions.create(**options, stream=True)) == TEXT
