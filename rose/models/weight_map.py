"""How a checkpoint's tensors become a model's parameters: the vocabulary that every model's map is written in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rose.kernels.mxfp4_to_fp8.op import mxfp4_to_fp8_
from rose.numerics.format import FormatName, WeightFormat
from rose.numerics.fp8 import Fp8BlockTensor, Fp8RowTensor
from rose.numerics.loss import Loss, measure_loss
from rose.numerics.mxfp4 import Mxfp4Tensor
from rose.numerics.mxfp4_to_fp8 import loss_if_exact


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """How a model's weights are stored.

    experts: the matrices of the experts. dense: the projections of attention, and the unembedding where it has a
    table of its own. All other weights are plain floats.
    """

    experts: FormatName
    dense: FormatName


@dataclass(frozen=True, slots=True)
class SourceTensor:
    """A tensor the checkpoint must hold. dtypes: the safetensors names that are accepted, such as `BF16`."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]


class Transform(Protocol):
    """From the tensors of a rule's sources to those of its targets."""

    @property
    def name(self) -> str:
        """In a few words, for the account of a load."""
        ...

    def check(self, sources: Sequence[Tensor]) -> None:
        """Raise ValueError, with the position, for values that the rule's formats cannot have."""
        ...

    def is_sound(self, sources: Sequence[Tensor]) -> Tensor | None:
        """Whether `check` has nothing to say: a bool of no dimensions on the sources' device, without waiting for it.

        None where it never has.
        """
        ...

    def write(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Write `targets` in place, converting dtype and device, without waiting for either.

        Values are not looked at. Raises ValueError or UnsupportedShape for impossible shapes.
        """
        ...

    def fill(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """`check`, then `write`."""
        ...

    def loss(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Loss | None:
        """What `fill` lost; None for a transform that changes no number format."""
        ...


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One or more parameters, or a section of one (see `ShardSpec.sections`), and what fills them.

    targets: parameters' names in the model, written together. sources: read together. section: which section of the
    one target; None for all of it.
    cut_rows: where the rule may be carried out in parts: rows, along the first dimension, that each source and then
    each target has in the smallest part. The last part may be smaller. None for a rule that cannot be cut.
    """

    targets: tuple[str, ...]
    sources: tuple[SourceTensor, ...]
    transform: Transform
    section: int | None = None
    cut_rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """The one source as it is, but for dtype and device."""

    name: str = "copy"

    def check(self, sources: Sequence[Tensor]) -> None:
        """Floats are looked at where they are read."""

    def is_sound(self, sources: Sequence[Tensor]) -> Tensor | None:
        """See `check`."""
        return None

    def write(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Raises ValueError for another shape: nothing is broadcast."""
        (target,), (source,) = targets, sources
        _copy(target, source)

    def fill(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """See `write`."""
        self.write(targets, sources)

    def loss(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Loss | None:
        """Of floats that became narrower; None where nothing can be lost."""
        (target,), (source,) = targets, sources
        if source.dtype.itemsize <= target.dtype.itemsize and source.dtype != torch.float16:
            return None
        shape = (1, *source.shape)[-2:] if source.dim() < 2 else source.shape
        return measure_loss(source.float().view(shape), target.float().view(shape), (1, 1))


@dataclass(frozen=True, slots=True)
class Recode:
    """A weight from one number format to another.

    transposed: the source is one tensor of floats [..., in_features, out_features]. Several sources of a format that
    has one part are put below each other, as query, key and value are.
    """

    source: WeightFormat
    target: WeightFormat
    transposed: bool = False

    @property
    def name(self) -> str:
        """`mxfp4 → fp8`, or how the tensor was turned if the format stays."""
        turned = "transpose" if self.transposed else "copy"
        if self.source.name == self.target.name:
            return turned
        return f"{self.source.name} → {self.target.name}" + (", transpose" if self.transposed else "")

    def check(self, sources: Sequence[Tensor]) -> None:
        """NaN scales and the like, and values that the target format cannot hold."""
        self.source.check(sources)
        if self._rounds and not bool(self._all_finite(sources)):
            raise ValueError(f"{self.target.name} cannot hold NaN or infinity")

    def is_sound(self, sources: Sequence[Tensor]) -> Tensor | None:
        """See `check`."""
        sound = self.source.is_sound(sources)
        if not self._rounds:
            return sound
        finite = self._all_finite(sources)
        return finite if sound is None else finite & sound

    def write(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """MXFP4 becomes FP8 where it is to be; all else is made first, then copied."""
        parts = self._parts(sources)
        match self.source.name, self.target.name:
            case "mxfp4", "fp8":
                mxfp4_to_fp8_(Mxfp4Tensor(*parts), Fp8RowTensor(*targets))
                return
            case "mxfp4", "fp8-block":
                mxfp4_to_fp8_(Mxfp4Tensor(*parts), Fp8BlockTensor(*targets))
                return
            case source, target if source == target:
                made = parts
            case _, "bf16":
                made = (self.source.decode(parts, targets[0].dtype),)
            case _:
                made = self.target.encode(self.source.decode(parts, torch.float32))
        for target_part, part in zip(targets, made, strict=True):
            _copy(target_part, part)

    def fill(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Raises ValueError for NaN scales and for values that the target format cannot hold."""
        self.check(sources)
        self.write(targets, sources)

    def loss(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> Loss | None:
        """Block by block of the target format; None when the format stays or when the target is floats."""
        if self.source.name == self.target.name or self.target.name == "bf16":
            return None
        if self.source.name == "mxfp4" and self.target.name != "mxfp4":
            loss = loss_if_exact(Mxfp4Tensor(*sources), targets[1], self.target.block_shape)
            if loss is not None:
                return loss
        values = self.source.decode(self._parts(sources), torch.float32)
        restored = self.target.decode(targets, torch.float32)
        return measure_loss(values, restored, self.target.block_shape)

    @property
    def _rounds(self) -> bool:
        """Whether values are rounded to the target format, which then needs finite ones."""
        if self.source.name == "mxfp4" and self.target.name != "mxfp4":
            return False  # FP8 holds what MXFP4 does
        return self.target.name not in ("bf16", self.source.name)

    def _all_finite(self, sources: Sequence[Tensor]) -> Tensor:
        if self.source.name == "bf16":
            return torch.stack([torch.isfinite(source).all() for source in sources]).all()
        return torch.isfinite(self.source.decode(sources, torch.float32)).all()

    def _parts(self, sources: Sequence[Tensor]) -> Sequence[Tensor]:
        if self.transposed:
            return [source.transpose(-1, -2) for source in sources]
        if self.source.name == "bf16" and len(sources) > 1:
            return [torch.cat(list(sources))]
        return sources


def _copy(target: Tensor, source: Tensor) -> None:
    if source.shape != target.shape:
        raise ValueError(f"cannot fill {tuple(target.shape)} from {tuple(source.shape)}")
    target.copy_(source)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a checkpoint to be written, and the parameter that it holds: the reverse of a `WeightRule`.

    dtype: the safetensors name. section: which section of the parameter's first dimension; None for all of it.
    transposed: its last two dimensions are swapped.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    parameter: str
    section: int | None = None
    transposed: bool = False


def reverse(rules: Sequence[WeightRule]) -> list[StoredTensor]:
    """The tensors that rules read, as something to write. The rules must change no format."""
    stored: list[StoredTensor] = []
    for rule in rules:
        transposed = isinstance(rule.transform, Recode) and rule.transform.transposed
        for source, parameter in zip(rule.sources, rule.targets, strict=True):
            stored.append(
                StoredTensor(source.name, source.dtypes[0], source.shape, parameter, rule.section, transposed)
            )
    return stored
