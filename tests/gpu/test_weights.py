"""Number formats and loading on a GPU: the same bits as on the CPU, and how long a load takes."""

import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from rose.errors import CheckpointError
from rose.kernels.mxfp4_to_fp8.op import mxfp4_to_fp8_
from rose.models.weight_map import Recode
from rose.numerics import fp8
from rose.numerics.format import FORMAT_NAMES, get_format
from rose.numerics.mxfp4 import Mxfp4Tensor
from rose.numerics.mxfp4_to_fp8 import loss_if_exact, to_fp8_blocks, to_fp8_rows
from rose.weights import loader
from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.loader import load_dummy, load_model
from rose.weights.synthetic import synthetic_source
from tests.checkpoints import TinyShape, write_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def bits(tensor):
    return tensor.cpu().contiguous().view(torch.uint8)


def random_mxfp4(*shape, low=110, high=128):
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (*shape[:-1], shape[-1] // 32, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(low, high, blocks.shape[:-1], generator=generator, dtype=torch.uint8)
    return Mxfp4Tensor(blocks, scales)


def test_powers_of_two_are_exact():
    exponents = torch.arange(-126, 128, dtype=torch.int32)
    assert torch.equal(fp8.powers_of_two(exponents.cuda()).cpu(), fp8.powers_of_two(exponents))


@pytest.mark.parametrize(("low", "high"), [(118, 124), (100, 130), (0, 252)])
@pytest.mark.parametrize("convert_to", [to_fp8_rows, to_fp8_blocks])
def test_mxfp4_to_fp8_gives_the_same_bits(convert_to, low, high):
    tensor = random_mxfp4(2, 300, 2880, low=low, high=high)
    there = convert_to(Mxfp4Tensor(tensor.blocks.cuda(), tensor.scales.cuda()))
    here = convert_to(tensor)
    assert torch.equal(bits(there.values), bits(here.values))
    assert torch.equal(there.scales.cpu(), here.scales)
    shape = (1, 0) if convert_to is to_fp8_rows else (128, 128)
    assert loss_if_exact(Mxfp4Tensor(tensor.blocks.cuda(), tensor.scales.cuda()), there.scales, shape) == loss_if_exact(
        tensor, here.scales, shape
    )


@pytest.mark.parametrize("form", [fp8.Fp8RowTensor, fp8.Fp8BlockTensor])
@pytest.mark.parametrize(("low", "high"), [(118, 124), (100, 130), (0, 16), (0, 255)])
@pytest.mark.parametrize("shape", [(1, 32), (3, 5, 160), (130, 160), (2, 300, 2880), (7, 5760, 2880)], ids=str)
def test_the_kernel_from_mxfp4_to_fp8_gives_the_same_bits(shape, low, high, form):
    """Into memory full of NaN, between other memory that stays as it is; the last shape is a job of 120b."""
    tensor = random_mxfp4(*shape, low=low, high=high)
    tensor.blocks[..., 0, :, :] = 0x80  # a row of zeros, every second of them negative
    tensor.blocks[..., -1, 0, :] &= 0x88  # and a block, whose scale must not count
    source = Mxfp4Tensor(tensor.blocks.cuda(), tensor.scales.cuda())
    expected = (to_fp8_rows if form is fp8.Fp8RowTensor else to_fp8_blocks)(source)
    values = torch.full((3, *shape), 0x7F, dtype=torch.uint8, device="cuda")
    scales = torch.full((3, *expected.scales.shape), torch.nan, device="cuda")
    mxfp4_to_fp8_(source, form(values[1].view(fp8.E4M3), scales[1]))
    assert torch.equal(values[1], expected.values.view(torch.uint8))
    assert torch.equal(scales[1], expected.scales)
    for side in (0, 2):
        assert values[side].eq(0x7F).all()
        assert scales[side].isnan().all()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("target", FORMAT_NAMES)
@pytest.mark.parametrize("source", FORMAT_NAMES)
def test_no_transform_waits_for_the_gpu(source, target):
    transform = Recode(get_format(source), get_format(target))
    parts = [part.cuda() for part in get_format(source).encode(torch.randn(2, 130, 96))]
    shapes = get_format(target).parts((2, 130, 96))
    targets = [torch.empty(part.shape, dtype=part.dtype, device="cuda") for part in shapes]
    transform.write(targets, parts)  # makes tables, compiles kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        sound = transform.is_sound(parts)
        transform.write(targets, parts)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sound is None or bool(sound)


@pytest.mark.parametrize("stored", ["mxfp4", "fp8", "fp8-block"])
@pytest.mark.parametrize("wanted", ["mxfp4", "fp8", "fp8-block", "bf16"])
@pytest.mark.parametrize("spoiled", ["scales", "bias"])
def test_what_is_impossible_is_told_as_on_the_cpu(stored, wanted, spoiled, tmp_path, monkeypatch):
    """In jobs of an expert, by file, tensor and position."""
    monkeypatch.setattr(loader, "JOB_BYTES", 1024)
    convert(Checkpoint(write_checkpoint(tmp_path / "source", TinyShape())), tmp_path / "out", experts=stored)
    (tmp_path / "out" / "manifest.json").unlink()  # its account of the file will not hold
    path = tmp_path / "out" / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith(spoiled) and "down" in name)
    if spoiled == "bias":
        tensors[name][2, -1] = torch.nan
    else:
        tensors[name][2, -1] = 255 if stored == "mxfp4" else 3.0  # NaN, or no power of two
    save_file(tensors, path)
    messages = []
    for device in ("cpu", "cuda"):
        with pytest.raises(CheckpointError) as caught:
            load_model(path.parent, device=device, dtype=torch.bfloat16, experts=wanted)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert name in messages[0]
    assert str(path) in messages[0]


