"""Concord: workers that never wait for the WAN, and for their own LAN only where that is cheap. This testbed's own.

Every worker trains a copy of its own. Copies are averaged over links, each for itself (`protocols.accounts`): workers
with their LPS, LPSs with the global server, always the newest with the newest. What crosses a link is what is new since
the last answer, in some two bits an element; what a code leaves out stays in the copy. There is no period to choose:
the next round of a link begins when the last one is answered, so the network's own time is the period, whatever it is
and becomes. In ten lines, with a, b, s, C and D as in `accounts`:

    worker   each step: one step of its optimizer on x; take in answers that have come: x <- x + D(p) - s
             no round under way: send C(x - a); in a "together" round wait for the answer
    LPS      takes in all that has come: z <- z + s / n; answers those it owes: C(z - b); in a "together" round to all
             of its workers at once; z is its x on the WAN, where no round is under way: send C(z - a)
    GS       as an LPS, of LPSs: Z <- Z + s / regions
    mode     r = time of a LAN round / time of a step; k = ceil(r / waiting), so that waiting for every k-th step's
             round takes at most the part `waiting` of the compute time. k <= drift: together, every k steps; else
             apart: workers never wait, and the period is r steps. With `drift` 1 they wait if r <= waiting, which is
             what an answer that comes a step late costs in steps: 1 to 2 % by docs/own-system.md
    end      differences in float32 up the tree, then Z in float32 down: the average, the same bits at every worker

Decisions:

1. Whoever has all that has come counts all of it before it answers, so that those who come at the same time are told of
   each other.
2. The LPS decides the mode from the mean r that its workers report, with the answers; it begins apart. It changes back
   to apart only at a k of twice `drift`, since a round in which all wait takes longer.
3. In a together round an LPS waits for who is late at most three times as long as such a round takes by what workers
   reported; who is late is waited for no more until it is heard of (`Absent`). This needs no `tolerance`.
4. Answers tell the furthest step. A worker that is behind by more than the part `lag` of it (a straggler, one that was
   dead) goes on from there: what it had no time for is not made.
5. A role that was dead goes on with what it knew, with the rounds that were under way set right. One that begins afresh
   is told z; what it alone had known is lost.
6. Weights are averaged. The optimizer's momentum stays with its worker, unless `velocity` is "averaged".
7. `coding = "feedback"` takes the gradient at what a worker's rounds have told of it, x less what codes have left out:
   error feedback. `merge = "overwrite"` makes x what was told, and loses what was made meanwhile: both to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from testbed.codecs.adaptive import Adaptive
from testbed.codecs.base import Key
from testbed.codecs.floats import Float32
from testbed.errors import InputError
from testbed.layout import Layout
from testbed.message import Message
from testbed.roles.attendance import BACK, CATCH_UP
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.roles.traits import Orphaned
from testbed.systems.protocols.accounts import Accounts, Member
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.inbox import Inbox
from testbed.systems.protocols.replica import Replica
from testbed.systems.protocols.servers import AveragingServers, ServerState, furthest_in
from testbed.types import Count, Fraction, Positive
from testbed.wan.plan import region_of
from testbed.workloads.muon import Muon
from testbed.workloads.optimizer import SGD, SGDState


class ConcordOptions(Options, frozen=True, forbid_unknown_fields=True):
    """Concord's settings; the defaults are the rule, the others are there to be compared with it.

    Parameters
    ----------
    lan : whether workers wait for their LPS: by the rule, always ("together") or never ("apart")
    wan : whether regions go on while their LPS waits for the global server ("apart"), or wait, too
    waiting : of the rule: the part of compute time that waiting for the LAN may take
    drift : of the rule: the most steps that workers are to make by themselves to keep to that
    lan_period, wan_period : a link's next round begins at the earliest so many steps, or answers of the LPS, later
    error : how coarse the code is: mean square of what it leaves out, as a part of what there is; 0: float32
    coding, merge, velocity : see the module's rules 6 and 7
    inner : what makes a worker's steps: the experiment's optimizer, or Muon, beside which that trains what is no matrix
    lag : part of the furthest step by which a worker may be behind
    end : whether the run ends with the average at every worker
    """

    lan: Literal["auto", "together", "apart"] = "auto"
    wan: Literal["apart", "together"] = "apart"
    waiting: Positive = 0.02
    drift: Count = 1
    lan_period: Count = 1
    wan_period: Count = 1
    error: Annotated[float, msgspec.Meta(ge=0, le=0.25)] = 0.1
    coding: Literal["difference", "feedback"] = "difference"
    merge: Literal["keep", "overwrite"] = "keep"
    velocity: Literal["local", "averaged"] = "local"
    inner: Literal["experiment", "muon"] = "experiment"
    lag: Fraction = 0.25
    end: bool = True


@dataclass
class WorkerState(Replica):
    """A copy, its link, and what the rule goes by. Times are seconds on the run's clock."""

    link: Member
    left: torch.Tensor  # by codes, where that is fed back; else empty
    since: int = 0  # steps since the latest round began
    period: int = 0  # steps from one round to the next, which are together; 0: apart
    sent_s: float = 0.0  # when the round began
    step_s: float = 0.0  # what a step took
    round_s: float = 0.0  # what a round took; 0: none has been answered
    furthest: int = 0  # step that it has heard of


