"""The KV cache's memory: which layer uses which tensor, and how much there is."""

from pathlib import Path

import pytest
import torch

from rose.engine.config import EngineConfig
from rose.engine.kv_cache.spec import KVCacheSpec, KVGroup
from rose.engine.worker.kv_tensors import KVTensors, available_kv_bytes

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_layer_has_its_groups_table_and_a_tensor_of_its_own_within_the_group(dtype: torch.dtype) -> None:
    spec = KVCacheSpec((KVGroup(None, (1, 4)), KVGroup(8, (0, 2, 3))), block_size=4, num_kv_heads=2, head_dim=3)
    kv = KVTensors(spec, 7, device=CPU, dtype=dtype)
    assert [tuple(tensor.shape) for tensor in kv.tensors] == [(2, 7, 4, 2, 3)] * 3
    assert sum(tensor.nbytes for tensor in kv.tensors) == 7 * spec.block_bytes(dtype.itemsize)
    assert not any(tensor.any() for tensor in kv.tensors)
    tables, slots = [torch.tensor([[1]]), torch.tensor([[2]])], [torch.tensor([4]), torch.tensor([8])]
    layers = kv.layers(tables, slots)
    for layer, (group, tensor) in enumerate([(1, 0), (0, 0), (1, 1), (1, 2), (0, 1)]):
        assert layers[layer].block_table is tables[group]
        assert layers[layer].slot_mapping is slots[group]
        assert layers[layer].key.data_ptr() == kv.tensors[tensor][0].data_ptr()
        assert layers[layer].value.data_ptr() == kv.tensors[tensor][1].data_ptr()
        assert layers[layer].key.dtype == dtype


def test_a_cpu_gives_a_quarter_of_its_available_memory_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rose.engine.worker.kv_tensors._MEMINFO", tmp_path / "meminfo")
    config = EngineConfig(model="m")
    assert available_kv_bytes(config, CPU, activation_bytes=0) == 1 * GIB, "not every system tells"
    # Most of the memory is in the page cache, which gives way.
    for available_kib, expected in ((8 << 20, 2 * GIB), (800 << 20, 4 * GIB)):
        (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemFree:  1024 kB\nMemAvailable:   {available_kib} kB\n")
        assert available_kv_bytes(config, CPU, activation_bytes=0) == expected


def test_a_gpu_gives_what_the_utilization_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (50 * GIB, 100 * GIB))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 45 * GIB)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 35 * GIB)
    config = EngineConfig(model="m", gpu_memory_utilization=0.9)
    # 40 in use: 35 here, and 5 by others.
    left = available_kv_bytes(config, torch.device("cuda"), activation_bytes=3 * GIB)
    assert left == pytest.approx((90 - 40 - 3) * GIB, abs=1)