@pytest.mark.parametrize("encode", [fp8.encode_rows, fp8.encode_blocks])
def test_rounding_to_fp8_gives_the_same_bits(encode):
    sizes = torch.logspace(-8, 4, 300).unsqueeze(1)
    weight = torch.randn(300, 2880, generator=torch.Generator().manual_seed(0)) * sizes
    there, here = encode(weight.cuda()), encode(weight)
    assert torch.equal(bits(there.values), bits(here.values))
    assert torch.equal(there.scales.cpu(), here.scales)
    for rounding in (fp8.round_tokens, fp8.round_token_groups):
        x = weight.bfloat16()
        assert torch.equal(rounding(x.cuda()).cpu(), rounding(x))


@pytest.mark.parametrize("layout", ["hugging_face", "hugging_face_floats", "original"])
@pytest.mark.parametrize(
    ("experts", "dense"), [("mxfp4", "bf16"), ("bf16", "fp8"), ("fp8", "fp8"), ("fp8-block", "fp8-block")]
)
def test_a_load_fills_the_same_parameters(layout, experts, dense, tmp_path):
    folder = write_checkpoint(tmp_path, TinyShape(), layout=layout, num_files=3)
    here, there = (
        load_model(folder, device=device, dtype=torch.bfloat16, experts=experts, dense=dense)
        for device in ("cpu", "cuda")
    )
    # Kernels may rearrange parameters on a GPU; what they have in common must be equal.
    theirs = dict(there.named_parameters())
    compared = 0
    for name, parameter in here.named_parameters():
        if name in theirs and theirs[name].shape == parameter.shape and theirs[name].dtype == parameter.dtype:
            assert torch.equal(bits(theirs[name]), bits(parameter)), name
            compared += 1
    assert compared > 20


def test_conversion_on_the_gpu_writes_the_same_files(tmp_path):
    folder = write_checkpoint(tmp_path / "source", TinyShape())
    for device in ("cpu", "cuda"):
        convert(Checkpoint(folder), tmp_path / device, experts="fp8", dense="fp8-block", device=device)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "cuda" / file).read_bytes() == (tmp_path / "cpu" / file).read_bytes()


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_dummy_weights_are_made_on_the_device(name):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    model = load_dummy(name, device="cuda", dtype=torch.bfloat16, experts="mxfp4")
    seconds, peak = time.perf_counter() - start, torch.cuda.max_memory_allocated()
    size = sum(parameter.nbytes for parameter in model.parameters())
    print(f"{name}: {size / 1e9:.1f} GB made in {seconds:.1f} s, peak {peak / 1e9:.1f} GB")
    assert peak < size + 6e9
    assert all(torch.isfinite(p).all() for p in model.parameters() if p.is_floating_point() and p.itemsize > 1)


@pytest.mark.parametrize("experts", ["mxfp4", "fp8"])
def test_how_long_a_load_takes(experts, tmp_path_factory, capsys):
    """Four layers of 20b, 4.2 GB in the page cache; the whole model is 3.3 times that."""
    folder = tmp_path_factory.mktemp("load") / "checkpoint"
    convert(synthetic_source("gpt-oss-20b", num_layers=4), folder, layout="hf")
    load_model(folder, device="cuda", dtype=torch.bfloat16, experts=experts)  # compiles what there is to compile
    start = time.perf_counter()
    load_model(folder, device="cuda", dtype=torch.bfloat16, experts=experts)
    seconds = time.perf_counter() - start
    rate = Checkpoint(folder).num_bytes / 1e9 / seconds
    with capsys.disabled():
        print(f"\n20b, 4 layers, experts {experts}: {seconds:.2f} s, {rate:.2f} GB/s")
    assert rate > 2.3  # 13.8 GB in 6 s
