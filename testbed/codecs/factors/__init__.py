"""Quantized factors of linear layers' gradients (isgq: Abdi and Fekri, AAAI 2020).

In place of a layer's gradient Delta^T X / L its factors travel, the layer's input X [L, n] and the derivative Delta
[L, m] of the loss by its output, and who receives them multiplies. `format` has the message, `quantizers` what its
symbols are, `points` where a quantizer puts its values.
"""

from testbed.codecs.factors.format import FactorCodec, Quantizer, Signal, Unquantized, multiply
from testbed.codecs.factors.quantizers import Dithered, LloydMax, MinimumError

__all__ = [
    "Dithered",
    "FactorCodec",
    "LloydMax",
    "MinimumError",
    "Quantizer",
    "Signal",
    "Unquantized",
    "multiply",
]
