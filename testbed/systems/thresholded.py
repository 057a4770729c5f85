"""Gradients that wait below a fixed threshold T: WGT, BGT and QGT (Anooseh et al., "Thresholded Gradient
Synchronization in Distributed ConvNets", section 2.1).

A worker adds its gradient to what it has kept back and sends what reaches T: whole values (`wgt`), +-T (`bgt`), or
multiples of T up to 255 (`qgt`); see `testbed.codecs.threshold`. Servers add up and send exactly that, sparsely:
float32 values, or integer multiples of T, of T / N in the mean over N workers.

T is compared with a worker's share of the mean gradient, its own gradient divided by N, as in the paper, whose
gradients are sums over a worker's images divided by the whole batch. The default T of each is the paper's, of the row
of its tables 1 to 3 with the best accuracy for its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from testbed.codecs.base import Codec
from testbed.codecs.memory import ErrorFeedback, Remembering
from testbed.codecs.sparse import Sparse
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.systems.protocols.base import Knob, Options
from testbed.systems.protocols.codec_system import CodecSystem, Sender

Threshold = Annotated[float, msgspec.Meta(ge=1e-20, le=1e20)]


class WGTOptions(Options, frozen=True, forbid_unknown_fields=True):
    """`threshold`: T, for a worker's gradient divided by the number of workers."""

    threshold: Threshold = 1e-3


class BGTOptions(Options, frozen=True, forbid_unknown_fields=True):
    """`threshold`: T, for a worker's gradient divided by the number of workers."""

    threshold: Threshold = 6.25e-3


class QGTOptions(Options, frozen=True, forbid_unknown_fields=True):
    """`threshold`: T, for a worker's gradient divided by the number of workers."""

    threshold: Threshold = 5e-4


class WGT(CodecSystem):
    name = "wgt"
    options_type = WGTOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"threshold": Knob(low=1e-4, high=1e-2)}
    options: WGTOptions

    def codec(self, sender: Sender) -> Codec | Remembering:
        if sender != "worker":
            return Sparse(self.task.layout)
        return ErrorFeedback(Thresholded(self.task.layout, self.options.threshold * len(self.task.roles.workers)))


class QGT(CodecSystem):
    name = "qgt"
    options_type: ClassVar[type[Options]] = QGTOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"threshold": Knob(low=5e-5, high=5e-3)}
    options: QGTOptions | BGTOptions
    limit: ClassVar[int] = 255  # multiples of T that a worker sends at most: they fit into a byte in the paper

    def codec(self, sender: Sender) -> Codec | Remembering:
        roles, layout = self.task.roles, self.task.layout
        workers = len(roles.workers)
        worker = Thresholded(layout, self.options.threshold * workers, self.limit)
        if sender == "worker":
            return ErrorFeedback(worker)
        if sender == "lps":
            return SparseMultiples(layout, worker.threshold, roles.workers_per_region * self.limit)
        if self.tolerance is not None:  # a mean of those who are there is no multiple of what that of all is one of
            return Sparse(layout)
        return SparseMultiples(layout, worker.threshold / workers, workers * self.limit)


class BGT(QGT):
    name = "bgt"
    options_type = BGTOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"threshold": Knob(low=1e-3, high=2e-2)}
    limit = 1
