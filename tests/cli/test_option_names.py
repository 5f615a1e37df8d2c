"""Settings in messages, as the command line spells them."""

import pytest

from rose.cli.main import app
from rose.cli.option_names import with_option_names


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("device cuda: finds no GPU; use device=cpu or auto", "--device cuda: finds no GPU; use --device cpu or auto"),
        ("lower max_model_len to 9, or raise gpu_memory_utilization (GPU), kv_cache_bytes or num_blocks",
         "lower --max-model-len to 9, or raise --gpu-memory-utilization (GPU), kv_cache_bytes or num_blocks"),
        ("the device of a seed: experts", "the device of a seed: experts"),
        ("block_size.", "--block-size."),
        ("/models/block_size/config.json is missing", "/models/block_size/config.json is missing"),
        ("'block_size', `block_size`, block_size.json", "'block_size', `block_size`, block_size.json"),
        ("--block-size is too small", "--block-size is too small"),
        ("dense weights are bf16, fp8 or fp8-block", "dense weights are bf16, fp8 or fp8-block"),
    ],
)  # fmt: skip
def test_the_options_of_the_command(message: str, shown: str) -> None:
    assert with_option_names(message, app, ["serve", "rose-demo"]) == shown


def test_what_the_command_does_not_take_is_left_alone() -> None:
    message = "max_model_len must be at least 2, not 1; [sweep]: block_size is no key of a sweep"
    for arguments in ([], ["inspect", "x"], ["bench", "sweep", "x.toml"], ["bench"]):
        assert with_option_names(message, app, arguments) == message
