"""QSGD: gradients quantized at random to a few levels, without bias (Alistarh et al., NIPS 2017).

In the paper every worker sends its coded gradient to every other and all add up what they decode, so nothing is
quantized twice. Through servers, an LPS codes its region's sum again and the global server the mean, which stays
unbiased, with more variance; `answer = "float32"` sends the mean as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from testbed.codecs import qsgd
from testbed.codecs.base import Codec
from testbed.codecs.floats import Float32
from testbed.codecs.lossless.planes import coded_qsgd
from testbed.errors import InputError
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.codec_system import HOPS, CodecSystem, Sender
from testbed.systems.protocols.coding import Choice, EntropyCoding


class QSGDOptions(Options, frozen=True, forbid_unknown_fields=True):
    """The paper's parameters; defaults are its 4-bit setting (section 5).

    Parameters
    ----------
    levels : s; 1, 3, 7, 15, ... fill 2, 3, 4, 5, ... bits of a fixed coding
    bucket : elements that share a norm, a power of two
    norm : of a bucket, its largest magnitude (as in the paper's experiments) or the Euclidean (as in its theorems)
    coding : Elias codes (3.2), or a fixed number of bits an element, which is faster
    smallest : layers of fewer elements stay in float32
    answer : the mean goes back quantized or in float32
    entropy : with coding "fixed", "on": levels are entropy coded, some 3.3 bits an element with the defaults instead of
        the 4.03 of Elias codes; "auto": where that makes a message's way shorter (`testbed.systems.protocols.coding`)
    """

    levels: Annotated[int, msgspec.Meta(ge=1, le=127)] = 7
    bucket: Annotated[int, msgspec.Meta(ge=1, le=8192)] = 512
    norm: qsgd.Norm = "max"
    coding: qsgd.Coding = "elias"
    smallest: Annotated[int, msgspec.Meta(ge=0)] = 10_000
    answer: Literal["quantized", "float32"] = "quantized"
    entropy: Choice = "off"


class QSGD(CodecSystem):
    name = "qsgd"
    options_type = QSGDOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"levels": Knob(choices=(1, 3, 7, 15))}
    options: QSGDOptions

    def __init__(self, task: Task, options: QSGDOptions) -> None:
        if options.bucket.bit_count() != 1:
            raise InputError(f"systems.qsgd.bucket: a power of two is needed, not {options.bucket}")
        if options.entropy != "off" and options.coding == "elias":
            raise InputError(
                'systems.qsgd.entropy: Elias codes are an entropy coding themselves; set coding = "fixed" with it'
            )
        it = options
        self.quantizer = qsgd.QSGD(task.layout, it.levels, it.bucket, it.norm, it.coding, it.smallest)
        super().__init__(task, options)
        quantized = [hop for hop in HOPS if self.codec(hop[0]) is self.quantizer]
        self.entropy = EntropyCoding(task, options.entropy, dict.fromkeys(quantized, coded_qsgd(self.quantizer)))
        self.varying |= self.entropy.kinds

    def codec(self, sender: Sender) -> Codec:
        if sender == "gs" and self.options.answer == "float32":
            return Float32(self.task.layout)
        return self.quantizer
