"""One real layer of each published model through the converter: minutes and gigabytes, so not in the quick suite."""

import resource
import shutil

import pytest
import torch

from rose.weights.checkpoint import Checkpoint
from rose.weights.convert import convert
from rose.weights.float_weights import FloatWeights
from rose.weights.hashes import check_hashes
from rose.weights.synthetic import synthetic_source

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def folder(tmp_path):
    """Emptied at once: pytest keeps what tests wrote, and of these it would be 46 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("layout", ["hf", "original"])
@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_one_layer(name, layout, folder):
    convert(synthetic_source(name, num_layers=1), folder / "published", layout=layout)
    published = Checkpoint(folder / "published")
    for experts in ("fp8", "fp8-block"):
        manifest = convert(published, folder / experts, experts=experts)
        assert manifest["inexact_blocks"] == 0
        converted = Checkpoint(folder / experts)
        check_hashes(converted)
        ours, theirs = FloatWeights(converted), FloatWeights(published)
        for parameter in ("gate_up", "down"):
            for expert in (0, 17, 31):
                row = f"blocks.0.mlp.{parameter}.weight"
                assert torch.equal(ours.get_row(row, expert), theirs.get_row(row, expert))
        shutil.rmtree(folder / experts)  # two of them would be 11 GB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 3 * 2**20  # in KiB: under 3 GiB
