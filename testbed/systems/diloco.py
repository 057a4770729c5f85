"""DiLoCo: regions train by themselves and average what they have learnt every H steps.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), Algorithm 1, with a
data center as its worker: H steps of the inner optimizer, then the outer gradient (parameters before minus
after) is averaged over the regions and applied to the parameters before with Nesterov momentum. Streaming as in
Douillard et al., "Streaming DiLoCo with overlapping communication" (2025): the layers are cut into fragments
that take turns, and training goes on for `overlap_steps` while a fragment's mean is on its way. Decisions:

1. The global server takes the mean; every LPS keeps the outer optimizer and makes the same outer update, so that
   one coded message comes back and all regions agree to the last bit on what was exchanged.
2. Fragments are runs of neighbouring layers of about equal size (the paper's stride applies to equal transformer
   blocks). Fragment p of P is sent at the end of the steps at which (step + 1 + p * H / P) is a multiple of H.
3. When the mean arrives, the fragment becomes mixing * local + (1 - mixing) * global (2025, section 3.2).
4. A ternary outer gradient is deterministic with error feedback: a stochastic one's error is larger than the
   gradient. Fed back late and amplified sevenfold by the outer momentum of 0.9, even that can turn unstable
   (tests/systems/test_diloco.py: 16 % from the uncoded model at 0.5, not converging at 0.9): lower it.
5. Steps after the last exchange stay local: the result is the mean of the regions' copies.
6. Tolerance: a region whose mean has not come `patience_s` after it waits for it trains on by itself and sends nothing
   more until it is answered, as one whose outer gradient is dropped does in 2023, section 3.2 (figure 8). What it has
   learnt meanwhile is part of its next outer gradient. If the round went on without it, it is answered with the
   parameters and the momentum that the others have agreed on, which the global server keeps beside, and with the step
   that they are at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.costs import fed_back
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.floats import Float32
from testbed.codecs.uniform import Uniform
from testbed.layout import Layer, Layout
from testbed.message import Message
from testbed.record.events import Exchange
from testbed.roles.attendance import CATCH_UP, answered
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.trail import Signal
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.regional import Copy, RegionalSystem, WorkerState
from testbed.types import Count, Fraction, Steps
from testbed.wan.plan import region_of
from testbed.workloads.optimizer import SGD, SGDState

Coding = Literal["float32", "int8", "int4", "e3m0", "ternary"]


class DiLoCoOptions(Options, frozen=True, forbid_unknown_fields=True):
    """DiLoCo's settings.

    Parameters
    ----------
    local_steps : H; the papers use 100 and 500 of 88,000 steps
    outer_rate, outer_momentum : of the outer Nesterov momentum (2023, section 3.1: 0.7 and 0.9)
    coding : what outer gradients cross the WAN as (2025, section 3.3: "e3m0")
    fragments : P, how many parts of the model take turns; 1: all at once
    overlap_steps : steps that training goes on for while a fragment's mean is on its way; 0: it waits
    mixing : share of the local parameters when a mean comes in force
    """

    local_steps: Count = 20
    outer_rate: Annotated[float, msgspec.Meta(gt=0)] = 0.7
    outer_momentum: Fraction = 0.9
    coding: Coding = "float32"
    fragments: Count = 1
    overlap_steps: Steps = 0
    mixing: Fraction = 0.0

    def __post_init__(self) -> None:
        if self.fragments > self.local_steps:
            raise ValueError(f"fragments: {self.fragments} cannot take turns in {self.local_steps} local_steps")
        if self.overlap_steps >= self.local_steps // self.fragments:
            raise ValueError(
                f"overlap_steps: {self.overlap_steps} must be less than the {self.local_steps // self.fragments} "
                "steps from one fragment to the next"
            )


@dataclass(frozen=True)
class Fragment:
    """A run of layers that is exchanged as one."""

    number: int
    place: slice  # in the flat vector
    codec: Codec

    def passes(self, count: float) -> Work:
        """Work that reads or writes the fragment's part of a vector so often."""
        return Work(nbytes=4.0 * self.codec.layout.size * count)

    def charged(self, residual: torch.Tensor) -> Any:
        """What coding the fragment's part costs."""
        return fed_back(self.codec) if residual.numel() else self.codec

    def encode(self, vector: torch.Tensor, residual: torch.Tensor, key: Key) -> Buffers:
        """Code the fragment's part of an outer gradient; where there is a residual it is kept up to date."""
        if residual.numel():
            return self.codec.encode_with_feedback(vector, residual[self.place], key)  # type: ignore[attr-defined]
        return self.codec.encode(vector, key)


@dataclass
class CopyState(Copy):
    """A copy, here an LPS's: `outer` are the parameters all agreed on last, `velocity` the outer momentum, all flat."""

    outer: torch.Tensor
    velocity: torch.Tensor
    mean: torch.Tensor  # the regions' mean outer gradient, of each fragment the one that arrived last
    residual: torch.Tensor  # of ternary outer gradients, else empty
    has_arrived: bool = False  # whether the mean of the fragment sent last is in


