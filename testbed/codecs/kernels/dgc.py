"""The hot loop of Deep Gradient Compression; the rules are those of `testbed.codecs.kernels`."""

from __future__ import annotations

import numpy as np
from numba import types

from testbed.codecs.kernels.compiled import F32, kernel, read_only, writable
from testbed.codecs.kernels.threads import in_chunks


def accumulate(
    x: np.ndarray, factor: np.float32, momentum: np.float32, nesterov: bool, velocity: np.ndarray, total: np.ndarray
) -> None:
    """u <- momentum * u + factor * x; total += u, in place; see `accumulate_chunk`."""

    def add(start: int, stop: int) -> None:
        accumulate_chunk(x[start:stop], factor, momentum, nesterov, velocity[start:stop], total[start:stop])

    in_chunks(add, x.size)


@kernel((read_only(F32), F32, F32, types.boolean, writable(F32), writable(F32)))
def accumulate_chunk(
    x: np.ndarray, factor: float, momentum: float, nesterov: bool, velocity: np.ndarray, total: np.ndarray
) -> None:
    """u <- momentum * u + factor * x; total += u, with `nesterov` factor * x + momentum * u.

    A velocity without elements stands for a momentum of zero.
    """
    if velocity.size == 0:
        for i in range(x.size):
            total[i] += factor * x[i]
    elif nesterov:
        for i in range(x.size):
            gradient = factor * x[i]
            velocity[i] = momentum * velocity[i] + gradient
            total[i] += gradient + momentum * velocity[i]
    else:
        for i in range(x.size):
            velocity[i] = momentum * velocity[i] + factor * x[i]
            total[i] += velocity[i]
