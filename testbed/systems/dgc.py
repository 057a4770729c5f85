"""DGC: one gradient element in a thousand, the rest waits (Lin et al., "Deep Gradient Compression", ICLR 2018).

Workers send what `testbed.codecs.dgc.DGC` makes of their gradients. An LPS sends the sum of its region's messages and
the global server the mean of all, both as sparse vectors in float32, exact but for the rounding of the additions.
Momentum is the workers' part, before they send; what they do with the mean is plain SGD, w <- w - rate * mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from testbed.codecs import dgc
from testbed.codecs.base import Codec
from testbed.codecs.memory import Remembering
from testbed.codecs.sparse import Sparse
from testbed.codecs.topk import ValueKind
from testbed.systems.protocols.base import Knob, Options
from testbed.systems.protocols.codec_system import CodecSystem, Sender
from testbed.types import Fraction, Rate
from testbed.workloads.optimizer import SGD, Optimizer

Steps = Annotated[int, msgspec.Meta(ge=1)]


class DGCOptions(Options, frozen=True, forbid_unknown_fields=True):
    """The paper's parts; what is left out is taken from the experiment's training, for a fair comparison.

    Parameters
    ----------
    sparsity : fraction of each layer's elements that a worker holds back after warm-up
    momentum, nesterov : of the correction (3.2); nesterov left out: that of an SGD optimizer
    clip_norm : bound on the norm of the mean gradient; each of N workers clips its own, which is sqrt(N) times as
        large where all are independent, to clip_norm * sqrt(N) (3.2, where a worker's is a share of the mean, 1 / N of
        it, and clipped to clip_norm / sqrt(N)); left out: `training.clip_norm`
    warmup_epochs : epochs in which the sparsity grows exponentially, 75 % in the first (3.3); 0: none
    epoch_steps : steps of such an epoch; left out: those in which all training images are seen once
    masking : clear the momentum of elements that are sent (3.3, momentum factor masking)
    values : how values travel from workers
    dense_biases : biases send all they have, as in the authors' own code, instead of their largest element
    """

    sparsity: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.999
    momentum: Fraction = 0.9
    nesterov: bool | None = None
    clip_norm: Rate | None = None
    warmup_epochs: Annotated[int, msgspec.Meta(ge=0)] = 4
    epoch_steps: Steps | None = None
    masking: bool = True
    values: ValueKind = "float32"
    dense_biases: bool = False


class DGC(CodecSystem):
    name = "dgc"
    own_momentum = own_clip = True
    options_type = DGCOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"sparsity": Knob(choices=(0.99, 0.999))}
    options: DGCOptions

    def codec(self, sender: Sender) -> Codec | Remembering:
        if sender != "worker":
            return Sparse(self.task.layout)
        options, training = self.options, self.task.training
        sgd = training.optimizer if isinstance(training.optimizer, SGD) else SGD()
        return dgc.DGC(
            self.task.layout,
            len(self.task.roles.workers),
            sparsity=options.sparsity,
            momentum=options.momentum,
            nesterov=sgd.nesterov if options.nesterov is None else options.nesterov,
            clip_norm=training.clip_norm if options.clip_norm is None else options.clip_norm,
            warmup_epochs=options.warmup_epochs,
            epoch_steps=options.epoch_steps or training.epoch_steps(self.task.images),
            masking=options.masking,
            values=options.values,
            dense_biases=options.dense_biases,
        )

    def optimizer(self) -> Optimizer:
        """Plain SGD; an experiment with Adam keeps it, though the paper says nothing of it."""
        return self.task.training.optimizer.without_momentum
