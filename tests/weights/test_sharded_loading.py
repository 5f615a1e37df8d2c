"""Each rank's part, loaded alone: together they are the whole, and of the files each reads what it needs."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rose.dist.placement import ALONE, GroupRank, Placement
from rose.errors import ConfigError
from rose.layers.linear import Linear
from rose.layers.parameter import Parameter, ShardSpec, check_split, materialize
from rose.layers.quant import quant_method
from rose.models.gpt_oss.config import read_config
from rose.models.gpt_oss.model import GptOssForCausalLM
from rose.models.gpt_oss.published import published_config
from rose.models.weight_map import SourceTensor, WeightRule
from rose.weights import loader
from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.held import Held
from rose.weights.jobs import cut_into_jobs
from rose.weights.loader import load_dummy, load_from
from rose.weights.safetensors_header import TensorInfo, read_header
from rose.weights.synthetic import SyntheticSource, synthetic_source
from tests.checkpoints import TinyShape, write_checkpoint

# Four times 128 rows in each section of the fused projection, and a hidden size that does not fill its last block.
SHAPE = TinyShape(
    vocab_size=512,
    hidden_size=160,
    intermediate_size=96,
    num_layers=1,
    num_q_heads=16,
    num_kv_heads=8,
    head_dim=64,
    num_experts=8,
)
QKV_ROWS = (1024, 512, 512)

# By the end of a parameter's name: the dimension and the group that it is split over. The rest is on every rank.
SPLIT = {
    "embedding.weight": (0, "tp"),
    "unembedding.weight": (0, "tp"),
    "unembedding.row_scales": (0, "tp"),
    "unembedding.block_scales": (0, "tp"),
    "attn.qkv.weight": (0, "tp"),
    "attn.qkv.row_scales": (0, "tp"),
    "attn.qkv.block_scales": (0, "tp"),
    "attn.qkv.bias": (0, "tp"),
    "attn.attention.sinks": (0, "tp"),
    "attn.out.weight": (1, "tp"),
    "attn.out.block_scales": (1, "tp"),
} | {
    f"mlp.{matrix}.{part}": (0, "ep")
    for matrix in ("gate_up", "down")
    for part in ("weight", "row_scales", "block_scales", "blocks", "scales", "bias")
}
REPLICATED = ("norm.weight", "router.weight", "router.bias", "attn.out.bias", "attn.out.row_scales")


def place(tp_size, ep_size):
    """One placement for each rank of the larger group."""
    return [
        Placement(GroupRank(rank % tp_size, tp_size), GroupRank(rank % ep_size, ep_size))
        for rank in range(max(tp_size, ep_size))
    ]


def load(source, placement=ALONE, dtype=torch.bfloat16, **formats):
    return load_from(source, device="cpu", dtype=dtype, placement=placement, **formats)


def as_bytes(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def expected_part(name, whole, placement, sections):
    """A rank's part of a whole parameter, by name, with nothing but torch.chunk."""
    ends = [end for end in SPLIT if name == end or name.endswith("." + end)]
    if not ends:
        assert name.endswith(REPLICATED), name
        return whole
    dim, group = SPLIT[max(ends, key=len)]
    place = {"tp": placement.tp, "ep": placement.ep}[group]
    assert whole.shape[dim] % place.size == 0
    parts = [whole]
    if "attn.qkv" in name:
        parts = whole.split([rows * whole.shape[0] // sum(sections) for rows in sections])
    return torch.cat([part.chunk(place.size, dim)[place.rank] for part in parts], dim)


def assert_parts_of(whole, part, placement, sections=QKV_ROWS):
    expected = dict(whole.named_parameters())
    actual = dict(part.named_parameters())
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        wanted = expected_part(name, expected[name].data, placement, sections)
        assert tensor.shape == wanted.shape, name
        assert tensor.dtype == wanted.dtype, name
        assert torch.equal(as_bytes(tensor), as_bytes(wanted)), (name, placement)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch):
    def poison(module, device, placement):
        materialize(module, device, placement)
        for parameter in module.parameters():
            parameter.data.view(torch.uint8).fill_(0xFF)

    monkeypatch.setattr(loader, "materialize", poison)
    monkeypatch.setattr(loader, "JOB_BYTES", 100_000)  # the larger rules are cut


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints by how they are stored."""
    root = tmp_path_factory.mktemp("stored")
    made = {
        layout: Checkpoint(write_checkpoint(root / layout, SHAPE, layout=layout))
        for layout in ("hugging_face", "hugging_face_floats", "original")
    }
    for experts, dense in (("mxfp4", "bf16"), ("fp8", "fp8"), ("fp8-block", "fp8-block")):
        convert(made["original"], root / f"rose {experts}", experts=experts, dense=dense)
        made[f"rose {experts}"] = Checkpoint(root / f"rose {experts}")
    return made


@pytest.mark.parametrize("dense", ["bf16", "fp8", "fp8-block"])
@pytest.mark.parametrize("experts", ["mxfp4", "fp8", "fp8-block", "bf16"])
@pytest.mark.parametrize("stored", ["hugging_face", "original"])
def test_the_ranks_hold_the_whole(folders, stored, experts, dense):
    whole = load(folders[stored], experts=experts, dense=dense)
    for tp_size, ep_size in ((1, 1), (2, 2), (4, 4), (1, 4), (4, 1), (2, 4)):
        for placement in place(tp_size, ep_size):
            part = load(folders[stored], placement, experts=experts, dense=dense)
            assert_parts_of(whole, part, placement)


@pytest.mark.parametrize("formats", ["bf16", "fp8", "fp8-block"])
@pytest.mark.parametrize("stored", ["hugging_face_floats", "rose mxfp4", "rose fp8", "rose fp8-block"])
def test_from_whatever_is_stored(folders, stored, formats):
    whole = load(folders[stored], experts=formats, dense=formats)
    for placement in [*place(2, 4), *place(4, 2)]:
        part = load(folders[stored], placement, experts=formats, dense=formats)
        assert_parts_of(whole, part, placement)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_plain_floats_of_another_dtype(folders, dtype):
    whole = load(folders["hugging_face"], dtype=dtype)
    for placement in place(4, 2):
        assert_parts_of(whole, load(folders["hugging_face"], placement, dtype=dtype), placement)


@pytest.mark.parametrize("job_bytes", [1, 1 << 30])
def test_cuts_through_blocks_of_what_is_stored(job_bytes, tmp_path, monkeypatch):
    """A rank's rows begin and end within stored blocks of 128 rows, some of which have rows of two sections."""
    shape = TinyShape(vocab_size=260, num_layers=1, num_q_heads=12, num_kv_heads=4, tie_word_embeddings=False)
    sections = (192, 64, 64)
    convert(Checkpoint(write_checkpoint(tmp_path / "source", shape)), tmp_path / "blocks", dense="fp8-block")
    stored = Checkpoint(tmp_path / "blocks")
    monkeypatch.setattr(loader, "JOB_BYTES", job_bytes)
    for dense in ("bf16", "fp8"):
        whole = load(stored, dense=dense)
        for placement in [*place(2, 1), *place(4, 1)]:
            assert_parts_of(whole, load(stored, placement, dense=dense), placement, sections)


def test_tied_ends_share_one_part(tmp_path):
    shape = TinyShape(vocab_size=96, num_layers=1, tie_word_embeddings=True)
    source = Checkpoint(write_checkpoint(tmp_path, shape))
    whole = load(source)
    for placement in place(2, 7):
        assert_parts_of(whole, load(source, placement), placement, (96, 32, 32))


def record_reads(monkeypatch, source, *placements, **formats):
    """How often each byte of a checkpoint of one file is read by each of the ranks."""
    size = (source.folder / "model.safetensors").stat().st_size
    counts = []
    preadv = os.preadv
    for placement in placements:
        reads = []

        def count(descriptor, buffers, offset, reads=reads):
            done = preadv(descriptor, buffers, offset)
            reads.append((offset, done))
            return done

        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", count)
            load(source, placement, **formats)
        read = torch.zeros(size, dtype=torch.int32)
        for offset, length in reads:
            read[offset : offset + length] += 1
        counts.append(read)
    return counts


@pytest.mark.parametrize(("experts", "dense"), [("mxfp4", "bf16"), ("fp8", "fp8"), ("fp8-block", "fp8-block")])
@pytest.mark.parametrize("stored", ["hugging_face", "original"])
@pytest.mark.parametrize(("tp_size", "ep_size"), [(4, 4), (2, 8)])
def test_only_what_a_rank_needs_is_read(folders, stored, experts, dense, tp_size, ep_size, monkeypatch):
    source = folders[stored]
    by_tp = ("embed", "lm_head", "q_proj", "k_proj", "v_proj", "qkv", "sinks")
    by_ep = ("experts", "mlp1", "mlp2")
    on_all = ("norm", "router", "gate", "o_proj", "attn.out")  # o_proj: its rows are read whole
    placements = place(tp_size, ep_size)
    counts = record_reads(monkeypatch, source, *placements, experts=experts, dense=dense)
    header_bytes = None
    for info in read_header(source.folder / "model.safetensors"):
        header_bytes = info.offset if header_bytes is None else header_bytes
        is_tp, is_ep = (any(word in info.name for word in words) for words in (by_tp, by_ep))
        assert is_tp or is_ep or any(word in info.name for word in on_all), info.name
        bytes_of = [count[info.offset : info.offset + info.num_bytes].view(info.shape[0], -1) for count in counts]
        for placement, count in zip(placements, bytes_of, strict=True):
            needed = torch.ones_like(count)
            if is_tp or is_ep:
                group = placement.tp if is_tp else placement.ep
                needed.zero_()
                rows = QKV_ROWS if ".qkv." in info.name else (info.shape[0],)
                for section in needed.split(rows):
                    section.chunk(group.size)[group.rank].fill_(1)
            assert torch.equal(count, needed), (info.name, placement)
        # Over the ranks of a group, no byte is read twice and none left out.
        if is_tp or is_ep:
            times = len(placements) // (tp_size if is_tp else ep_size)
            assert bool((sum(bytes_of) == times).all()), info.name
    assert all(int(count[:header_bytes].sum()) == 0 for count in counts)


def test_progress_counts_what_the_rank_reads(folders, monkeypatch):
    (placement,) = place(4, 8)[3:4]
    reports = []
    (count,) = record_reads(
        monkeypatch, folders["original"], placement, progress=lambda done, total: reports.append((done, total))
    )
    total = int(count.sum())
    assert reports[0] == (0, total)
    assert reports[-1] == (total, total)
    assert total < folders["original"].num_bytes / 2


def test_the_log_says_which_part(folders, caplog):
    caplog.set_level("INFO", logger="rose.weights.loader")
    load(folders["original"], place(4, 8)[5])
    load(folders["original"])
    part, whole = (record.getMessage() for record in caplog.records)
    assert ": the part of tp rank 1 of 4 and ep rank 5 of 8, of " in part
    assert "rank" not in whole.split(": ", 1)[1]


def build(name, experts, dense):
    return GptOssForCausalLM(
        read_config(published_config(name, 2), name),
        dtype=torch.bfloat16,
        expert_quant=quant_method(experts),
        dense_quant=quant_method(dense),
    )


@pytest.mark.parametrize("dense", ["bf16", "fp8"])
@pytest.mark.parametrize(("name", "ep_sizes"), [("gpt-oss-20b", (2, 8, 32)), ("gpt-oss-120b", (2, 8, 64, 128))])
def test_the_published_models_can_be_split(name, ep_sizes, dense):
    for experts in ("mxfp4", "fp8", "fp8-block", "bf16"):
        model = build(name, experts, dense)
        for tp_size in (1, 2, 4, 8):
            for ep_size in ep_sizes:
                check_split(model, Placement(GroupRank(0, tp_size), GroupRank(0, ep_size)))


@pytest.mark.parametrize(
    ("tp_size", "ep_size", "dense", "message"),
    [
        (3, 1, "bf16", r"embedding\.weight \[201088, 2880\] .* 3 ranks \(tp\): 201088 .* 3 equal parts$"),
        (16, 1, "bf16", r"blocks\.0\.attn\.qkv\.weight .* 16 ranks \(tp\): 512 .* in multiples of 64$"),
        (8, 1, "fp8-block", r"blocks\.0\.attn\.qkv\.weight .* 8 ranks \(tp\): 512 .* in multiples of 128$"),
        (2, 1, "fp8-block", r"unembedding\.weight .* 2 ranks \(tp\): 201088 .* in multiples of 128$"),
        (1, 64, "bf16", r"blocks\.0\.mlp\.gate_up\..* 64 ranks \(ep\): 32 cannot"),
    ],
)
def test_sizes_that_do_not_divide(tp_size, ep_size, dense, message, monkeypatch):
    """Known before there is memory for anything."""
    monkeypatch.setattr(loader, "materialize", None)
    with pytest.raises(ConfigError, match=message):
        load_dummy(
            "gpt-oss-20b",
            device="cpu",
            dtype=torch.bfloat16,
            placement=Placement(GroupRank(0, tp_size), GroupRank(0, ep_size)),
            dense=dense,
        )


@pytest.mark.parametrize(("rank", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_is_not_there(rank, size):
    with pytest.raises(ConfigError, match=f"there is no rank {rank} in a group of {size}"):
        GroupRank(rank, size)


def test_a_layer_of_20b(monkeypatch):
    """Real shapes, but for the vocabulary and the number of experts, of which each rank has one."""
    monkeypatch.setattr(loader, "JOB_BYTES", 64 << 20)
    config = published_config("gpt-oss-20b", 1) | {"vocab_size": 1024, "num_local_experts": 8}
    source = SyntheticSource(config, "one layer")
    whole = load(source, experts="mxfp4", dense="fp8")
    for placement in (place(8, 8)[0], place(8, 8)[5]):
        part = load(source, placement, experts="mxfp4", dense="fp8")
        assert_parts_of(whole, part, placement, (4096, 512, 512))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_a_published_layer_in_fp8(name, monkeypatch):
    monkeypatch.setattr(loader, "JOB_BYTES", 64 << 20)
    source = synthetic_source(name, num_layers=1)
    whole = load(source, experts="fp8", dense="fp8")
    for placement in place(8, 8):
        assert_parts_of(whole, load(source, placement, experts="fp8", dense="fp8"), placement, (4096, 512, 512))


@st.composite
def splits(draw):
    """Sections, number of ranks, and a unit that divides each rank's part of each section."""
    size, unit = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return [count * size * unit for count in counts], size, unit


@given(splits(), st.sampled_from(["tp", "ep"]))
def test_ranges_of_all_ranks_are_the_whole(split, group):
    sections, size, unit = split
    spec = ShardSpec(dim=1, sections=tuple(sections) if len(sections) > 1 else None, group=group, unit=unit)
    length = sum(sections)
    entries = []
    for rank in range(size):
        placement = Placement(**{group: GroupRank(rank, size)})
        ranges = spec.held(length, placement)
        held = [entry for start, stop in ranges for entry in range(start, stop)]
        assert held == sorted(held)
        assert spec.held_shape((3, length, 2), placement) == (3, len(held), 2) == (3, length // size, 2)
        # Whole units, counted from the start of their section.
        starts = torch.tensor([0, *sections]).cumsum(0)
        for section, first in zip(sections, starts.tolist(), strict=False):
            units = {(entry - first) // unit for entry in held if first <= entry < first + section}
            assert len(units) * unit == sum(first <= entry < first + section for entry in held) == section // size
        entries += held
    assert sorted(entries) == list(range(length))


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 8))
def test_uneven_parts_and_parts_of_units_are_refused(length, size, unit):
    spec, placement = ShardSpec(dim=0, unit=unit), Placement(tp=GroupRank(0, size))
    if size == 1 or (length % size == 0 and length // size % unit == 0):
        assert spec.held(length, placement) == ((0, length // size),)
    else:
        with pytest.raises(ValueError, match=f"{length} cannot be split into {size} equal parts"):
            spec.held(length, placement)


class FirstRowOfEachPart:
    """Makes each part's target rows from its sources, so that parts cannot be mixed up without notice."""

    name = "test"

    def __init__(self, source_rows, target_rows):
        self.source_rows, self.target_rows = source_rows, target_rows

    def fill(self, targets, sources):
        (source,) = sources
        for target, rows in zip(targets, self.target_rows, strict=True):
            first = source[:: self.source_rows].repeat_interleave(rows)[: target.shape[0]]
            target.copy_(first * 1000 + torch.arange(target.shape[0]) % rows)

    def loss(self, targets, sources):
        return None


@given(split=splits(), source_rows=st.integers(1, 7), block=st.integers(1, 7), job_bytes=st.integers(1, 400))
def test_jobs_of_a_rank(split, source_rows, block, job_bytes):
    """A rule with numbers and, for every `block` of them, a scale; sections and blocks need not fit each other."""
    sections, size, _ = split
    length = sum(sections)
    num_parts = -(-length // block)
    fits = all(section // size % block == 0 for section in sections)
    specs = [ShardSpec(dim=0, sections=tuple(sections))]
    specs += [specs[0].of_blocks(block)] if fits else [ShardSpec()]
    heights = [length, num_parts]
    info = TensorInfo("t", "I64", (num_parts * source_rows,), num_parts * source_rows * 8, "file", 0)
    numbers = torch.arange(num_parts * source_rows)
    transform = FirstRowOfEachPart(source_rows, (block, 1))
    source = SourceTensor("t", info.shape, ("I64",))
    rule = WeightRule(("numbers", "scales"), (source,), transform, cut_rows=(source_rows, block, 1))
    whole = [torch.empty(height, dtype=torch.int64) for height in heights]
    transform.fill(whole, [numbers])
    for rank in range(size):
        placement = Placement(tp=GroupRank(rank, size))
        parts = [
            torch.full(spec.held_shape((height,), placement), -1) for spec, height in zip(specs, heights, strict=True)
        ]
        held = [
            Held.of(part, spec, (height,), None, placement)
            for part, spec, height in zip(parts, specs, heights, strict=True)
        ]
        shapes, wanted = [each.shape for each in held], [each.rows for each in held]
        jobs = list(cut_into_jobs(rule, {"t": info}, shapes, wanted=wanted, job_bytes=job_bytes))
        for job in jobs:
            (piece,) = job.slices
            outputs = [each.output(rows) for each, rows in zip(held, job.target_rows, strict=True)]
            transform.fill(outputs, [numbers[piece.start : piece.stop]])
            for each, rows, output in zip(held, job.target_rows, outputs, strict=True):
                each.keep(rows, output)
        expected = torch.cat([part.chunk(size)[rank] for part in whole[0].split(sections)])
        assert torch.equal(parts[0], expected)
        if fits:
            scales = torch.cat([part.chunk(size)[rank] for part in whole[1].split([s // block for s in sections])])
        else:
            scales = whole[1]
        assert torch.equal(parts[1], scales)
        # No part is read twice, and with scales that are split none is read for nothing.
        slices = [piece for job in jobs for piece in job.slices]
        read = [row // source_rows for piece in slices for row in range(piece.start, piece.stop, source_rows)]
        assert len(read) == len(set(read))
        if fits:
            assert {part * source_rows * 1000 for part in read} == set((expected // 1000 * 1000).tolist())


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("quant", ["bf16", "mxfp4", "fp8", "fp8-block"])
def test_blocks_and_scales_are_split_where_their_weight_is(quant, dim):
    """Along a dimension of 768 that may be cut at multiples of 48, and where the format allows it."""
    spec = ShardSpec(dim=dim, unit=48)
    unit = {"bf16": 48, "mxfp4": 96 if dim == 1 else 48, "fp8": 48, "fp8-block": 384}[quant]
    layer = Linear(768, 768, bias=False, dtype=torch.bfloat16, quant=quant_method(quant), shard=spec)
    for size in (1, 2, 3, 4, 8, 16):
        placement = Placement(tp=GroupRank(size - 1, size))
        if size > 1 and 768 // size % unit:
            with pytest.raises(ConfigError, match=f"cannot be held by {size} ranks"):
                check_split(layer, placement)
            continue
        check_split(layer, placement)
        for name, parameter in layer.named_parameters():
            if parameter.dim() <= dim:
                assert parameter.shard == ShardSpec(), name
                continue
            entries = parameter.shape[dim]
            assert parameter.shard.held(entries, placement) == ((entries - entries // size, entries),), name


def test_every_parameter_says_how_it_is_split():
    """The table above and the model agree, parameter by parameter, so that nothing is split or copied by oversight."""
    for experts in ("mxfp4", "fp8", "fp8-block", "bf16"):
        for dense in ("bf16", "fp8", "fp8-block"):
            for name, parameter in build("gpt-oss-20b", experts, dense).named_parameters():
                assert isinstance(parameter, Parameter)
                ends = [end for end in SPLIT if name == end or name.endswith("." + end)]
                expected = SPLIT[max(ends, key=len)] if ends else (None, "tp")
                assert (parameter.shard.dim, parameter.shard.group) == expected, name
