"""Streaming DiLoCo: fragments that take turns, exchanged in 4 bits while training goes on (Douillard et al., 2025).

arXiv 2501.18512. `diloco` with all three of the paper's parts on: P fragments, one after the other within H steps
(3.1); a fragment's mean comes in force `overlap_steps`, tau, after it was sent, and is mixed with what the region has
learnt meanwhile (3.2); outer gradients are E3M0, 4 bits (3.3). The defaults are a tau of 5 and even mixing, and as in
`diloco` here `local_steps` of 20. Fragments are runs of neighbouring layers, the paper's "sequential" pattern; how the
rest is done stands in `testbed.systems.diloco`.
"""

from __future__ import annotations

from testbed.systems.diloco import Coding, DiLoCo, DiLoCoOptions
from testbed.types import Count, Fraction, Steps


class StreamingDiLoCoOptions(DiLoCoOptions, frozen=True, forbid_unknown_fields=True):
    """DiLoCo's options, with the paper's parts on."""

    coding: Coding = "e3m0"
    fragments: Count = 2
    overlap_steps: Steps = 5
    mixing: Fraction = 0.5


class StreamingDiLoCo(DiLoCo):
    name = "streaming-diloco"
    options_type = StreamingDiLoCoOptions