@dataclass
class GlobalState:
    """A server's that takes means; `residual` is that of the ternary ones it sends, else empty."""

    step: int
    residual: torch.Tensor


@dataclass
class KnowingGlobalState(GlobalState):
    """One that can tell a region what the others have agreed on."""

    outer: torch.Tensor
    velocity: torch.Tensor


@dataclass
class Waiting:
    """A copy's outer gradient on its way, within a segment."""

    arrived: Signal = field(default_factory=Signal)
    answered: bool = True
    alone: bool = False  # whether the region has gone on without the mean


class DiLoCo(RegionalSystem):
    name = "diloco"
    options_type: ClassVar[type[DiLoCoOptions]] = DiLoCoOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"local_steps": Knob(choices=(5, 10, 20, 50))}
    options: DiLoCoOptions

    def __init__(self, task: Task, options: DiLoCoOptions) -> None:
        super().__init__(task, options)
        self.fragments = [
            Fragment(number, place, self.coder(self._codec(layout)))
            for number, (place, layout) in enumerate(_fragments(task.layout, options.fragments))
        ]
        self.outer = SGD(momentum=options.outer_momentum, nesterov=bool(options.outer_momentum))

    def _codec(self, layout: Layout) -> Codec:
        match self.options.coding:
            case "float32":
                return Float32(layout)
            case "e3m0":
                return E3M0(layout)
            case "ternary":
                return BlockThresholdTernary(layout, float_biases=False, float_last=False)
            case coding:
                return Uniform(layout, bits=int(coding.removeprefix("int")), rounding="random")

    def initial_state(self, name: str) -> WorkerState | CopyState | GlobalState:
        initial = self.task.initial
        if name in self.task.roles.workers and name not in self.holders:
            return WorkerState(0, initial.clone())
        residual = torch.zeros_like(initial) if self.options.coding == "ternary" else initial.new_empty(0)
        velocity = self.outer.start(initial).velocity
        if name in self.holders:
            parts = self.copy_parts()
            return CopyState(*parts, initial.clone(), velocity, mean=torch.zeros_like(initial), residual=residual)
        if self.tolerance is None:
            return GlobalState(0, residual)
        return KnowingGlobalState(0, residual, initial.clone(), velocity)

    async def lps(self, node: Node, state: CopyState) -> None:
        waiting = Waiting()
        clients = self.attendance(node, partial(self.weights_message, node, state))
        async for step in node.steps(state):
            gradients = await clients.collect(step)
            await node.compute(self.updating(gradients), self.update, state, gradients, step, len(gradients))
            waiting = await self.exchange(node, state, step, waiting)
            await node.broadcast(clients.present, await self.weights_message(node, state, state.step))
            await clients.readmit(state.step)
        await clients.end(state.step - 1)

    async def exchange(self, node: Node, state: CopyState, step: int, waiting: Waiting) -> Waiting:
        """What a copy does at the end of `step`: send a fragment, take the mean of one, or neither."""
        if (fragment := self.turn(step)) is not None and waiting.answered:
            waiting = Waiting(answered=False)
            outer = await self._send_outer_gradient(node, state, fragment, step)
            node.spawn(self._take_mean(node, state, fragment, waiting, outer))
        if (fragment := self.turn(step - self.options.overlap_steps)) is not None and not waiting.alone:
            if not state.has_arrived:
                await self._wait_for_mean(node, waiting)
            if state.has_arrived:
                await node.compute(fragment.passes(self.outer.passes + 3), self._outer_step, state, fragment)
        return waiting

    def turn(self, step: int) -> Fragment | None:
        """The fragment that is sent at the end of `step`."""
        period, count = self.options.local_steps, len(self.fragments)
        for fragment in self.fragments:
            if step >= 0 and (step + 1 + fragment.number * period // count) % period == 0:
                return fragment
        return None

    async def _send_outer_gradient(self, node: Node, state: CopyState, fragment: Fragment, step: int) -> Message:
        state.has_arrived = False
        charge = self.task.encoding(fragment.charged(state.residual), fragment.passes(3))
        buffers = await node.compute(charge, self._outer_gradient, node, state, fragment, step)
        outer = Message("outer", step, buffers)
        await node.send(node.server, outer)
        return outer

    def _outer_gradient(self, node: Node, state: CopyState, fragment: Fragment, step: int) -> Buffers:
        difference = state.outer[fragment.place] - state.weights[fragment.place]
        return fragment.encode(difference, state.residual, self._key(node, step))

    async def _wait_for_mean(self, node: Node, waiting: Waiting) -> None:
        """Wait for the mean; with a tolerance not for ever, after which the region is on its own."""
        if self.tolerance is None:
            await node.wait(waiting.arrived, "the mean of its outer gradient")
            return
        try:
            async with node.timeout(3 * self.tolerance.patience_s):  # the global server's two, and for the answer
                await waiting.arrived.wait()
        except TimeoutError:
            waiting.alone = True

    async def _take_mean(
        self, node: Node, state: CopyState, fragment: Fragment, waiting: Waiting, outer: Message
    ) -> None:
        message = await answered(node, outer, self.tolerance)
        if message.kind == CATCH_UP:
            await node.compute(self.task.passes(4), self._catch_up, state, message)
            state.step = max(state.step, message.step)
            waiting.alone = True  # there is no mean to make an outer step with
        else:
            work = self.task.decoding(fragment.codec, message)
            state.mean[fragment.place] = await node.compute(work, fragment.codec.decode, message.buffers)
            if waiting.alone:
                await node.compute(fragment.passes(self.outer.passes), self._agree, state, fragment)
            else:
                state.has_arrived = True
        waiting.answered = True
        waiting.arrived.set()

    def _outer_step(self, state: CopyState, fragment: Fragment) -> None:
        """The region's copy moves to where all agree to be."""
        place, mixing = fragment.place, self.options.mixing
        self._agree(state, fragment)
        state.weights[place] = state.weights[place].mul(mixing).add_(state.outer[place], alpha=1 - mixing)

    def _agree(self, state: CopyState, fragment: Fragment) -> None:
        """Nesterov momentum on the parameters all regions share."""
        self._momentum(state.outer, state.velocity, state.mean[fragment.place], fragment)

    def _momentum(self, outer: torch.Tensor, velocity: torch.Tensor, mean: torch.Tensor, fragment: Fragment) -> None:
        own = velocity[fragment.place] if self.options.outer_momentum else velocity
        self.outer.update(SGDState(own), outer[fragment.place], mean, self.options.outer_rate)

    async def global_server(self, node: Node, state: GlobalState) -> None:
        clients = self.attendance(node, partial(self._tell, node, state))
        async for step in node.steps(state):
            if (fragment := self.turn(step)) is None:
                continue
            messages = await clients.collect(step)
            if not messages:
                continue  # the regions have ended by themselves
            mean = await self.mean(node, state, fragment, messages, step)
            included = list(dict.fromkeys(region_of(client) for client in clients.present))
            number = step * len(self.fragments) // self.options.local_steps
            node.record(Exchange(time_s=node.now(), node=node.name, round=number, included=included, reason="interval"))
            await node.broadcast(clients.present, mean)
            if isinstance(state, KnowingGlobalState):
                knowing = self.task.decoding(fragment.codec, mean) + fragment.passes(self.outer.passes)
                await node.compute(knowing, self._know, state, fragment, mean)
            await clients.readmit(step)
        await clients.end(state.step - 1)

    def _know(self, state: KnowingGlobalState, fragment: Fragment, mean: Message) -> None:
        """Do at the global server what regions do with a mean."""
        vector = fragment.codec.decode(mean.buffers)
        if not self.task.timing_only:
            self._momentum(state.outer, state.velocity, vector, fragment)

    async def _tell(self, node: Node, state: GlobalState, step: int) -> Message:
        """What the regions have agreed on, for one that was not there."""
        assert isinstance(state, KnowingGlobalState)
        vectors = [state.outer, state.velocity] if self.options.outer_momentum else [state.outer]

        def buffers() -> list[Any]:
            return [buffer for vector in vectors for buffer in self.floats.encode(vector)]

        return Message(CATCH_UP, step, await node.compute(self.task.passes(2 * len(vectors)), buffers))

    def _catch_up(self, state: CopyState, told: Message) -> None:
        vectors = [self.floats.decode([buffer]) for buffer in told.buffers]
        for mine, vector in zip((state.outer, state.velocity), vectors, strict=False):
            mine.copy_(vector)

    async def mean(
        self, node: Node, state: GlobalState, fragment: Fragment, messages: Sequence[Message], step: int
    ) -> Message:
        """A server's message: the mean of a fragment's outer gradients."""
        charge = self.task.encoding(fragment.charged(state.residual), self.task.adding(fragment.codec, messages))
        return await node.compute(charge, self._mean, node, state, fragment, messages, step)

    def _mean(
        self, node: Node, state: GlobalState, fragment: Fragment, messages: Sequence[Message], step: int
    ) -> Message:
        vectors = [fragment.codec.decode(message.buffers) for message in messages]
        mean = torch.stack(vectors).mean(0)
        return Message("mean", step, fragment.encode(mean, state.residual, self._key(node, step)))

    def _key(self, node: Node, step: int) -> Key:
        return Key(self.task.seed, self.task.roles.stream_of(node.name), step)


def _fragments(layout: Layout, count: int) -> list[tuple[slice, Layout]]:
    """Cut a layout between layers into at most `count` runs of about equal size, each a layout of its own."""
    goals = [layout.size * k / count for k in range(1, count)]
    ends = [layer.end for layer in layout]
    cuts = sorted({min(ends, key=lambda end: abs(end - goal)) for goal in goals} - {layout.size})
    runs = []
    for start, stop in pairwise([0, *cuts, layout.size]):
        layers = [layer for layer in layout if start <= layer.offset and layer.end <= stop]
        moved = tuple(Layer(layer.name, layer.shape, layer.offset - start, layer.last) for layer in layers)
        runs.append((slice(start, stop), Layout(moved)))
    return runs
