"""Baseline: synchronous SGD through the parameter servers in float32 (WeightGrad, KDD 2020, Algorithm 1)."""

from __future__ import annotations

from testbed.codecs.floats import Float32
from testbed.systems.protocols.codec_system import CodecSystem, Sender


class Baseline(CodecSystem):
    name = "baseline"

    def codec(self, sender: Sender) -> Float32:
        return Float32(self.task.layout)
