"""Every tensor used once, every parameter filled once; anything else is refused before a weight is read."""

import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.errors import CheckpointError, UnsupportedModel
from rose.layers.parameter import materialize
from rose.models.weight_map import Copy, SourceTensor, WeightRule
from rose.weights import loader
from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.inventory import take_inventory
from rose.weights.ledger import find_problems
from rose.weights.loader import load_model
from tests.checkpoints import TinyShape, write_checkpoint

SHAPE = TinyShape(num_layers=2)
BLOCKS = "model.layers.1.mlp.experts.gate_up_proj_blocks"
SCALES = "model.layers.1.mlp.experts.down_proj_scales"


def load(folder, **options):
    return load_model(folder, device="cpu", dtype=torch.float32, **options)


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "checkpoint", SHAPE)


def change(folder, edit):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)


def assert_refused(folder, *fragments):
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize(
    ("experts", "dense"), [("mxfp4", "bf16"), ("bf16", "fp8"), ("fp8", "bf16"), ("fp8-block", "fp8-block")]
)
@pytest.mark.parametrize("layout", ["hugging_face", "hugging_face_floats", "original", "rose"])
def test_every_parameter_is_filled(layout, experts, dense, tmp_path, monkeypatch):
    """Memory is full of NaN, in whatever format, before anything is loaded."""

    def poison(module, device, placement):
        materialize(module, device, placement)
        for parameter in module.parameters():
            if parameter.itemsize == 1:
                parameter.data.view(torch.uint8).fill_(0x7F if parameter.is_floating_point() else 255)
            else:
                parameter.data.fill_(float("nan"))

    folder = write_checkpoint(
        tmp_path / "source", SHAPE, layout="original" if layout == "rose" else layout, num_files=3
    )
    if layout == "rose":
        convert(Checkpoint(folder), tmp_path / "out", experts="fp8", dense="fp8")
        folder = tmp_path / "out"
    monkeypatch.setattr(loader, "materialize", poison)
    # Jobs of a kilobyte, so that every rule that can be cut is.
    monkeypatch.setattr(loader, "JOB_BYTES", 1024)
    model = load(folder, experts=experts, dense=dense)
    for name, parameter in model.named_parameters():
        bad = parameter.float().isnan() if parameter.is_floating_point() else parameter == 255
        assert name.endswith("blocks") or not bad.any(), name
        # Of random bytes some are 255, but not most.
        assert bad.float().mean() < 0.05, name
    assert not any(buffer.is_meta for buffer in model.buffers())


def test_fused_rows_are_query_then_key_then_value(folder):
    tensors = load_file(folder / "model.safetensors")
    weight = load(folder).blocks[1].attn.qkv.weight
    parts = [tensors[f"model.layers.1.self_attn.{letter}_proj.weight"].float() for letter in "qkv"]
    assert torch.equal(weight, torch.cat(parts))


def test_missing_tensor(folder):
    change(folder, lambda tensors: tensors.pop("model.layers.1.self_attn.sinks"))
    assert_refused(folder, str(folder), "model.layers.1.self_attn.sinks is missing")


def test_missing_scales(folder):
    change(folder, lambda tensors: tensors.pop(SCALES))
    assert_refused(folder, f"{SCALES} is missing")


def test_left_over_tensor(folder):
    change(folder, lambda tensors: tensors.update({"model.layers.2.input_layernorm.weight": torch.ones(64)}))
    assert_refused(folder, "model.safetensors", "model.layers.2.input_layernorm.weight", "belongs nowhere")


def test_misshapen_tensor(folder):
    change(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(63)}))
    assert_refused(folder, "model.safetensors", "model.norm.weight is [63], the config asks for [64]")


