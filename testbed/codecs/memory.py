"""Codecs that remember: what a sender keeps from one message to its next, beside the codec itself.

The codec holds no state. Each sender owns a memory, which `start` makes: a plain dataclass of tensors and
numbers, so that it is checkpointed with the sender's other state. Decoding never needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from testbed.codecs.base import Buffers, Codec, Key, WireBuffers, elements, fixed_sizes
from testbed.codecs.buffers import BufferPool
from testbed.codecs.costs import cost_of, cost_with_feedback
from testbed.layout import Layout


@runtime_checkable
class Remembering(Protocol):
    """A codec whose messages depend on what the sender has sent before."""

    @property
    def layout(self) -> Layout: ...

    def start(self) -> Any:
        """The memory of a sender that has sent nothing yet; None where nothing is remembered."""

    def encode(self, vector: torch.Tensor, key: Key, memory: Any) -> Buffers:
        """Encode a vector [layout.size] and bring `memory` up to date; CodecError as for `Codec.encode`."""

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Codec.decode`."""


def adder(codec: Any) -> Callable[[WireBuffers, torch.Tensor], object]:
    """What adds a message of `codec` to a vector: its own `add`, or decoding first."""

    pool = BufferPool()

    def add(buffers: WireBuffers, total: torch.Tensor) -> None:
        total.add_(codec.decode(buffers, pool.take_like(total)))

    return getattr(codec, "add", add)


def remembering(codec: Codec | Remembering) -> Remembering:
    """`codec` itself where it has a memory, else one that remembers nothing."""
    return codec if isinstance(codec, Remembering) else Forgetful(codec)


@runtime_checkable
class Around(Protocol):
    """A codec that says to another what to code; it does so wherever that one is, e.g. as a twin on a device."""

    @property
    def codec(self) -> Any: ...

    def around(self, codec: Any) -> Any:
        """The same around another codec."""


class Forgetful:
    """A plain codec as one with a memory in which there is nothing."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.layout = codec.layout
        self.decode = codec.decode
        self.add = adder(codec)
        self.cost = cost_of(codec)
        self.sizes = partial(fixed_sizes, codec)

    def around(self, codec: Any) -> Forgetful:
        """See `Around`."""
        return Forgetful(codec)

    def start(self) -> None:
        """There is nothing to remember."""

    def encode(self, vector: torch.Tensor, key: Key, memory: None) -> Buffers:
        """See `Codec.encode`."""
        return self.codec.encode(vector, key)


@dataclass
class Residual:
    """`residual` [layout.size]: what all messages so far have left out."""

    residual: torch.Tensor


class ErrorFeedback:
    """Sends what the codec can of vector + residual, and keeps the rest for the next message (Seide et al. 2014).

    It needs a codec that makes the error smaller than the vector: fed back, the error of an unbiased stochastic
    quantizer, which is larger, would grow without bound.

    Parameters
    ----------
    codec : may do all of it in one pass with a method `encode_with_feedback(vector, residual, key)`, which
        brings the residual up to date in place
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.layout = codec.layout
        self.decode = codec.decode
        self.add = adder(codec)
        self.cost = cost_with_feedback(codec)
        self.sizes = partial(fixed_sizes, codec)
        self._fused = getattr(codec, "encode_with_feedback", None)
        self._pool = BufferPool()

    def around(self, codec: Any) -> ErrorFeedback:
        """See `Around`."""
        return ErrorFeedback(codec)

    def start(self) -> Residual:
        """A residual of zero."""
        return Residual(torch.zeros(self.layout.size))

    def encode(self, vector: torch.Tensor, key: Key, memory: Residual) -> Buffers:
        """Encode vector + residual; CodecError as for `Codec.encode`, which leaves the residual as it was.

        The residual goes to where the vector is, e.g. from a checkpoint to a GPU.
        """
        memory.residual = memory.residual.to(vector.device)
        if self._fused is not None:
            return self._fused(vector, memory.residual, key)
        elements(vector, self.layout)  # checks it
        wanted = torch.add(vector, memory.residual, out=self._pool.take_like(vector))
        buffers = self.codec.encode(wanted, key)
        sent = self.codec.decode(buffers, memory.residual)
        torch.sub(wanted, sent, out=memory.residual)
        return buffers
