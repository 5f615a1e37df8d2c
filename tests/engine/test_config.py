"""Configurations that cannot work are refused with a text that helps; `auto` is decided once."""

import dataclasses
from typing import Any

import pytest
import torch

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.plan import plan_kv_cache
from rose.engine.kv_cache.spec import KVCacheSpec, KVGroup
from rose.engine.worker.batch_shape import GraphShapes
from rose.engine.worker.trial import Trial, measure_activations
from rose.engine.worker.worker import Worker, build_core
from rose.errors import ConfigError
from tests.fake_model import FakeModel

SPEC = KVCacheSpec((KVGroup(None, (0,)), KVGroup(128, (1,))), block_size=16, num_kv_heads=8, head_dim=64)
BLOCK_BYTES = 2 * 16 * 8 * 64 * 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": ""}, "model"),
        ({"device": "tpu"}, "device"),
        ({"device": "cuda:x"}, "device"),
        ({"dtype": "int8"}, "dtype"),
        ({"load_format": "gguf"}, "load_format"),
        ({"experts": "int4"}, "experts must be one of auto, bf16, fp8, fp8-block, mxfp4"),
        ({"dense": "mxfp4"}, "dense must be one of auto, bf16, fp8, fp8-block, not 'mxfp4'"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size must be 1"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"block_size": -1}, "block_size"),
        ({"num_blocks": 1}, "num_blocks"),
        ({"num_threads": 0}, "num_threads"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "at least max_num_seqs"),
        ({"num_blocks": 10, "kv_cache_bytes": 10}, "one of them"),
    ],
)
def test_bad_values_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EngineConfig(**{"model": "m", **options})


def test_json_round_trip() -> None:
    config = EngineConfig(model="m", max_model_len=100, seed=2**63 - 1, device="cuda:1")
    assert EngineConfig.from_json(config.to_json()) == config


def test_auto_is_resolved_into_a_new_object() -> None:
    config = EngineConfig(model="m", device="cpu", max_num_seqs=2)
    worker = Worker(config, FakeModel())
    assert (config.dtype, config.max_model_len, config.num_blocks, config.seed) == ("auto", None, None, None)
    resolved = worker.config
    assert (resolved.device, resolved.dtype, resolved.max_model_len) == ("cpu", "float32", 128)
    assert resolved.num_blocks == worker.info.num_blocks
    assert resolved.seed is not None
    assert None not in {k: v for k, v in dataclasses.asdict(resolved).items() if k != "kv_cache_bytes"}.values()


def test_a_small_model_gets_one_thread_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small, large = FakeModel(num_parameters=12_000_000), FakeModel(num_parameters=20_000_000_000)
    for model in (small, large):
        Worker(EngineConfig(model="m"), model)
        Worker(EngineConfig(model="m", num_threads=3), model)
    assert chosen == [1, 3, 6, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    Worker(EngineConfig(model="m"), small)
    assert chosen[-1] == 6


def plan(available_blocks: int = 10_000, **options: Any) -> tuple[int, int]:
    config = EngineConfig(model="m", **options)
    result = plan_kv_cache(
        config, SPEC, max_position=4096, available_bytes=available_blocks * BLOCK_BYTES, dtype_bytes=2
    )
    assert result.total_bytes == result.num_blocks * BLOCK_BYTES
    return result.num_blocks, result.max_model_len


def test_the_cache_is_as_large_as_memory_allows_and_requests_can_use() -> None:
    assert plan(1000, max_num_seqs=64) == (1000, 4096)
    num_blocks, _ = plan(1_000_000, max_num_seqs=2, max_num_batched_tokens=64)
    assert num_blocks == 1 + 2 * (256 + 9) + 2 * (4 + 2)
    assert plan(10, num_blocks=700) == (700, 4096)
    assert plan(10, kv_cache_bytes=700 * BLOCK_BYTES + 1) == (700, 4096)


def test_the_longest_request_follows_the_memory() -> None:
    assert plan(101)[1] == (100 - 9) * 16
    assert plan(10_000, max_model_len=500)[1] == 500


def test_a_length_that_does_not_fit_says_by_how_much_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"2000 needs .* GiB short: lower max_model_len to 1456 or less"):
        plan(101, max_model_len=2000)
    with pytest.raises(ConfigError, match="longer than the model's 4096"):
        plan(max_model_len=5000)
    with pytest.raises(ConfigError, match="gpu_memory_utilization"):
        plan(1)
    with pytest.raises(ConfigError, match=r"for 0\.000 GiB"):
        plan(-100)


