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

from testbed.errors import CodecError
from testbed.layout import Layer, Layout

Buffers = list[np.ndarray]  # what `encode` makes: one-dimensional, contiguous, uint8 or little-endian float32
WireBuffers = Sequence[Any]  # what `decode` takes: anything with a buffer (bytes, memoryview, arrays)

_MASK = (1 << 64) - 1


def _mix(z: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


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

    def layer(self, index: int) -> int:
        """32 well-mixed bits for one layer: no two (seed, stream, step, layer) are related by more than chance."""
        state = 0
        for word in (self.seed, self.stream, self.step, index):
            state = _mix(((state + 0x9E3779B97F4A7C15) & _MASK) ^ (word & _MASK))
        return state >> 32


class Codec(Protocol):
    """A flat float32 vector of a model to a message's buffers and back."""

    @property
    def layout(self) -> Layout: ...

    def encode(self, vector: torch.Tensor, key: Key) -> Buffers:
        """Encode a vector [layout.size]; CodecError names the layer that holds NaN or infinity."""

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode into `out` or a fresh vector [layout.size]; CodecError when the message is not one of this codec."""


def flat(vector: torch.Tensor, layout: Layout) -> np.ndarray:
    """Return the vector as a contiguous array [layout.size], without a copy where it already is one."""
    if vector.dtype != torch.float32 or vector.device.type != "cpu" or vector.shape != (layout.size,):
        raise CodecError(
            f"a codec takes a flat float32 vector of {layout.size} elements on the CPU, "
            f"not {tuple(vector.shape)} of {vector.dtype} on {vector.device}"
        )
    return vector.detach().contiguous().numpy()


def output(out: torch.Tensor | None, layout: Layout) -> torch.Tensor:
    """Return `out`, checked, or a fresh vector [layout.size]."""
    if out is None:
        return torch.empty(layout.size, dtype=torch.float32)
    if not out.is_contiguous():
        raise CodecError("a codec decodes into a contiguous vector; this one has strides")
    flat(out, layout)
    return out


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


def require_finite(values: np.ndarray, layers: Iterable[Layer]) -> None:
    """Raise CodecError naming the first of the layers, laid one after the other in `values`, that is not finite."""
    if np.isfinite(values).all():
        return
    layers = list(layers)
    for layer, place in zip(layers, stretches(layer.size for layer in layers), strict=True):
        if not np.isfinite(values[place]).all():
            raise CodecError(f"layer {layer.name}: NaN or infinity among its values")
