"""The routes around the API."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rose import __version__
from rose.chat.registry import get_format
from rose.chat.tokenizer import Tokenizer, as_tokenizer
from rose.errors import CheckpointError
from rose.server.app import create_app
from rose.server.metrics import MAX_FIELD_LABELS
from rose.server.settings import ServerSettings
from tests.chat.tokenizers_for_tests import tiny_tokenizer
from tests.fakes import FakeEngine
from tests.server.conftest import MODEL, Serve

pytestmark = pytest.mark.anyio

# What dashboards and endpoint pickers look for.
SHARED = {
    *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info"),
    *("prompt_tokens_total", "generation_tokens_total", "request_success_total", "num_preemptions_total"),
    *("prefix_cache_queries_total", "prefix_cache_hits_total", "iteration_tokens_total_bucket"),
    *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
    *("request_time_per_output_token_seconds_bucket", "e2e_request_latency_seconds_bucket"),
    *("request_queue_time_seconds_bucket", "request_prefill_time_seconds_bucket"),
    *("request_inference_time_seconds_bucket",),
    *("request_decode_time_seconds_bucket", "request_prompt_tokens_bucket", "request_generation_tokens_bucket"),
}


async def samples(server) -> dict[tuple[str, frozenset], float]:
    response = await server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def total(found: dict[tuple[str, frozenset], float], name: str, **labels: str) -> float:
    return sum(value for (n, have), value in found.items() if n == name and labels.items() <= dict(have).items())


async def test_an_engine_that_hangs_is_not_healthy(serve: Serve) -> None:
    async with serve(health_timeout_s=30.0) as server:
        server.engine.silence = 29.0
        assert (await server.http.get("/health")).status_code == 200, "a step may take its time"
        server.engine.silence = 31.0
        refused = await server.http.get("/health")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unresponsive")
        assert "31 seconds" in refused.json()["error"]["message"]
        server.engine.silence = 0.0
        assert (await server.http.get("/health")).status_code == 200, "it came back"
    async with serve(health_timeout_s=0.0) as server:
        server.engine.silence = 1e6
        assert (await server.http.get("/health")).status_code == 200


async def test_health_and_version(serve: Serve) -> None:
    async with serve() as server:
        for path in ("/health", "/ping"):
            assert (await server.http.get(path)).status_code == 200
            assert (await server.http.head(path)).status_code == 200
        assert (await server.http.post("/ping")).status_code == 200
        assert (await server.http.get("/version")).json() == {"version": __version__}


async def test_models(serve: Serve) -> None:
    async with serve() as server:
        listed = (await server.http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == [MODEL, "an/alias"]
        assert listed["data"][0]["max_model_len"] == 4096
        for path in ("an/alias", "an%2Falias"):
            assert (await server.http.get(f"/v1/models/{path}")).json()["id"] == "an/alias"
        missing = await server.http.get("/v1/models/another")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_metrics_under_both_names(serve: Serve) -> None:
    async with serve() as server:
        await server.chat()
        await server.chat(max_tokens=2)
        found = await samples(server)
        assert (await server.http.head("/metrics")).status_code == 200
    names = {name for name, _ in found}
    for prefix in ("rose:", "vllm:"):
        assert {prefix + name for name in SHARED} <= names
        labels = {"model_name": MODEL, "engine": "0"}
        assert total(found, prefix + "request_success_total", finished_reason="stop", **labels) == 1
        assert total(found, prefix + "request_success_total", finished_reason="length", **labels) == 1
        assert total(found, prefix + "time_to_first_token_seconds_count") == 2
        assert total(found, prefix + "generation_tokens_total") > 2
        assert total(found, prefix + "num_requests_waiting") == 3
        assert total(found, prefix + "iteration_tokens_total_bucket", le="8") == 5
        assert total(found, prefix + "iteration_tokens_total_count") == 7
        assert total(found, prefix + "cache_config_info", block_size="16", num_gpu_blocks="64") == 1
    assert "vllm:ignored_fields_total" not in names


async def test_vllm_names_can_be_left_out(serve: Serve) -> None:
    async with serve(vllm_metrics=False) as server:
        assert all(name.startswith("rose:") for name, _ in await samples(server))


async def test_recovery_rules_are_counted(serve: Serve) -> None:
    async with serve(
        "<|channel|>final<|message|>High at 4.<|start|>assistant<|channel|>final<|message|> Low.<|return|>"
    ) as server:
        assert (await server.chat()).status_code == 200
        found = await samples(server)
    assert total(found, "rose:harmony_recovered_total") >= 1


async def test_ignored_fields_cannot_flood_the_metrics(serve: Serve) -> None:
    async with serve() as server:
        await server.chat(**{f"field_{i}": 1 for i in range(MAX_FIELD_LABELS + 20)})
        found = await samples(server)
    assert len([name for name, _ in found if name == "rose:ignored_fields_total"]) == MAX_FIELD_LABELS + 1
    assert total(found, "rose:ignored_fields_total", field="_other") == 20


async def test_an_ignored_field_of_any_length_has_a_short_label(serve: Serve) -> None:
    async with serve() as server:
        await server.chat(**{"x" * 10_000: 1})
        found = await samples(server)
    assert total(found, "rose:ignored_fields_total", field="x" * 64) == 1


async def test_tokenize_and_detokenize(serve: Serve, tokenizer: Tokenizer) -> None:
    async with serve() as server:
        text = "High at <|end|>"
        body = (await server.http.post("/tokenize", json={"model": MODEL, "prompt": text})).json()
        assert body["tokens"] == tokenizer.encode(text)
        assert (body["count"], body["max_model_len"], body["token_strs"]) == (len(body["tokens"]), 4096, None)
        with_strings = {"prompt": text, "return_token_strs": True, "add_special_tokens": False}
        assert "".join((await server.http.post("/tokenize", json=with_strings)).json()["token_strs"]) == text
        back = await server.http.post("/detokenize", json={"tokens": body["tokens"]})
        assert back.json() == {"prompt": text}

        messages = [{"role": "user", "content": "hi"}]
        chat = (await server.http.post("/tokenize", json={"messages": messages, "reasoning_effort": "low"})).json()
        prompt = (await server.http.post("/detokenize", json={"tokens": chat["tokens"]})).json()["prompt"]
        assert prompt.endswith("<|start|>user<|message|>hi<|end|><|start|>assistant")
        await server.chat(messages=messages, reasoning_effort="low")
        assert server.engine.submitted[0].prompt_token_ids == chat["tokens"]

        unfinished = {"messages": messages, "add_generation_prompt": False}  # would be another prompt
        for bad in ({}, {"prompt": "x", "messages": messages}, unfinished):
            assert (await server.http.post("/tokenize", json=bad)).status_code == 400
        assert (await server.http.post("/detokenize", json={"tokens": [-1]})).json()["error"]["param"] == "tokens[0]"
        limit = max(tokenizer.vocab_size, server.engine.info.vocab_size)
        assert (await server.http.post("/detokenize", json={"tokens": [limit - 1]})).status_code == 200
        unknown = (await server.http.post("/detokenize", json={"tokens": [1, limit]})).json()["error"]
        assert (unknown["param"], unknown["code"]) == ("tokens[1]", "invalid_token_id")
        assert (await server.http.post("/detokenize", json={"tokens": [1], "model": "x"})).status_code == 404


async def test_openapi_describes_the_body(serve: Serve) -> None:
    async with serve() as server:
        document = (await server.http.get("/openapi.json")).json()
        again = (await server.http.get("/openapi.json")).json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "reasoning_effort" in body["properties"]
    assert "ChatCompletionRequest.ChatMessage" in document["components"]["schemas"]
    assert again == document


async def test_cross_origin_requests(serve: Serve) -> None:
    headers = {"origin": "http://here", "access-control-request-method": "POST"}
    async with serve(allowed_origins=("http://here",), api_keys=("sk",)) as server:
        response = await server.http.options("/v1/chat/completions", headers=headers)
        assert response.headers["access-control-allow-origin"] == "http://here"
        refused = await server.chat(headers={"origin": "http://here"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "http://here", "the page must see why"


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    """Its ids would be refused with every prompt, as if that were the client's fault."""
    engine = FakeEngine(lambda _: [])
    backend = tiny_tokenizer()
    backend.add_tokens([f"extra{i}" for i in range(engine.info.vocab_size + 1 - tokenizer.vocab_size)])
    large = as_tokenizer(backend)
    with pytest.raises(CheckpointError, match="do not belong together"):
        create_app(engine, get_format("harmony", large), large, ServerSettings(served_model_names=("x",)))
