"""Number formats as layers use them: how a weight is stored and multiplied."""

from rose.layers.quant.base import QuantMethod
from rose.layers.quant.fp8 import Fp8Block, Fp8Row
from rose.layers.quant.mxfp4 import Mxfp4
from rose.layers.quant.unquantized import Unquantized
from rose.numerics.format import FormatName

__all__ = ["Fp8Block", "Fp8Row", "Mxfp4", "QuantMethod", "Unquantized", "quant_method"]

_METHODS: dict[FormatName, QuantMethod] = {
    "bf16": Unquantized(),
    "mxfp4": Mxfp4(),
    "fp8": Fp8Row(),
    "fp8-block": Fp8Block(),
}


def quant_method(name: FormatName) -> QuantMethod:
    """How a layer uses a weight of this format."""
    return _METHODS[name]
