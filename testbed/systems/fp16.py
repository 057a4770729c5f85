"""FP16: every vector that travels is rounded to half precision, scaled layer by layer (`testbed.codecs.half`).

What most frameworks offer as gradient compression, e.g. PyTorch's fp16_compress_hook. All hops are coded: workers'
gradients, regions' sums and the mean; the additions are made in float32.
"""

from __future__ import annotations

from testbed.codecs.base import Codec
from testbed.codecs.half import Half
from testbed.systems.protocols.codec_system import CodecSystem, Sender


class FP16(CodecSystem):
    name = "fp16"

    def codec(self, sender: Sender) -> Codec:
        return Half(self.task.layout)
