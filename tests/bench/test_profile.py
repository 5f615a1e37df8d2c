"""Profiles of canned traces."""

import json

import pytest
import torch

from rose.bench.profile import make_profile, profile_steps
from rose.bench.tables import profile_tables
from rose.bench.trace import Work, busy_us, read_trace
from rose.plan.machine import MachineRates
from rose.plan.roofline import OpWork, StepWork


def event(category, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def write(path, *events):
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))
    return path


def test_kernels_are_labelled_by_what_launched_them(tmp_path):
    path = write(
        tmp_path / "trace.json",
        event("user_annotation", "rose:block", 0, 100),
        event("user_annotation", "rose:mlp.gate_up", 10, 20),
        event("user_annotation", "ProfilerStep#1", 0, 200),
        event("cuda_runtime", "cudaLaunchKernel", 12, 2, correlation=1),
        event("cuda_driver", "cuLaunchKernelEx", 40, 2, correlation=2),
        event("cuda_runtime", "cudaLaunchKernel", 150, 2, correlation=3),
        event("cuda_runtime", "cudaLaunchKernel", 15, 2, tid=2, correlation=4),  # another thread's
        event("kernel", "gemm", 1000, 50, tid=7, correlation=1),
        event("kernel", "add", 1050, 5, tid=7, correlation=2),
        event("gpu_memcpy", "Memcpy DtoH", 1060, 1, tid=7, correlation=3),
        event("kernel", "other", 1070, 1, tid=7, correlation=4),
    )
    assert [(work.name, work.label) for work in read_trace(path)] == [
        ("gemm", "mlp.gate_up"),
        ("add", "block"),
        ("Memcpy DtoH", ""),
        ("other", ""),
    ]


def test_operators_count_without_those_they_call(tmp_path):
    path = write(
        tmp_path / "trace.json",
        event("user_annotation", "rose:attn.qkv", 0, 50),
        event("cpu_op", "aten::linear", 1, 40),
        event("cpu_op", "aten::addmm", 2, 30),
        event("cpu_op", "aten::sort", 60, 7),
    )
    assert read_trace(path) == [
        Work("aten::linear", "attn.qkv", 1, 10),
        Work("aten::addmm", "attn.qkv", 2, 30),
        Work("aten::sort", "", 60, 7),
    ]


def test_busy_time_counts_overlaps_once():
    spans = [(0, 10), (5, 10), (6, 2), (20, 5), (25, 5)]
    assert busy_us([Work("k", "", start, duration) for start, duration in spans]) == 25
    assert busy_us([]) == 0


def test_rates_by_hand():
    items = [
        Work("gemm_a", "mlp.gate_up", 0, 60),
        Work("gemm_b", "mlp.down", 60, 20),
        Work("copy", "", 90, 20),
    ]
    rates = MachineRates("a machine", {"bf16": 1e12}, 1e11, "made up")
    # two steps, of each 40 us for 20e6 FLOPs and 1e6 bytes: at least 20 us by FLOPs, 10 by bytes
    work = StepWork((OpWork("experts", 20e6, 1e6, "bf16"),))
    profile = make_profile(items, num_steps=2, wall_us=240, work=work, rates=rates)
    assert (profile.wall_us, profile.busy_us) == (120, 50)
    experts, rest = profile.operations
    assert (experts.name, experts.count, experts.time_us, experts.share) == ("experts", 1, 40, 0.8)
    assert experts.flops_per_s == pytest.approx(0.5e12)
    assert experts.bytes_per_s == pytest.approx(0.25e11)
    assert experts.ceiling_share == pytest.approx(0.5)
    assert rest.flops_per_s is None
    assert [line.name for line in profile.kernels] == ["gemm_a", "gemm_b", "copy"]
    assert profile.kernels[1].flops_per_s == experts.flops_per_s
    text = profile_tables(profile, num_kernels=2)
    assert "| experts | 1 | 40.0 | 80.0% | 0.50 | 25.0 | 50.0% |" in text
    assert "and 1 more kernels" in text


def test_a_real_profile_leaves_no_hooks(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    profile = profile_steps(
        lambda: model(torch.ones(2, 4)),
        model,
        torch.device("cpu"),
        num_steps=3,
        trace=tmp_path / "new" / "trace.json",
        work=None,
        rates=None,
    )
    addmm = [line for line in profile.kernels if line.name == "aten::addmm"]
    assert {line.operation for line in addmm} == {"0", "1"}
    assert all(line.count == 1 for line in addmm)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
