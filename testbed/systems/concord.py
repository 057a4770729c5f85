"""Concord: workers that hardly ever wait for the WAN, and for their own LAN only where that is cheap; our own system.

Every worker trains a copy of its own. Copies are averaged over links, each for itself (`protocols.accounts`): workers
with their LPS, LPSs with the global server. What crosses a link is what is new since the last answer, in two or three
bits an element; what a code leaves out stays in the copy. No bandwidth needs to be known: rounds take what the network
takes, whatever it is and becomes, and steps go on meanwhile. With a, b, s, C and D as in `accounts`:

    worker   each step: one step of its optimizer on x; take in answers that have come: x <- x + D(p) - s
             no round under way, and rested: send C(x - a); in a "together" round wait for the answer
    LPS      all its workers are in: z <- z + the mean of their s; answers C(z - b)
             no round above under way, and rested: z is its x on the WAN: send C(z - a)
    GS       as an LPS, of LPSs
    pair     of two LPSs each plays the GS itself: the q of both tell it all, and no p has to be sent (`pair`)
    stale    an LPS lets its workers wait once they have made `stale_batches` of steps, n steps of n regions each, that
             no other region has heard of; what they have goes behind a round that is under way
    mode     r = time of a LAN round / time of a step; k = ceil(r / waiting), so that waiting for every k-th step's
             round takes at most the part `waiting` of the compute time. k <= drift: together, every k steps; else
             apart: workers never wait. With `drift` 1 they wait if r <= waiting
    rest     2 / (1 - momentum) steps between an answer and the next round, where answers come late (`rhythm`); of an
             LPS's only worker as long as the LPS's own link rests
    rate     times 1 / sqrt(members) for each link that is late, of which each goes by its own part of the batch
    outer    what is told over such a link counts `outer_rate` times: C(g (x - a)), and s is a g-th of what comes of it;
             or once, and a server's z has a Nesterov momentum, `outer_momentum`
    code     C leaves out 0.05 of a mean square, or 0.25 where bits are half of the time between rounds (`link_rules`)
    end      x - a up the tree, then Z less what all began at down, in some four bits: the same at every worker

Decisions:

1. A server answers when all its members are in, so that the mean of the copies is what it was: were they answered one
   by one, each would give up most of what it made until the others are heard of. Nobody's steps wait for that.
2. The LPS decides the mode from what its workers report, with the answers; it begins apart. It changes back to apart
   only at a k of twice `drift`, since a round in which all wait takes longer.
3. A server waits for who is late at most three times as long as a round takes by what members report; who is late is
   waited for no more until it is heard of (`Absent`), and has credit meanwhile. This needs no `tolerance`.
4. Answers that come late correct what the gradients have corrected already: hence the rest (`rhythm`).
5. Who trains on with others only now and then makes steps of its own batch: hence the rate, of which the experiment
   states the one for the whole batch. `scaled` turns this off. What it makes is little then, and the mean of n has a
   root of n less noise: so that is counted more than once (an outer rate; Reddi et al. 2021, DiLoCo), at most that
   root. In a steep direction g times leave up to 1 - (1 + 1/e) g of a distance (docs/own-system-rules.md): above 1.46
   it swings, so g is 1.4.
6. Answers tell the furthest step. A worker that is behind by more than the part `lag` of it (a straggler, one that was
   dead) goes on from there: what it had no time for is not made.
7. A role that was dead goes on with what it knew, with the rounds that were under way set right. One that begins afresh
   is told z; what it alone had known is lost.
8. Weights are averaged. The optimizer's momentum stays with its worker, unless `velocity` is "averaged".
9. `coding = "feedback"` takes the gradient at what a worker's rounds have told of it, x less what codes have left out:
   error feedback. `merge = "overwrite"` makes x what was told, and loses what was made meanwhile: both to compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean
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
from testbed.systems.protocols.accounts import Accounts, Codes, Member
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.desk import Report, ServerState, furthest_in
from testbed.systems.protocols.inbox import Inbox
from testbed.systems.protocols.link_rules import COARSE, FINE
from testbed.systems.protocols.pair import Pairing
from testbed.systems.protocols.paired_servers import PairedServers
from testbed.systems.protocols.regional import means_of
from testbed.systems.protocols.replica import Replica
from testbed.systems.protocols.rhythm import Rest, Rhythm
from testbed.systems.protocols.servers import EMPTY, HOLD
from testbed.types import Count, Fraction, Positive
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
    pair : whether two regions tell each other what is new directly, and not the global server
    lan_rest, wan_rest : steps between an answer and the next round of its link: by the rule, or so many
    error : how coarse the code is, by the rule, or so much: mean square of what it leaves out, as a part of what there
        is; 0: float32
    outer_rate : how often what a member tells is counted, where answers come late
    outer_momentum : in its place, that of a server whose members' answers come late; 0: none
    stale_batches : of steps that an LPS's workers have made and no other region has heard of, with which they wait; a
        batch is as many steps as there are regions; 0: never
    scaled : whether the rate goes by the root of how many workers a step is averaged with
    coding, merge, velocity : see the module's rules 8 and 9
    inner : what makes a worker's steps: the experiment's optimizer, or Muon, beside which that trains what is no matrix
    lag : part of the furthest step by which a worker may be behind
    end : whether the run ends with the average at every worker
    end_error : `error` of the codes that it comes by
    """

    lan: Literal["auto", "together", "apart"] = "auto"
    wan: Literal["apart", "together"] = "apart"
    waiting: Positive = 0.02
    drift: Count = 1
    pair: bool = True
    lan_rest: Rest = "auto"
    wan_rest: Rest = "auto"
    error: Literal["auto"] | Annotated[float, msgspec.Meta(ge=0, le=0.25)] = "auto"
    outer_rate: Annotated[float, msgspec.Meta(gt=0, lt=2)] = 1.4
    outer_momentum: Fraction = 0.0
    stale_batches: Annotated[int, msgspec.Meta(ge=0)] = 400
    scaled: bool = True
    coding: Literal["difference", "feedback"] = "difference"
    merge: Literal["keep", "overwrite"] = "keep"
    velocity: Literal["local", "averaged"] = "local"
    inner: Literal["experiment", "muon"] = "experiment"
    lag: Fraction = 0.25
    end: bool = True
    end_error: Annotated[float, msgspec.Meta(ge=0, le=0.25)] = 0.001


