"""Some layers coded by any codec, the others in float32: what a system codes when it codes its large layers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from testbed.codecs.base import Buffers, Codec, Key, VectorCodec, WireBuffers, elements, fixed_sizes, room
from testbed.codecs.costs import cost_of
from testbed.codecs.memory import Remembering, remembering
from testbed.codecs.selection import Selection
from testbed.errors import CodecError
from testbed.layout import Layer, Layout


class Partial(VectorCodec):
    """A message is that of the chosen layers, which lie one behind the other for their codec, then the others' floats.

    Parameters
    ----------
    layout : the model
    make : the codec of the chosen layers, of their own layout
    chosen : says of a layer whether it is coded
    """

    def __init__(
        self, layout: Layout, make: Callable[[Layout], Codec | Remembering], chosen: Callable[[Layer], bool]
    ) -> None:
        super().__init__(layout)
        self.selection = Selection(layout, chosen)
        offsets = accumulate((layer.size for layer in self.selection.coded), initial=0)
        moved = zip(self.selection.coded, offsets, strict=False)
        self.part = Layout(tuple(replace(layer, offset=offset) for layer, offset in moved))
        self.codec = remembering(make(self.part))
        self.cost = cost_of(self.codec)

    def sizes(self) -> Sequence[int] | None:
        part = fixed_sizes(self.codec)
        return None if part is None else [*part, self.selection.nbytes]

    def start(self) -> Any:
        """The codec's own memory."""
        return self.codec.start()

    def encode(self, vector: torch.Tensor, key: Key, memory: Any) -> Buffers:
        """See `Remembering.encode`."""
        floats = self.selection.gather(elements(vector, self.layout))
        part = torch.cat([vector.detach()[layer.slice] for layer in self.selection.coded])
        return [*self.codec.encode(part, key, memory), floats]

    def decode(self, buffers: WireBuffers, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Codec.decode`."""
        if not buffers:
            raise CodecError("a message without buffers has no float layers")
        floats = self.selection.view(buffers[-1])
        part = self.codec.decode(buffers[:-1])
        vector, y = room(out, self.layout)
        for here, there in zip(self.part, self.selection.coded, strict=True):
            vector[there.slice] = part[here.slice]
        self.selection.scatter(floats, y)
        return vector