def test_config_of_another_size(tmp_path):
    folder = write_checkpoint(tmp_path, SHAPE, config_changes={"num_local_experts": 8})
    assert_refused(folder, "is [7, ", "asks for [8, ", "more")


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("model.norm.weight", torch.int8, "is I8, it must be BF16 or F32 or F16"),
        (BLOCKS, torch.int8, "is I8, it must be U8"),
        (SCALES, torch.bfloat16, "is BF16, it must be U8"),
    ],
)
def test_wrongly_typed_tensor(folder, name, dtype, message):
    change(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    assert_refused(folder, f"{name} {message}")


@pytest.mark.parametrize("experts", ["mxfp4", "bf16"])
def test_nan_scale(folder, experts):
    def spoil(tensors):
        tensors[SCALES][2, 5, 1] = 255

    change(folder, spoil)
    with pytest.raises(CheckpointError, match=rf"{SCALES} in .*model.safetensors: 1 MXFP4 .*\[2, 5, 1\]"):
        load(folder, experts=experts)


@pytest.mark.parametrize("layout", ["hugging_face", "hugging_face_floats", "original"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_every_float_is_looked_at(layout, value, tmp_path):
    """Wherever a weight or bias is spoiled, in its last element, file and tensor are named."""
    folder = write_checkpoint(tmp_path, TinyShape(num_layers=1), layout=layout)
    path = folder / "model.safetensors"
    sound = path.read_bytes()
    names = [name for name, tensor in load_file(path).items() if tensor.is_floating_point()]
    assert len(names) > 12
    for name in names:

        def spoil(tensors, name=name):
            tensors[name].view(-1)[-1] = value

        change(folder, spoil)
        last = [size - 1 for size in load_file(path)[name].shape]
        assert_refused(folder, f"{path}: {name} holds {value}", f"at {last}")
        path.write_bytes(sound)


def test_nan_in_a_slice_of_a_tensor(folder, monkeypatch):
    """Tensors are read in slices; the position is that in the tensor."""
    monkeypatch.setattr(loader, "JOB_BYTES", 1024)

    def spoil(tensors):
        tensors["lm_head.weight"][7, 41] = float("nan")

    change(folder, spoil)
    assert_refused(folder, "lm_head.weight holds nan", "at [7, 41]")


def test_a_sum_may_overflow(folder):
    """Large numbers are no reason to refuse a checkpoint."""
    change(folder, lambda tensors: tensors.update({"model.norm.weight": torch.full((64,), 3e38)}))
    assert load(folder).norm.weight.isfinite().all()


@pytest.mark.parametrize("form", ["fp8", "fp8-block"])
@pytest.mark.parametrize("suffix", ["gate_up.weight", "down.{}_scales", "out.weight", "unembedding.{}_scales"])
def test_nan_in_fp8(form, suffix, tmp_path):
    convert(Checkpoint(write_checkpoint(tmp_path / "source", SHAPE)), tmp_path / "out", experts=form, dense=form)
    path = tmp_path / "out" / "model.safetensors"
    suffix = suffix.format({"fp8": "row", "fp8-block": "block"}[form])
    (tmp_path / "out" / "manifest.json").unlink()  # its account of the file no longer holds
    name = next(name for name in load_file(path) if name.endswith(suffix))

    def spoil(tensors):
        flat = tensors[name].view(-1)
        flat.view(torch.uint8)[0] = 0xFF
        if flat.dtype == torch.float32:
            flat[0] = float("nan")

    change(tmp_path / "out", spoil)
    assert_refused(tmp_path / "out", str(path), name)


def test_problems_are_found_before_any_weight_is_read(folder, monkeypatch):
    monkeypatch.setattr(Checkpoint, "stream", lambda self, *args: pytest.fail("read"))
    change(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert_refused(folder, "lm_head.weight is missing")


def test_other_architecture(tmp_path):
    folder = write_checkpoint(tmp_path, SHAPE, config_changes={"model_type": "llama"})
    with pytest.raises(UnsupportedModel, match="llama"):
        load(folder)


@pytest.mark.parametrize("stored", [torch.float32, torch.float16])
def test_other_stored_floats(folder, stored):
    expected = load(folder).norm.weight
    change(folder, lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].to(stored)}))
    assert torch.allclose(load(folder).norm.weight, expected, rtol=1e-3)


def test_progress_counts_every_byte(folder):
    reports = []
    load(folder, progress=lambda done, total: reports.append((done, total)))
    total = Checkpoint(folder).num_bytes
    assert reports[0] == (0, total)
    assert reports[-1] == (total, total)
    assert reports == sorted(reports)


def test_small_experts_are_expanded_and_large_ones_stay_packed(folder, monkeypatch):
    assert load(folder).blocks[0].mlp.down.weight.dtype == torch.float32
    monkeypatch.setattr(loader, "_EXPAND_LIMIT_BYTES", 1000)
    assert load(folder).blocks[0].mlp.down.blocks.dtype == torch.uint8
    assert load(folder, experts="bf16").blocks[0].mlp.down.weight.dtype == torch.float32


def test_ledger_sees_bad_rules(folder):
    """Mistakes of a weight map, not of a checkpoint."""
    model = load(folder)
    info = Checkpoint(folder).tensors
    norm = SourceTensor("model.norm.weight", (64,), ("BF16",))
    rules = [
        WeightRule(("norm.weight",), (norm,), Copy()),
        WeightRule(("norm.weight",), (norm,), Copy()),
        WeightRule(("blocks.0.attn.qkv.bias",), (), Copy(), section=0),
        WeightRule(("nowhere",), (), Copy()),
    ]
    problems = "\n".join(find_problems({"model.norm.weight": info["model.norm.weight"]}, rules, model, "folder"))
    assert "model.norm.weight would be used twice" in problems
    assert "parameter norm.weight would be filled [None, None]" in problems
    assert "parameter blocks.0.attn.qkv.bias would be filled [0]" in problems
    assert "parameter embedding.weight would be filled never" in problems
    assert "there is no parameter nowhere" in problems


def test_copy_never_broadcasts():
    with pytest.raises(ValueError, match=r"cannot fill \(2, 3\) from \(3,\)"):
        Copy().fill([torch.zeros(2, 3)], [torch.zeros(3)])


def test_inventory_says_where_each_tensor_goes(folder):
    change(folder, lambda tensors: tensors.update({"stray": torch.ones(1)}))
    inventory = take_inventory(Checkpoint(folder))
    destinations = {entry.tensor.name: entry.destination for entry in inventory.entries}
    assert destinations["model.layers.1.self_attn.k_proj.bias"] == "blocks.1.attn.qkv.bias[96:128]"
    assert destinations[BLOCKS] == "blocks.1.mlp.gate_up.blocks"
    assert destinations["stray"] is None
    assert len(inventory.problems) == 1


def test_inventory_is_in_order_of_layers(tmp_path):
    folder = write_checkpoint(tmp_path, TinyShape(num_layers=11))
    entries = take_inventory(Checkpoint(folder)).entries
    names = [entry.tensor.name for entry in entries if "sinks" in entry.tensor.name]
    assert names == [f"model.layers.{layer}.self_attn.sinks" for layer in range(11)]


def test_a_load_imports_nothing_slow():
    """sympy, which some of torch's operations on the meta device bring along, takes seconds of every start."""
    code = """
import sys, torch
from rose.weights.loader import load_model
load_model("rose-demo", device="cpu", dtype=torch.float32, experts="fp8")
sys.exit(f"imported: {slow}" if (slow := {"sympy", "triton", "transformers"} & set(sys.modules)) else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
