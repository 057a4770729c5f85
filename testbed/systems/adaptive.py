"""Adaptive: each gradient quantized with the bits that its own statistics ask for (Øland and Raj, ICASSP 2015).

The rule is `testbed.codecs.adaptive`'s. Every sender applies it to what it sends: a worker to its gradient, an LPS to
its region's sum, the global server to the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from testbed.codecs.adaptive import MAX_ERROR, AdaptiveToNorm
from testbed.codecs.adaptive import Adaptive as AdaptiveCodec
from testbed.codecs.base import Codec
from testbed.codecs.memory import ErrorFeedback, Remembering
from testbed.codecs.partial import Partial
from testbed.layout import Layout
from testbed.systems.fixed import dense
from testbed.systems.protocols.base import Knob, Options
from testbed.systems.protocols.codec_system import CodecSystem, Sender


class AdaptiveOptions(Options, frozen=True, forbid_unknown_fields=True):
    """How finely gradients are quantized.

    Parameters
    ----------
    error : mean square of the quantization error, as a fraction of the mean square
    layers : "all", or "dense": fully connected layers but for the last, as in MQGrad's experiments; others float32
    relative_to : of the "first" vector that a sender codes, so that gradients of a large norm take more bits than small
        ones, as MQGrad describes the rule; or of each vector's "own"
    feedback : a sender adds what its messages have left out so far to the next one; without it, layers with
        values far below the others' are never updated
    """

    error: Annotated[float, msgspec.Meta(gt=0, le=MAX_ERROR)] = 0.05
    layers: Literal["all", "dense"] = "all"
    relative_to: Literal["first", "own"] = "first"
    feedback: bool = True


class Adaptive(CodecSystem):
    name = "adaptive"
    options_type = AdaptiveOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"error": Knob(low=0.01, high=0.2)}
    options: AdaptiveOptions

    def codec(self, sender: Sender) -> Codec | Remembering:
        if self.options.layers == "dense":
            return Partial(self.task.layout, self._coded, dense)
        return self._coded(self.task.layout)

    def _coded(self, layout: Layout) -> Codec | Remembering:
        codec = AdaptiveCodec(layout, self.options.error)
        if self.options.relative_to == "first":
            return AdaptiveToNorm(codec, self.options.feedback)
        return ErrorFeedback(codec) if self.options.feedback else codec
