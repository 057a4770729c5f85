"""Fixed-k: k bits an element, the same throughout a training; what MQGrad is compared with (its section 4.1).

As there (section 3.2), workers quantize their gradients, servers decode and add them up, and the mean goes back
quantized with as many bits; on the tree an LPS quantizes its region's sum, too. Rounding is at random by default: of
2 bits no level is near zero, where most of a gradient lies, and rounding to the nearest, as in the paper, errs the
same way on every hop (CifarNet after 100 steps: loss 2.10; at random 1.90, nearest with feedback 1.97, baseline 1.93).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from testbed.codecs.base import Codec
from testbed.codecs.lossless.planes import coded_uniform
from testbed.codecs.memory import ErrorFeedback, Remembering
from testbed.codecs.uniform import Rounding, Uniform
from testbed.layout import Layer
from testbed.systems.protocols.base import Options, Task
from testbed.systems.protocols.codec_system import HOPS, CodecSystem, Sender
from testbed.systems.protocols.coding import Choice, EntropyCoding


class FixedOptions(Options, frozen=True, forbid_unknown_fields=True):
    """How values become levels.

    Parameters
    ----------
    layers : "all", or "dense": fully connected layers but for the last, as in MQGrad's experiments; others float32
    rounding : up or down at "random" without bias, or to the "nearest" level
    feedback : a sender adds what its messages have left out so far to the next one (not in the paper)
    entropy : "on": levels are entropy coded, some 1.1, 2.7 and 6.8 bits an element instead of 2, 4 and 8 of Gaussian
        values; "auto": where that makes a message's way shorter (`protocols.coding`); "off" as in the paper
    """

    layers: Literal["all", "dense"] = "all"
    rounding: Rounding = "random"
    feedback: bool = False
    entropy: Choice = "off"


class Fixed(CodecSystem):
    """The three below share it."""

    bits: ClassVar[int]
    options_type = FixedOptions
    options: FixedOptions

    def __init__(self, task: Task, options: FixedOptions) -> None:
        chosen = dense if options.layers == "dense" else None
        self.uniform = Uniform(task.layout, self.bits, options.rounding, chosen)
        super().__init__(task, options)
        self.entropy = EntropyCoding(task, options.entropy, dict.fromkeys(HOPS, coded_uniform(self.uniform)))
        self.varying |= self.entropy.kinds

    def codec(self, sender: Sender) -> Codec | Remembering:
        return ErrorFeedback(self.uniform) if self.options.feedback else self.uniform


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
