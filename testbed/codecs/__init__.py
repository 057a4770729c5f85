"""Tensors to bytes and back: pure functions of a vector, a layout and a key, exact in their bytes."""

from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.floats import Float32
from testbed.codecs.lanes import warm_up
from testbed.codecs.levels import Levels, LevelSum
from testbed.codecs.ternary import Limits, Ternary, ThresholdTernary

__all__ = [
    "Buffers",
    "Codec",
    "Float32",
    "Key",
    "LevelSum",
    "Levels",
    "Limits",
    "Ternary",
    "ThresholdTernary",
    "warm_up",
]