def test_what_a_length_needs_is_enough() -> None:
    needed = SPEC.min_blocks(2000) + 1
    assert plan(needed, max_model_len=2000) == (needed, 2000)
    with pytest.raises(ConfigError):
        plan(needed - 1, max_model_len=2000)


@pytest.mark.parametrize("load_format", ["no.such.module:load", "tests.fake_model:nothing"])
def test_a_loader_that_is_not_there(load_format: str) -> None:
    with pytest.raises(ConfigError, match="load_format"):
        build_core(EngineConfig(model="m", load_format=load_format))


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match="finds no GPU"):
        build_core(EngineConfig(model="m", device="cuda", load_format="tests.fake_model:load"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ConfigError, match="only 2 GPUs"):
        build_core(EngineConfig(model="m", device="cuda:2", load_format="tests.fake_model:load"))


@pytest.mark.parametrize(("max_num_seqs", "max_num_batched_tokens"), [(1, 1), (4, 40), (300, 500), (4, 9999)])
def test_the_largest_steps_can_be_tried(
    max_num_seqs: int, max_num_batched_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, this is how the memory of activations is measured."""
    config = EngineConfig(
        model="m", device="cpu", max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens
    )
    model = FakeModel()
    trial = Trial(model, KVCacheSpec.from_layers(model.attention_specs, 16), config)
    assert trial.max_num_tokens == min(max_num_batched_tokens, model.max_position - 1)
    seen, forward = [], FakeModel.forward
    monkeypatch.setattr(
        FakeModel, "forward", lambda self, batch: (seen.append(len(batch.token_ids)), forward(self, batch))[1]
    )
    for num_tokens in (trial.max_num_tokens, max(1, trial.max_num_tokens // 2)):
        logits = trial.forward(num_tokens)
        assert seen.pop() == num_tokens
        assert logits.shape == (min(max_num_seqs, num_tokens), model.vocab_size)
    sampled = trial.sample()
    assert len(sampled) == min(max_num_seqs, trial.max_num_tokens)
    assert all(one.is_valid and one.logprobs is not None for one in sampled)


@pytest.mark.parametrize(("forward", "sampling"), [(500, 700), (700, 500)])
def test_graphs_have_memory_beside_that_of_other_steps(
    forward: int, sampling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(shapes: GraphShapes | None) -> int:
        peaks = iter((1000 + forward, 1000 + sampling, 1000 + 60))
        monkeypatch.setattr("torch.cuda.memory_allocated", lambda _: 1000)
        monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", lambda _: None)
        monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda _: next(peaks))
        model, config = FakeModel(), EngineConfig(model="m", device="cpu", max_num_seqs=4, max_num_batched_tokens=60)
        return measure_activations(model, KVCacheSpec.from_layers(model.attention_specs, 16), config, shapes)

    assert measured(None) == 700
    shapes = GraphShapes(max_num_seqs=4, max_num_batched_tokens=60, max_model_len=128)
    logits_bytes = 5 * FakeModel().vocab_size * 4  # padding is a request more
    assert measured(shapes) == 700 + 102 + logits_bytes  # 1.7 times 60: a pool holds more than is in use


def test_what_the_device_decides_is_left_open_until_it_is_known() -> None:
    config = EngineConfig(model="m")
    assert (config.for_device("cpu").block_size, config.for_device("cpu").max_num_batched_tokens) == (16, 4096)
    assert (config.for_device("cuda").block_size, config.for_device("cuda").max_num_batched_tokens) == (128, 16384)
    chosen = EngineConfig(model="m", block_size=32, max_num_batched_tokens=512)
    assert chosen.for_device("cuda") == chosen
    assert EngineConfig(model="m", max_num_seqs=9000).for_device("cpu").max_num_batched_tokens == 9000
