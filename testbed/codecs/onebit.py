"""1-bit SGD: the sign of each value, and two values a column for the receiver to put in its place.

Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training
of Speech DNNs", Interspeech 2014, section 3: the threshold is zero, and a column's two reconstruction values are the
means of what lies on either side, which makes the squared error smallest. It needs error feedback
(`testbed.codecs.memory.ErrorFeedback`); without it training does not converge.

The paper's column is what feeds one unit: here the weights of one output unit or channel, a row of torch's matrix. A
vector, e.g. a bias, is one column, or pieces of 32,768 elements. A column is measured, coded and fed back while it lies
in the cache, so that memory is gone over once.

A message has two buffers; numbers are little-endian:

1. means: two float32 a column: of the values without a sign bit, and of those with one; 0 where there are none;
2. signs: a run of ceil(size / 8) bytes a column. It is cut into blocks of 1,024 bytes = 8 segments of 1,024 elements;
   the rest of r elements is a last block of ceil(r / 8) bytes. Bit s of byte j of a block is the sign bit of
   element j of segment s; bits past the column's end are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.base import (
    Buffers,
    Elements,
    Key,
    VectorCodec,
    WireBuffers,
    all_finite,
    beside,
    elements,
    expect,
    room,
    stretches,
    wire_array,
)
from testbed.codecs.kernels.planar import PLANES
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.registry import codec
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

LONGEST = 32_768  # elements of a vector's column: 128 KB, which a core's second cache holds


class OneBit(VectorCodec):
    """Signs and column means.

    Parameters
    ----------
    layout : the model

    Attributes
    ----------
    nbytes : exact bytes of a message
    """

    costs_as = "1-bit"

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._columns = [_Columns(layer) for layer in layout]
        self._means = stretches(2 * columns.count for columns in self._columns)
        self._runs = stretches(columns.nbytes for columns in self._columns)
        self._mean_count = sum(2 * columns.count for columns in self._columns)
        self._sign_bytes = sum(columns.nbytes for columns in self._columns)
        self.nbytes = 4 * self._mean_count + self._sign_bytes

    def sizes(self) -> Sequence[int]:
        return [4 * self._mean_count, self._sign_bytes]

    def columns(self) -> Iterator[tuple[Layer, int]]:
        """Each column's layer and length, in the order of a message."""
        for layer, columns in zip(self.layout, self._columns, strict=True):
            for column in range(columns.count):
                yield layer, min(columns.length, layer.size - column * columns.length)

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        """Code without feedback; CodecError names the layer that holds NaN or infinity."""
        return self._encode(elements(vector, self.layout), None)

    def encode_with_feedback(self, vector: torch.Tensor, residual: torch.Tensor, key: Key | None = None) -> Buffers:
        """Encode vector + residual; `residual` [layout.size] becomes what the message leaves of it, in one pass.

        Raises
        ------
        CodecError : NaN or infinity in a layer of the sum; its residual and that of the layers before it has then
            been changed and is to be thrown away
        """
        return self._encode(elements(vector, self.layout), beside(residual, vector, self.layout))

    def _encode(self, x: Elements, rest: Elements | None) -> Buffers:
        on = backend.of(x)
        means, signs = self._pool.take(self._mean_count, np.float32), self._pool.take(self._sign_bytes)
        for layer, columns, here, run in zip(self.layout, self._columns, self._means, self._runs, strict=True):
            kept = None if rest is None else rest[layer.slice]
            on.onebit.pack(x[layer.slice], kept, signs[run], means[here], columns.length)
            if not all_finite(means[here]):
                raise NotFinite.of(f"layer {layer.name}")
        return [means, signs]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Write each element's mean; see `Codec.decode`."""
        expect(buffers, ["means", "signs"])
        means = wire_array(buffers[0], np.float32, self._mean_count, "means")
        signs = wire_array(buffers[1], np.uint8, self._sign_bytes, "signs")
        for layer, here in zip(self.layout, self._means, strict=True):
            if not all_finite(means[here]):
                raise CodecError(f"layer {layer.name}: a column's mean is not finite")
        vector, y = room(out, self.layout)
        on = backend.of(y)
        for layer, columns, here, run in zip(self.layout, self._columns, self._means, self._runs, strict=True):
            on.onebit.unpack(signs[run], means[here], y[layer.slice], columns.length)
        return vector


class _Columns:
    """How a layer falls into columns of one length; the last piece of a vector may be shorter.

    Parameters
    ----------
    layer : of the model
    """

    def __init__(self, layer: Layer) -> None:
        self.length = max(1, min(layer.size, LONGEST) if layer.bias else layer.size // max(layer.shape[0], 1))
        self.count = -(-layer.size // self.length)
        missing = self.count * self.length - layer.size
        width = -(-self.length // PLANES)
        self.nbytes = self.count * width - width + -(-(self.length - missing) // PLANES)


@codec("1-bit with feedback")
def one_bit_with_feedback(layout: Layout) -> ErrorFeedback:
    """1-bit SGD as the paper has it."""
    return ErrorFeedback(OneBit(layout))
