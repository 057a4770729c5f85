"""Messages of a timing-only run: as large as real ones, with nothing in them.

There vectors have no elements, whatever the model, and each codec is replaced by its `StandIn`, which makes buffers of
the sizes that the codec states (`sizes`) or, where they depend on the data, of those that `Sizes` knows. What coding
costs is charged as ever, by the codec's row of `testbed.codecs.costs`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from testbed.codecs.base import Key, fixed_sizes
from testbed.codecs.costs import cost_of
from testbed.codecs.ternary import Limits
from testbed.errors import InputError


class Sized:
    """A buffer of `nbytes` that do not exist."""

    __slots__ = ("nbytes",)

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def sized(codec: Any) -> list[Sized]:
    """Buffers as large as those of each message of a codec that states their sizes."""
    return [Sized(nbytes) for nbytes in codec.sizes()]


class Sizes(Protocol):
    """What is known of the messages whose sizes depend on the data."""

    def require(self, kinds: Collection[str]) -> None:
        """Raise InputError where nothing is known of messages of these kinds."""

    def buffers(self, sender: str, step: int, kind: str, elements: int) -> Sequence[int]:
        """Bytes of each buffer of the message of this kind that role `sender` makes in `step` of so many elements.

        Empty where it makes none.
        """

    def alike(self, kinds: Collection[str]) -> bool:
        """Whether all workers' messages of these kinds are of one size."""

    def significant(self, sender: str, step: int) -> bool:
        """Whether `sender` finds in `step` that what it has kept is worth sending."""


class StandIn:
    """Takes the place of a codec, with a memory or without, of a sum of levels, of a quantizer.

    Parameters
    ----------
    codec : whose messages these are the size of
    kind : of its messages, by which `sizes` knows them
    sizes, roles : asked only where the codec does not state its sizes; `roles` are named by a key's stream
    """

    def __init__(self, codec: Any, kind: str, sizes: Sizes, roles: Sequence[str]) -> None:
        self.layout = codec.layout
        self.cost = cost_of(codec)
        self._kind, self._sizes, self._roles = kind, sizes, roles
        fixed = fixed_sizes(codec)
        self._buffers = None if fixed is None else [Sized(nbytes) for nbytes in fixed]
        self._vector = torch.empty(0)
        self._scales = getattr(codec, "scale_count", 0)

    def start(self) -> None:
        """There is nothing to remember."""

    def encode(self, vector: Any, key: Key | None = None, *more: Any, **others: Any) -> list[Sized]:
        """A message's buffers."""
        if self._buffers is not None:
            return self._buffers
        assert key is not None, f"{self._kind}: a message whose size depends on the data is coded with a key"
        known = self._sizes.buffers(self._roles[key.stream], key.step, self._kind, self.layout.size)
        if not known:
            raise InputError(
                f"no '{self._kind}' of {self._roles[key.stream]} was recorded at step {key.step}, so nothing tells its "
                "size: record one with this run's settings, or give a part of float32's bytes, --sizes SYSTEM=0.01"
            )
        return [Sized(nbytes) for nbytes in known]

    def decode(self, buffers: Sequence[Sized], out: torch.Tensor | None = None) -> torch.Tensor:
        """A vector without elements."""
        return self._vector if out is None else out

    def quantize(self, vector: torch.Tensor, *more: Any) -> torch.Tensor:
        """The vector itself."""
        return vector

    def limits(self, vector: torch.Tensor) -> Limits:
        """Scales, which are sent, of zero."""
        none = np.zeros(self._scales, np.float32)
        return Limits(none, none)

    def sum(self, *what: Any) -> None:
        """A sum, that nothing need be known of: `encode` takes it."""

    add = unpack = completed = sum
