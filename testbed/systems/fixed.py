"""Fixed-k: k bits an element, the same throughout a training; what MQGrad is compared with (its section 4.1).

As there (section 3.2), workers quantize their gradients, servers decode and add them up, and the mean goes back
quantized with as many bits; on the tree an LPS quantizes its region's sum, too. Rounding is at random by default: of
2 bits no level is near zero, where most of a gradient lies, and rounding to the nearest, as in the paper, errs the
same way on every hop (CifarNet after 100 steps: loss 2.10; at random 1.90, nearest with feedback 1.97, baseline 1.93).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from testbed.codecs.base import Codec
from testbed.codecs.memory import ErrorFeedback, Remembering
from testbed.codecs.uniform import Rounding, Uniform
from testbed.layout import Layer
from testbed.systems.base import Options
from testbed.systems.codec_system import CodecSystem, Sender


class FixedOptions(Options, frozen=True, forbid_unknown_fields=True):
    """How values become levels.

    Parameters
    ----------
    layers : "all", or "dense": fully connected layers but for the last, as in MQGrad's experiments; others float32
    rounding : up or down at "random" without bias, or to the "nearest" level
    feedback : a sender adds what its messages have left out so far to the next one (not in the paper)
    """

    layers: Literal["all", "dense"] = "all"
    rounding: Rounding = "random"
    feedback: bool = False


class Fixed(CodecSystem):
    """The three below share it."""

    bits: ClassVar[int]
    options_type = FixedOptions
    options: FixedOptions

    def codec(self, sender: Sender) -> Codec | Remembering:
        chosen = dense if self.options.layers == "dense" else None
        codec = Uniform(self.task.layout, self.bits, self.options.rounding, chosen)
        return ErrorFeedback(codec) if self.options.feedback else codec


def dense(layer: Layer) -> bool:
    """Whether a layer is the weights of a fully connected layer that is not the model's last."""
    return len(layer.shape) == 2 and not layer.last


class Fixed2(Fixed):
    name = "fixed-2"
    bits = 2


class Fixed4(Fixed):
    name = "fixed-4"
    bits = 4


class Fixed8(Fixed):
    name = "fixed-8"
    bits = 8