@dataclass
class WorkerState(Replica):
    """A copy, its link, and what the rule goes by. Times are seconds on the run's clock."""

    link: Member
    left: torch.Tensor  # by codes, where that is fed back; else empty
    rhythm: Rhythm
    period: int = 0  # steps from one round to the next, which are together; 0: apart
    step_s: float = 0.0  # what a step took
    scale: float = 1.0  # of the rate
    furthest: int = 0  # step that it has heard of
    held: bool = False  # whether it is to wait for the next answer


class Concord(PairedServers):
    name = "concord"
    follows_network = True
    options_type = ConcordOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"outer_momentum": Knob(choices=(0.0, 0.6))}
    options: ConcordOptions

    def __init__(self, task: Task, options: ConcordOptions) -> None:
        super().__init__(task, options)
        layout, optimizer = task.layout, self.task.training.optimizer
        self.inner = Muon(layout, optimizer) if options.inner == "muon" else optimizer
        if options.velocity == "averaged":
            if not (isinstance(self.inner, SGD) and self.inner.momentum):
                raise InputError('concord: velocity = "averaged" needs an SGD with a momentum')
            layout = Layout.of([(f"{part} {it.name}", it.shape) for part in ("weights", "velocity") for it in layout])
        fine, coarse = (FINE, COARSE) if options.error == "auto" else (options.error, options.error)
        fine_code, coarse_code, last = (_code(layout, error) for error in (fine, coarse, options.end_error))
        self.wan_together, self.wan_rest = options.wan == "together", options.wan_rest
        self.carried, self.scaled = self.inner.carried, options.scaled
        self.outer_rate, self.outer_momentum = options.outer_rate, options.outer_momentum
        self.stale_batches = options.stale_batches
        self._feeds_back = options.coding == "feedback"
        self._gradient_work = self.task.gradient_work
        if self._feeds_back:
            self._gradient_work += self.task.passes(3)
        codes = Codes(
            up=(self.coder(fine_code, "difference"), self.coder(coarse_code, "difference")),
            down=(self.coder(fine_code, "answer"), self.coder(coarse_code, "answer")),
            last=self.coder(last, "last"),
            mean=self.coder(last, "mean"),
            floats=self.coder(Float32(layout)),
        )
        self.accounts = Accounts(task, self._start(), codes)
        self.pairing = Pairing(self.accounts)

    @classmethod
    def is_mesh(cls, options: ConcordOptions, regions: int) -> bool:
        return options.pair and regions <= 2

    def _start(self) -> torch.Tensor:
        """What is averaged of a worker at first."""
        initial = self.task.initial
        return torch.cat([initial, torch.zeros_like(initial)]) if self.options.velocity == "averaged" else initial

    def initial_state(self, name: str) -> WorkerState | ServerState:
        initial, accounts = self.task.initial, self.accounts
        if name not in self.task.roles.workers:
            return self.server_state(name)
        together, server = self.options.lan == "together", self.task.roles.server_of(name) or ""
        rhythm = Rhythm(late=not together, until=0 if self.options.lan_rest == "auto" else self.options.lan_rest)
        return WorkerState(
            **vars(Replica.of(self.task, self.inner, shown=True)),
            link=accounts.member(),
            left=torch.zeros_like(initial) if self._feeds_back else initial.new_empty(0),
            rhythm=rhythm,
            period=int(together),
            scale=self.scale(name, rhythm) * self.scale(server, self.server_rhythm(server)),
        )

    # Worker

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        inbox = Inbox(node)
        await self.begin_segment(node, state)
        async for step in node.steps(state):
            began_s = node.now()
            loss, gradient = await node.compute(self._gradient_work, self._gradient, learner, state, step)
            await node.compute(self.update_work, self._update, state, gradient, step)
            state.step_s = node.now() - began_s
            while inbox.items:
                await self._take_answer(node, state, inbox)
            due = state.held or step >= max(state.rhythm.until, state.rhythm.began + state.period)
            if due and not state.link.waiting:
                await self._send(node, state)
                if state.period:
                    await self._until_answered(node, state, inbox)
            if state.held:
                await self._until_answered(node, state, inbox)
            self._keep_up(node, state, step)
            node.step_done(step, loss)
        if self._is_end(state.step):
            await self._tell_last(node, state, inbox)
        else:
            await self._until_answered(node, state, inbox)

    def _gradient(self, learner: Any, state: WorkerState, step: int) -> tuple[float, torch.Tensor]:
        at = state.weights - state.left if self._feeds_back else state.weights
        found: tuple[float, torch.Tensor] = learner.gradient(at, step)
        return found

    def _update(self, state: WorkerState, gradient: torch.Tensor, step: int) -> None:
        self.inner.update(state.optimizer, state.weights, gradient, self.task.rate_at(step) * state.scale)
        state.average()

    @property
    def update_work(self) -> Work:
        """What a worker's own step is charged."""
        if isinstance(self.inner, Muon):
            return Work(nbytes=self.inner.nbytes, gemm_flops=self.inner.flops)
        return self.task.update_work

    def _x(self, state: WorkerState) -> torch.Tensor:
        """What is averaged of a worker."""
        if self.options.velocity == "local":
            return state.weights
        assert isinstance(state.optimizer, SGDState)
        return torch.cat([state.weights, state.optimizer.velocity])

    async def _send(self, node: Node, state: WorkerState) -> None:
        """Begin a round."""
        state.rhythm.begin(state.step, node.now())
        key = Key(self.task.seed, self.worker_index(node), state.step)
        buffers = await node.compute(self.accounts.sending, self._difference, node.name, state, key)
        report = self.report(state.link, state.rhythm, state.step_s)
        numbers = (float(state.step), float(state.link.number), *report)
        await node.send(node.server, Message("difference", state.step, buffers, numbers))

    def _difference(self, name: str, state: WorkerState, key: Key) -> Sequence:
        x, size = self._x(state), state.weights.numel()
        buffers = self.accounts.send(state.link, x, key, self.times(name, state.rhythm))
        if self._feeds_back:
            state.left = (x - state.link.told - state.link.sent)[:size]
        return buffers

    async def _tell_last(self, node: Node, state: WorkerState, inbox: Inbox) -> None:
        """Send what is left, and take in the mean; again where the server was dead meanwhile."""
        kind = CATCH_UP
        while kind == CATCH_UP:
            while state.link.asking:
                await self._next_answer(node, state, inbox)
            settled = state.rhythm.settled(state.link.closed, state.step)
            await self.send_last(node, state.link, self._x(state), state.step, settled)
            kind = await self._until_answered(node, state, inbox)

    async def _until_answered(self, node: Node, state: WorkerState, inbox: Inbox) -> str:
        """Take in what comes until no round is under way; the kind of the last message."""
        kind = ""
        while state.link.waiting or state.rhythm.asking:
            kind = await self._next_answer(node, state, inbox)
        return kind

    async def _next_answer(self, node: Node, state: WorkerState, inbox: Inbox) -> str:
        """Wait for what its server says next, and take it in; Orphaned where that is gone."""
        if not (kind := await self._take_answer(node, state, inbox)):
            raise Orphaned
        return kind

    async def _take_answer(self, node: Node, state: WorkerState, inbox: Inbox) -> str:
        """Take in what the server has sent, or will."""
        arrived = await inbox.next(node, "the answer of its server")
        if arrived is None:
            return ""
        _, message, came_s = arrived
        if message.kind == BACK:
            await self.ask_again(node, state)
            return BACK
        if message.kind == EMPTY:
            state.rhythm.told(came_s)
            return EMPTY
        if message.kind == HOLD:
            state.held = True
            return HOLD
        state.held = False
        if message.kind == "answer":
            state.rhythm.answer(state.step, came_s, self.carried, self.options.lan_rest)
            state.period = int(message.numbers[1])
            state.scale = message.numbers[2] * self.scale(node.name, state.rhythm)
            state.link.coarse = bool(message.numbers[3])
            if len(message.numbers) > 4:  # of an LPS that has nobody else: until when its own link rests
                state.rhythm.until = max(state.rhythm.until, int(message.numbers[4]))
        await node.compute(self.taking(message), self._take, state, message)
        state.furthest = max(state.furthest, furthest_in(message))
        return message.kind

    def _take(self, state: WorkerState, message: Message) -> None:
        size = state.weights.numel()
        if message.kind == "mean":
            x = self.accounts.take_mean(state.link, message)
            state.weights.copy_(x[:size])
            state.left.zero_()
            if self.options.velocity == "averaged":
                state.optimizer.velocity.copy_(x[size:])
            return
        change = self.change(state.link, message)
        if self.options.merge == "overwrite":
            state.weights.copy_(state.link.told[:size])
        else:
            state.weights.add_(change[:size])
        if self.options.velocity == "averaged":
            state.optimizer.velocity.add_(change[size:])

    def period(self, state: ServerState) -> int:
        """The rule: 0 for apart, else the steps from one together round to the next."""
        if self.options.lan == "apart":
            return 0
        known = [report for report in map(Report._make, state.reports) if report.step_s and report.round_s]
        if not known:
            return int(self.options.lan == "together")
        round_s = min(report.round_s for report in known)  # of the last to send, which waits for nobody's part
        ratio = round_s / mean(report.step_s for report in known)
        steps = max(1, ceil(ratio / self.options.waiting))
        most = self.options.drift * (2 if state.period else 1)
        return steps if steps <= most or self.options.lan == "together" else 0

    def _is_end(self, step: int) -> bool:
        return self.options.end and step == self.task.training.steps

    def _keep_up(self, node: Node, state: WorkerState, step: int) -> None:
        """Go on from the furthest step, where this one is too far behind."""
        furthest = min(state.furthest, node.stop_at)
        if step + 1 < (1 - self.options.lag) * furthest:
            node.skip_to(furthest - 1, state)  # which is counted now

    # Results

    def models(self, states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """See `means_of`."""
        return means_of({name: states[name] for name in self.task.roles.workers})


def _code(layout: Layout, error: float) -> Adaptive | Float32:
    return Adaptive(layout, error) if error else Float32(layout)
