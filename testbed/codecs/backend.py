"""Where a vector's numbers are worked on: with numba on the CPU, with torch's operations on a device.

A backend is a package with a module a codec, e.g. `ternary`, and one for what they share, `vectors`. Both have the same
functions with the same parameters and make the same bytes. A codec asks once for a vector, and names the backend where
it needs it:

    x = elements(vector, layout)
    on = backend.of(x)
    ...
    on.half.pack(x[layer.slice], halves[layer.slice], factor, limit)
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch

from testbed.codecs import device, kernels

Elements = np.ndarray | torch.Tensor  # of a vector or a part of it: an array on the CPU, a tensor elsewhere


def of(x: Elements) -> ModuleType:
    """`testbed.codecs.kernels` for what is on the CPU, `testbed.codecs.device` for what is elsewhere."""
    return device if isinstance(x, torch.Tensor) and x.device.type != "cpu" else kernels
