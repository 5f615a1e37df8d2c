"""Number formats as layers use them: how a weight is stored and multiplied."""

from rose.layers.quant.base import QuantMethod
from rose.layers.quant.mxfp4 import Mxfp4
from rose.layers.quant.unquantized import Unquantized

__all__ = ["Mxfp4", "QuantMethod", "Unquantized"]
