"""What a codec is: a flat vector to buffers and back, with nothing known of roles, sockets or clocks.

A message's buffers never share memory with the vector they were made from, nor a decoded vector with them:
either may be changed while the other is in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import torch

from testbed.codecs import backend
from testbed.codecs.backend import Elements
from testbed.codecs.buffers import BufferPool
from testbed.codecs.kernels.compiled import warm_up
from testbed.codecs.kernels.vectors import INFINITY_BITS
from testbed.errors import CodecError, NotFinite
from testbed.layout import Layer, Layout

Buffers = list[np.ndarray]  # what `encode` makes: one-dimensional, contiguous, uint8 or little-endian float32
WireBuffers = Sequence[Any]  # what `decode` takes: anything with a buffer (bytes, memoryview, arrays)

_MASK = (1 << 64) - 1
# SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
INCREMENT = 0x9E3779B97F4A7C15
MIX = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(z: int) -> int:
    """The finalizer of SplitMix64."""
    z = ((z ^ (z >> 30)) * MIX[0]) & _MASK
    z = ((z ^ (z >> 27)) * MIX[1]) & _MASK
    return z ^ (z >> 31)


def _mixed(state: int, word: int) -> int:
    return _mix(((state + INCREMENT) & _MASK) ^ (word & _MASK))


@dataclass(frozen=True)
class Key:
    """Names the random numbers of one message: with the same key and vector, the same bytes anywhere.

    Parameters
    ----------
    seed : the run's seed
    stream : who draws and what for, e.g. the worker's index; distinct within a run
    step : the training step
    """

    seed: int
    stream: int
    step: int

    @property
    def state(self) -> int:
        """64 bits that are the same for all layers, whose numbers are still to be mixed in."""
        return _mixed(_mixed(_mixed(0, self.seed), self.stream), self.step)

    def layer(self, index: int) -> int:
        """32 well-mixed bits for one layer: no two (seed, stream, step, layer) are related by more than chance."""
        return _mixed(self.state, index) >> 32


class Codec(Protocol):
    """A flat float32 vector of a model to a message's buffers and back.

    Vectors that are not on the CPU are coded where they are, to the same bytes (`testbed.codecs.device`), or refused.
    """

    @property
    def layout(self) -> Layout: ...

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """Encode a vector [layout.size]; CodecError names the layer that holds NaN or infinity."""

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode into `out` or a fresh vector [layout.size]; CodecError when the message is not one of this codec."""


class VectorCodec:
    """What codecs of a model's vectors begin with: compiled kernels, the layout, and memory for messages.

    Parameters
    ----------
    layout : the model
    """

    def __init__(self, layout: Layout) -> None:
        warm_up()
        self.layout = layout
        self._pool = BufferPool()

    def sizes(self) -> Sequence[int] | None:
        """Bytes of each buffer of any message; None: that depends on the data."""
        return None


def fixed_sizes(codec: Any) -> Sequence[int] | None:
    """Bytes of each buffer of any message of a codec; None where that depends on the data, or it does not say."""
    sizes = getattr(codec, "sizes", None)
    return None if sizes is None else sizes()


def elements(vector: torch.Tensor, layout: Layout) -> Elements:
    """Return the vector's contiguous elements [layout.size] where they are, without a copy if they lie so.

    For codecs that work on any device; an array on the CPU, elsewhere a tensor.
    """
    if not vector.numel() and layout.size:
        raise CodecError(
            "no elements to code, as in a timing-only run: the system is to take its codec by `self.coder`"
        )
    if vector.dtype != torch.float32 or vector.shape != (layout.size,):
        raise CodecError(
            f"a codec takes a flat float32 vector of {layout.size} elements, "
            f"not {tuple(vector.shape)} of {vector.dtype}"
        )
    x = vector.detach().contiguous()
    return x.numpy() if x.device.type == "cpu" else x


def flat(vector: torch.Tensor, layout: Layout) -> np.ndarray:
    """`elements`, for codecs that work on the CPU only."""
    return _on_cpu(elements(vector, layout))


def _on_cpu(x: Elements) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        raise CodecError(f"this codec works on the CPU, its vector is on {x.device}: move it with .cpu()")
    return x


def room(out: torch.Tensor | None, layout: Layout) -> tuple[torch.Tensor, Elements]:
    """Return `out`, checked, or a fresh vector [layout.size] on the CPU; and its elements, to be written to."""
    if out is None:
        out = torch.empty(layout.size, dtype=torch.float32)
    elif not out.is_contiguous():
        raise CodecError("a vector that a codec writes to is contiguous; this one has strides")
    return out, elements(out, layout)


def output(out: torch.Tensor | None, layout: Layout) -> torch.Tensor:
    """The vector of `room`, for codecs that work on the CPU only."""
    vector, y = room(out, layout)
    _on_cpu(y)
    return vector


def beside(other: torch.Tensor, vector: torch.Tensor, layout: Layout) -> Elements:
    """The elements of what goes with `vector`, e.g. its residual: contiguous and on the same device."""
    if other.device != vector.device:
        raise CodecError(f"what goes with a vector on {vector.device} is there too, not on {other.device}")
    return room(other, layout)[1]


def expect(buffers: WireBuffers, names: Sequence[str]) -> None:
    """Raise CodecError unless there is one buffer per name."""
    if len(buffers) != len(names):
        raise CodecError(f"a message of {len(names)} buffers ({', '.join(names)}) came as {len(buffers)}")


def wire_array(buffer: Any, dtype: type[np.generic], count: int, name: str) -> np.ndarray:
    """View a buffer from the wire as `count` elements, without a copy where it is aligned.

    Raises
    ------
    CodecError : it is no contiguous buffer of exactly that many bytes; `name` says which one
    """
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise CodecError(f"{name}: bytes expected, found {type(buffer).__name__}") from error
    wanted = count * np.dtype(dtype).itemsize
    if not view.c_contiguous or view.nbytes != wanted:
        raise CodecError(f"{name}: {wanted} contiguous bytes expected, found {view.nbytes}")
    if count == 0:
        return np.empty(0, dtype)
    array = np.frombuffer(view, dtype)
    return array if array.flags.aligned else array.copy()


def stretches(lengths: Iterable[int]) -> tuple[slice, ...]:
    """The places of pieces of these lengths that lie one after the other."""
    return tuple(slice(start, stop) for start, stop in pairwise(accumulate(lengths, initial=0)))


def all_finite(x: Elements) -> bool:
    """Whether there is neither NaN nor infinity among float32 values that lie one after the other."""
    return backend.of(x).vectors.largest_bits(x) < INFINITY_BITS


def require_finite(x: Elements, layers: Iterable[Layer]) -> None:
    """Raise CodecError naming the first of the layers, laid one after the other in `x`, that is not finite."""
    if all_finite(x):
        return
    layers = list(layers)
    for layer, place in zip(layers, stretches(layer.size for layer in layers), strict=True):
        if not all_finite(x[place]):
            raise NotFinite.of(f"layer {layer.name}")
