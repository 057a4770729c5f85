"""The backend for vectors that are not on the CPU: the hot loops of the codecs as torch operations.

A module has the functions of the module of the same name in `testbed.codecs.kernels`, with the same parameters: vectors
and layers of them are tensors on the device, what travels in a message is an array on the CPU. The same input, key and
scales give the same bytes. Sums are taken in float64 throughout, so that scales differ from the kernels', which begin
in float32, by less than 1e-6.

They are plain functions and keep nothing. On a CPU they work too, several times slower than the kernels. Products and
sums of floats are separate operations, because a fused one would round differently.
"""

from testbed.codecs.device import (
    adaptive,
    blockwise,
    dgc,
    e3m0,
    half,
    levels,
    onebit,
    qsgd,
    sparse,
    ternary,
    topk,
    uniform,
    vectors,
)

__all__ = [
    "adaptive",
    "blockwise",
    "dgc",
    "e3m0",
    "half",
    "levels",
    "onebit",
    "qsgd",
    "sparse",
    "ternary",
    "topk",
    "uniform",
    "vectors",
]
