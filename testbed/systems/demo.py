"""DeMo: of each worker's momentum its strongest frequencies, and the sign of their mean (Peng et al., 2024).

arXiv 2411.19870, Algorithm 1, in its variant with signs. Each worker's momentum is its own and is never averaged; what
is sent is taken out of it, so that the rest waits:

    m <- beta m + gradient;  q <- the largest of DCT(m);  m <- m - IDCT(q);  all: w <- w - rate sign(IDCT(mean(q)))

Decisions: the transform and its blocks are in `testbed.codecs.dct`; defaults are those of the authors' code
(bloc97/DeMo), with which weights do not decay, whatever the experiment's optimizer does. Servers add up coefficients
as sparse vectors, exactly but for rounding, and the mean is over all workers, where that code divides by those that
sent a coefficient; gradients enter the momentum as they are, where that code multiplies them by the rate first, which
differs where the rate changes. Since the update is a sign, `rate` is one of signSGD's, far below SGD's. Nobody else
knows a worker's momentum, so what it has sent and nobody took is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from testbed.codecs.base import Codec
from testbed.codecs.costs import Priced
from testbed.codecs.dct import ROW, Blocks, Frequencies
from testbed.codecs.memory import Remembering
from testbed.codecs.sparse import Sparse
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.codec_system import CodecSystem, Sender
from testbed.systems.protocols.replica import Replica
from testbed.types import Count, Fraction
from testbed.workloads.optimizer import SGD


class DeMoOptions(Options, frozen=True, forbid_unknown_fields=True):
    """The algorithm's settings.

    Parameters
    ----------
    momentum : beta
    kept : coefficients that are sent of each block, or all where it has no more
    block : its sides are at most so long
    """

    momentum: Fraction = 0.999
    kept: Count = 32
    block: Count = 64


class DeMo(CodecSystem):
    name = "demo"
    own_momentum = True
    momentum_of = "unit"
    options_type = DeMoOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"kept": Knob(choices=(8, 32, 128))}
    options: DeMoOptions

    def __init__(self, task: Task, options: DeMoOptions) -> None:
        self.blocks = Blocks(task.layout, options.block)
        super().__init__(task, options)

    def codec(self, sender: Sender) -> Codec | Remembering:
        if sender != "worker":
            return Sparse(self.task.layout)
        return Frequencies(self.task.layout, self.blocks, self.options.kept, self.options.momentum)

    def optimizer(self) -> SGD:
        """Plain SGD, of signs."""
        return SGD()

    def taking(self, answer: Message) -> Work:
        return super().taking(answer) + self.task.decoding(Priced(self.task.layout, ROW), answer)

    def take(self, replica: Replica, answer: Message, step: int) -> None:
        mean = self.blocks.inverse(self.codecs["gs"].decode(answer.buffers))
        replica.update(self.task, mean.sign_(), step, self.optimizer())
