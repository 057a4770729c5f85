"""MQGrad: the bits of the gradients' quantization chosen by reinforcement learning (Cui et al., Algorithms 1 and 2).

The large fully connected layers' gradients are quantized uniformly between their least and largest value, with 2 to
8 bits; all else travels in float32 (4.1). The agent (`protocols.bits_policy`) stands at the global server. In
the paper a worker sends its loss and gets the bits back before it sends its gradient, in a round trip of its own. Here
the loss rides on the gradient and the bits on the answer to it, in the headers of messages that travel anyway: the
bits that the agent chooses upon the losses of step m are first used for the mean that answers step m, and by
workers and LPSs in step m + 1. Messages say themselves with how many bits they were coded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsFloat, cast

import torch

from testbed.codecs.base import Buffers, Key
from testbed.codecs.costs import cost_of, cost_with_feedback
from testbed.codecs.memory import Remembering
from testbed.codecs.uniform import Rounding, Uniform
from testbed.errors import InputError
from testbed.gpu.moves import is_far
from testbed.layout import Layer, Layout
from testbed.record.events import Bits
from testbed.roles.node import Node
from testbed.systems.protocols.base import Task
from testbed.systems.protocols.bits_policy import MAX_BITS, MIN_BITS, BitsPolicy, PolicyOptions, PolicyState
from testbed.systems.protocols.codec_system import CodecSystem, Numbers, Sender

LARGE = 0.01  # a layer with at least this part of a model's parameters


class MQGradOptions(PolicyOptions, frozen=True, forbid_unknown_fields=True):
    """The agent's settings, and how gradients are rounded to the levels.

    Parameters
    ----------
    rounding : "random": up or down without bias; "nearest": as in the paper, where 2 bits have no level near zero,
        which slows training (CifarNet, 100 steps: loss 1.979 against 1.945; baseline 1.946)
    feedback : a sender adds what its messages have left out so far to the next one
    """

    rounding: Rounding = "random"
    feedback: bool = False


@dataclass
class Told:
    """What a sender was told last, and what its messages have left out [layout.size] (with feedback)."""

    bits: int
    residual: torch.Tensor | None


class ToldBits:
    """Uniform quantization with the bits that the sender was told.

    Parameters
    ----------
    codec : quantizes with any number of bits
    feedback : with error feedback
    """

    def __init__(self, codec: Uniform, feedback: bool) -> None:
        self.codec = codec
        self.feedback = feedback
        self.layout = codec.layout
        self.decode = codec.decode
        self.cost = cost_with_feedback(codec) if feedback else cost_of(codec)

    def around(self, codec: Any) -> ToldBits:
        """See `testbed.codecs.memory.Around`."""
        return ToldBits(codec, self.feedback)

    def start(self) -> Told:
        """The fewest bits, until told otherwise."""
        return Told(MIN_BITS, torch.zeros(self.layout.size) if self.feedback else None)

    def encode(self, vector: torch.Tensor, key: Key, memory: Told) -> Buffers:
        """See `Codec.encode`."""
        if memory.residual is None:
            return self.codec.encode(vector, key, memory.bits)
        memory.residual = memory.residual.to(vector.device)
        return self.codec.encode_with_feedback(vector, memory.residual, key, memory.bits)


class MQGrad(CodecSystem):
    name = "mqgrad"
    follows_network = True
    options_type = MQGradOptions
    options: MQGradOptions

    def __init__(self, task: Task, options: MQGradOptions) -> None:
        self.policy = BitsPolicy(options, task.seed, task.roles.stream_of(task.roles.global_server))
        super().__init__(task, options)

    def codec(self, sender: Sender) -> Remembering:
        large = large_layers(self.task.layout)
        if not large:
            raise InputError("mqgrad: the model has no large fully connected layer to quantize; use fixed-4 or another")
        codec = Uniform(self.task.layout, MAX_BITS, self.options.rounding, large.__contains__)
        return ToldBits(codec, self.options.feedback)

    def report(self, loss: SupportsFloat) -> Numbers:
        on_device = isinstance(loss, torch.Tensor) and is_far(loss)
        return (cast(float, loss) if on_device else float(loss),)

    def start_policy(self) -> PolicyState:
        return self.policy.start()

    def decide(self, node: Node, policy: PolicyState, report: Numbers, step: int) -> Numbers:
        if self.task.timing_only:
            return (float(policy.bits),)
        self.policy.observe(policy, report[0], step)
        if self.policy.decides_at(step):
            before = policy.bits
            reward = self.policy.decide(policy, step, node.now())
            if policy.bits != before or step == 0:
                node.record(Bits(time_s=node.now(), node=node.name, step=step, bits=policy.bits, reward=reward))
        return (float(policy.bits),)

    def told(self, memory: Told, decision: Numbers) -> None:
        if memory is not None:  # as in a timing-only run
            memory.bits = int(decision[0])


def large_layers(layout: Layout) -> list[Layer]:
    """The weights of the fully connected layers that hold most of a model, but for the last layer (4.1)."""
    return [layer for layer in layout if len(layer.shape) == 2 and not layer.last and layer.size >= LARGE * layout.size]
