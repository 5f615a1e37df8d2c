"""Weights from a random number generator, made where they are needed: on the CPU for a file, on a GPU for a benchmark.

The same seed gives the same weights on one kind of device, however they are cut into slices; a CPU and a GPU have
different generators.
"""

import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rose.errors import CheckpointError, ConfigError
from rose.models.gpt_oss.config import read_config
from rose.models.gpt_oss.published import is_published, published_config, published_names
from rose.models.gpt_oss.synthetic import recipes
from rose.models.recipe import Directions, Mxfp4Codes, Mxfp4Scales, Normal, Recipe
from rose.numerics.mxfp4 import SCALE_BIAS, SCALE_NAN
from rose.weights.checkpoint import read_json_object
from rose.weights.resolve import resolve_checkpoint
from rose.weights.safetensors_header import BITS, TORCH_DTYPES, TensorInfo
from rose.weights.source import LoadTimes, Slice

_MAX_LAYERS = 4096  # as many as a config.json may have
# Rows of a matrix that are drawn together; any slice begins at a multiple or skips what it does not need.
_DRAWN_ROWS = 128
# Root mean square of the 16 codes: of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
_CODE_RMS = math.sqrt(68.5 / 8)


class SyntheticSource:
    """A made-up checkpoint in the Hugging Face layout. See `WeightSource`."""

    def __init__(self, config: Mapping[str, Any], name: str, seed: int = 0) -> None:
        """config: a parsed config.json of the gpt-oss family. Raises CheckpointError, UnsupportedModel."""
        self.config = config
        self.config_path = Path(name)
        self.seed = seed
        if config.get("model_type") != "gpt_oss":
            raise CheckpointError(f"{name}: only gpt_oss models can be made up, not {config.get('model_type')!r}")
        self._recipes = {recipe.name: recipe for recipe in recipes(read_config(config, name))}
        self.tensors = {name: _describe(recipe, self.config_path) for name, recipe in self._recipes.items()}

    @property
    def name(self) -> str:
        """The model's name and the seed."""
        return f"{self.config_path} (made up, seed {self.seed})"

    @property
    def num_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(info.num_bytes for info in self.tensors.values())

    def stream(
        self, batches: Sequence[Sequence[Slice]], device: torch.device, times: LoadTimes
    ) -> Iterator[list[Tensor]]:
        """See `WeightSource.stream`. Drawing counts as reading."""
        generator = torch.Generator(device)
        for batch in batches:
            start = time.perf_counter()
            tensors = [self._draw(part, generator) for part in batch]
            times.read_s += time.perf_counter() - start
            yield tensors

    def _draw(self, part: Slice, generator: torch.Generator) -> Tensor:
        recipe = self._recipes[part.name]
        # An expert at a time, or some rows of a matrix.
        step = 1 if len(recipe.shape) > 2 else _DRAWN_ROWS
        shape = (part.stop - part.start, *recipe.shape[1:])
        result = torch.empty(shape, dtype=TORCH_DTYPES[recipe.dtype], device=generator.device)
        for start in range(part.start - part.start % step, part.stop, step):
            stop = min(start + step, recipe.shape[0])
            generator.manual_seed(zlib.crc32(f"{self.seed} {part.name} {start}".encode()))
            drawn = _draw(recipe, stop - start, generator)
            first, last = max(start, part.start), min(stop, part.stop)
            result[first - part.start : last - part.start] = drawn[first - start : last - start]
        return result


def synthetic_source(name: str, *, num_layers: int | None = None, seed: int = 0) -> SyntheticSource:
    """A made-up checkpoint of a published shape, `gpt-oss-20b` or `gpt-oss-120b`, or of another checkpoint's config.

    name: with or without an owner, as in `openai/gpt-oss-20b`; else see `resolve_checkpoint`, of which only config.json
    is read. num_layers: instead of the published number; only for the published shapes. Raises CheckpointError,
    ConfigError.
    """
    if num_layers is not None and not 1 <= num_layers <= _MAX_LAYERS:
        raise ConfigError(f"there must be from 1 to {_MAX_LAYERS} layers, not {num_layers}")
    if is_published(name):
        return SyntheticSource(published_config(name, num_layers), name, seed)
    if num_layers is not None:
        raise ConfigError(f"the number of layers can be chosen for {' and '.join(published_names())}, not for {name}")
    path = resolve_checkpoint(name) / "config.json"
    return SyntheticSource(read_json_object(path), str(path), seed)


def _describe(recipe: Recipe, path: Path) -> TensorInfo:
    num_bytes = math.prod(recipe.shape) * BITS[recipe.dtype] // 8
    return TensorInfo(recipe.name, recipe.dtype, recipe.shape, num_bytes, path, 0)


def _draw(recipe: Recipe, num_rows: int, generator: torch.Generator) -> Tensor:
    shape = (num_rows, *recipe.shape[1:])
    device = generator.device
    match recipe.distribution:
        case Normal(std, mean):
            return torch.empty(shape, device=device).normal_(mean, std, generator=generator)
        case Directions():
            rows = torch.empty(shape, device=device).normal_(generator=generator)
            directions: Tensor = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
            return directions
        case Mxfp4Codes():
            # Eight bytes a draw.
            words = torch.empty(-(-math.prod(shape) // 8), dtype=torch.int64, device=device)
            words.random_(-(1 << 63), None, generator=generator)
            return words.view(torch.uint8)[: math.prod(shape)].view(shape)
        case Mxfp4Scales(std, row_octaves, block_octaves):
            exponents = torch.empty(shape, device=device).normal_(0.0, block_octaves, generator=generator)
            exponents += torch.empty((*shape[:-1], 1), device=device).normal_(0.0, row_octaves, generator=generator)
            # The mean square of 2**x is that of x = 0 times exp(2 (variance of x) ln(2)**2).
            excess = (row_octaves**2 + block_octaves**2) * math.log(2)
            middle = SCALE_BIAS + math.log2(std / _CODE_RMS) - excess
            return exponents.add_(middle).round_().clamp_(0, SCALE_NAN - 1).to(torch.uint8)
