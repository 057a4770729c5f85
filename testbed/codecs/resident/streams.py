"""Buffers that the CPU codes, in messages that are made on a device.

Elias's codes, and an entropy coder's, begin each where the one before ended: that is no work for a device. So its
pass ends with the symbols of all layers, a byte each, and begins with them again.

1. Symbols come down in one transfer, the one time that a message waits.
2. Coded they stay on the CPU, as the last buffer of a message whose other buffers are on the device.
3. Decoded they go up with the pass that reads them, and nothing waits.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from testbed.gpu.moves import near


class Streams(Protocol):
    """What the CPU codes with."""

    def pack(self, symbols: np.ndarray) -> np.ndarray:
        """Code symbols (uint8 [n]); uint8."""

    def unpack(self, buffer: Any) -> np.ndarray:
        """The inverse of `pack`; CodecError when it is malformed."""


def coded(streams: Streams, symbols: Tensor) -> Tensor:
    """Symbols of a device (uint8 [n]), coded: on the CPU."""
    return torch.from_numpy(streams.pack(near(symbols)))


def symbols_of(streams: Streams, buffer: Tensor) -> Tensor:
    """The inverse of `coded`; they are on the CPU, for a `Pass` to take up."""
    return torch.from_numpy(streams.unpack(near(buffer)))
