"""Errors in values that nobody has looked at yet.

On the CPU a codec looks at a vector before it sends it, and a NaN ends the run with the layer's name. On a device that
would make every message wait. So there the largest magnitude of each layer is kept where it is, and looked at when
values are read anyway, at the latest at the next test or checkpoint: a few steps late, and with the same error.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor

from testbed.errors import CodecError, NotFinite
from testbed.gpu.moves import numbers

_open: WeakSet[Doubts] = WeakSet()


class Doubts:
    """The largest magnitudes seen so far, of each of some layers.

    Parameters
    ----------
    names : of the layers
    device : where the magnitudes are
    """

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._names = list(names)
        self._peaks = torch.zeros(len(self._names), device=device)
        self._last: Tensor | None = None
        if self._names:
            _open.add(self)

    def note(self, peaks: Tensor) -> None:
        """Take in magnitudes (float32 [layers]); NaN and infinity stay."""
        torch.maximum(self._peaks, peaks, out=self._peaks)

    def keep(self, vector: Tensor) -> None:
        """Take in the magnitude of a vector, the one layer, only when it is asked for and if no other came after it.

        Nobody writes to it. Where a sum takes in what is not finite, so are all later ones.
        """
        self._last = vector

    def forget(self) -> None:
        """Begin anew."""
        self._last = None
        self._peaks.zero_()

    def worst(self) -> Tensor:
        """A scalar that is finite where all magnitudes were."""
        if self._last is not None:
            self.note(torch.linalg.vector_norm(self._last, float("inf")).view(1))
            self._last = None
        return self._peaks.sum()

    def error(self) -> CodecError | None:
        """What is wrong, if anything."""
        wrong = [not finite for finite in self._peaks.isfinite().cpu().tolist()]
        if not any(wrong):  # each is finite, and their sum is not
            return None
        return NotFinite.of(f"layer {self._names[wrong.index(True)]}")


def drop() -> None:
    """Have nothing to do any more with the vectors of before."""
    _open.clear()


def settle() -> None:
    """Raise CodecError where a vector that has been sent was not finite; one transfer for all codecs of the process."""
    asked = list(_open)
    for doubts, worst in zip(asked, numbers(*(each.worst() for each in asked)), strict=True):
        if worst - worst != 0 and (error := doubts.error()) is not None:
            for other in asked:
                other.forget()
            raise error