class Concord(AveragingServers):
    name = "concord"
    options_type = ConcordOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"error": Knob(choices=(0.05, 0.1, 0.25))}
    options: ConcordOptions

    def __init__(self, task: Task, options: ConcordOptions) -> None:
        super().__init__(task, options)
        layout, optimizer = task.layout, self.task.training.optimizer
        self.inner = Muon(layout, optimizer) if options.inner == "muon" else optimizer
        if options.velocity == "averaged":
            if not (isinstance(self.inner, SGD) and self.inner.momentum):
                raise InputError('concord: velocity = "averaged" needs an SGD with a momentum')
            layout = Layout.of([(f"{part} {it.name}", it.shape) for part in ("weights", "velocity") for it in layout])
        code = Adaptive(layout, options.error) if options.error else Float32(layout)
        floats = self.coder(Float32(layout))
        self.wan_together, self.wan_period = options.wan == "together", options.wan_period
        self._feeds_back = options.coding == "feedback"
        self._gradient_work = self.task.gradient_work
        if self._feeds_back:
            self._gradient_work += self.task.passes(3)
        self.accounts = Accounts(task, self.coder(code, "difference"), self.coder(code, "answer"), floats)

    def initial_state(self, name: str) -> WorkerState | ServerState:
        initial, accounts = self.task.initial, self.accounts
        averaged = self.options.velocity == "averaged"
        x = torch.cat([initial, torch.zeros_like(initial)]) if averaged else initial
        roles = self.task.roles
        if name in roles.workers:
            replica = Replica.of(self.task, self.inner, shown=True)
            left = torch.zeros_like(initial) if self._feeds_back else initial.new_empty(0)
            return WorkerState(**vars(replica), link=accounts.member(x), left=left)
        return self.server_state(name, x)

    # Worker

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        inbox = Inbox(node)
        async for step in node.steps(state):
            began_s = node.now()
            loss, gradient = await node.compute(self._gradient_work, self._gradient, learner, state, step)
            await node.compute(self.update_work, self._update, state, gradient, step)
            state.step_s = node.now() - began_s
            state.since += 1
            while inbox.items:
                await self._take_answer(node, state, inbox)
            if not state.link.waiting and state.since >= max(state.period, self.options.lan_period):
                await self._send(node, state)
                if state.period:
                    await self._until_answered(node, state, inbox)
            self._keep_up(node, state, step)
            node.step_done(step, loss)
        await self._until_answered(node, state, inbox)
        while self._is_end(state.step):
            await self.send_last(node, state.link, self._x(state), state.step)
            if await self._until_answered(node, state, inbox) != CATCH_UP:
                break

    def _gradient(self, learner: Any, state: WorkerState, step: int) -> tuple[float, torch.Tensor]:
        at = state.weights - state.left if self._feeds_back else state.weights
        found: tuple[float, torch.Tensor] = learner.gradient(at, step)
        return found

    def _update(self, state: WorkerState, gradient: torch.Tensor, step: int) -> None:
        state.update(self.task, gradient, step, self.inner)

    @property
    def update_work(self) -> Work:
        """What a worker's own step is charged."""
        return Work(self.inner.flops, self.inner.nbytes) if isinstance(self.inner, Muon) else self.task.update_work

    def _x(self, state: WorkerState) -> torch.Tensor:
        """What is averaged of a worker."""
        if self.options.velocity == "local":
            return state.weights
        assert isinstance(state.optimizer, SGDState)
        return torch.cat([state.weights, state.optimizer.velocity])

    async def _send(self, node: Node, state: WorkerState) -> None:
        """Begin a round."""
        state.since, state.sent_s = 0, node.now()
        key = Key(self.task.seed, self.worker_index(node), state.step)
        buffers = await node.compute(self.accounts.sending, self._difference, state, key)
        numbers = (float(state.step), float(state.link.number), float(bool(state.period)), state.step_s, state.round_s)
        await node.send(node.server, Message("difference", state.step, buffers, numbers))

    def _difference(self, state: WorkerState, key: Key) -> Sequence:
        x, size = self._x(state), state.weights.numel()
        buffers = self.accounts.send(state.link, x, key)
        if self._feeds_back:
            state.left = (x - state.link.told - state.link.sent)[:size]
        return buffers

    async def _until_answered(self, node: Node, state: WorkerState, inbox: Inbox) -> str:
        """Take in what comes until no round is under way; the kind of the last message, "" where the server is gone."""
        kind = ""
        while state.link.waiting:
            kind = await self._take_answer(node, state, inbox)
            if not kind:
                raise Orphaned
        return kind

    async def _take_answer(self, node: Node, state: WorkerState, inbox: Inbox) -> str:
        """Take in what the server has sent, or will."""
        arrived = await inbox.next(node, "the answer of its server")
        if arrived is None:
            return ""
        _, message, came_s = arrived
        if message.kind == BACK:
            await node.send(node.server, self.accounts.ask(state.link))
            return BACK
        if message.kind == "answer":
            state.round_s, state.period = came_s - state.sent_s, int(message.numbers[1])
        await node.compute(self.taking(message), self._take, state, message)
        state.furthest = max(state.furthest, furthest_in(message))
        return message.kind

    def _take(self, state: WorkerState, message: Message) -> None:
        change, size = self.change(state.link, message), state.weights.numel()
        if self.options.merge == "overwrite" or message.kind == "mean":  # the mean is held to the last bit
            state.weights.copy_(state.link.told[:size])
        else:
            state.weights.add_(change[:size])
        if self.options.velocity == "averaged":
            state.optimizer.velocity.add_(change[size:])
        if message.kind == "mean":
            state.left.zero_()

    def period(self, state: ServerState) -> int:
        """The rule: 0 for apart, else the steps from one together round to the next."""
        if self.options.lan == "apart":
            return 0
        known = [ratio for ratio in state.ratios if ratio]
        if not known:
            return int(self.options.lan == "together")
        steps = max(1, ceil(sum(known) / len(known) / self.options.waiting))
        most = self.options.drift * (2 if state.period else 1)
        return steps if steps <= most or self.options.lan == "together" else 0

    def _is_end(self, step: int) -> bool:
        return self.options.end and step == self.task.training.steps

    def _keep_up(self, node: Node, state: WorkerState, step: int) -> None:
        """Go on from the furthest step, where this one is too far behind."""
        furthest = min(state.furthest, node.stop_at)
        if step + 1 < (1 - self.options.lag) * furthest:
            state.step = furthest - 1  # which is counted now

    # Results

    def models(self, states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The mean of all copies, of each region's, and of their moving averages where they are kept."""
        workers = self.task.roles.workers
        copies = {name: states[name] for name in workers}
        models = {"full": torch.stack([copy.weights for copy in copies.values()]).mean(0)}
        if averages := [copy.ema.average for copy in copies.values() if copy.ema is not None]:
            models["ema"] = torch.stack(averages).mean(0)
        for region in self.task.roles.regions if len(self.task.roles.regions) > 1 else ():
            here = [copy.weights for name, copy in copies.items() if region_of(name) == region]
            models[f"full@{region}"] = torch.stack(here).mean(0)
        return models
