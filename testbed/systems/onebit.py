"""1-bit SGD: signs with error feedback (Seide et al., Interspeech 2014), on the baseline's protocol.

As in the paper (section 3), gradients are quantized twice, where they are made and where they have been added up, and
whoever quantizes keeps the error and adds it to what it sends next. On the tree that is three times, with a memory at
every worker, every LPS and the global server.
"""

from __future__ import annotations

from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.onebit import OneBit as OneBitCodec
from testbed.systems.protocols.codec_system import CodecSystem, Sender


class OneBit(CodecSystem):
    name = "onebit"

    def codec(self, sender: Sender) -> ErrorFeedback:
        return ErrorFeedback(OneBitCodec(self.task.layout))
