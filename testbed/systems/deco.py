"""DeCo-SGD: how late and how sparse gradients are, chosen together from the link as it is (Lu et al., 2025).

arXiv 2507.17346. Worker i sends the largest elements of its gradient, with error feedback, and trains on; the mean of
a step is applied tau steps later (delayed aggregation, the paper's DD-EF-SGD):

    c_t <- TopK_delta(e + gradient);  e <- e + gradient - c_t;  all, after step t: w <- w - rate mean(c_{t - tau})

Staleness multiplies what compression costs: with phi = (1 - delta) / (delta (1 - delta / 2)^tau), the noise of both
together, the pair (tau, delta) is the one of smallest phi with which nobody waits. Where a step takes T seconds, an
empty message and its answer b, and a whole gradient q more, of which the busiest part of the way has a share s:

    delta s q <= T: the way carries what is sent;    b + delta q <= tau T: the answer is there when it is needed

Decisions: of the paper its abstract and summaries were at hand. These give DD-EF-SGD and noise that grows exponentially
with tau; one prints (1 - delta)^tau, by which all of a gradient, late, would be infinitely bad. (1 - delta / 2) is how
far error feedback with TopK contracts; the two conditions are those of messages in a row on a line. b is measured once,
before the first step; T, q and s by each worker as it goes, without being told rates. The global server takes the
largest of each and chooses after step 1 and every `every` steps (`testbed.systems.protocols.delayed`). Servers add up
sparse vectors, exactly. TopK is of the whole vector. The update is the experiment's optimizer with the mean; what is
on its way after the last step is applied before that counts as done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import torch

from testbed.codecs import costs
from testbed.codecs.base import Buffers, Key
from testbed.codecs.sparse import Sparse
from testbed.codecs.topk import TopK
from testbed.layout import Layout
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Options, Task
from testbed.systems.protocols.delayed import DelayedState, DelayedSystem, Numbers
from testbed.systems.protocols.replica import Replica, ServerState
from testbed.types import Count, Share

LEAST = 0.001  # of a gradient is sent, however slow the network is
NEW = 0.2  # share of a new measurement in what is held to be so


class DeCoOptions(Options, frozen=True, forbid_unknown_fields=True):
    """DeCo-SGD's settings.

    Parameters
    ----------
    kept : delta of the first steps, when tau is 0
    every : steps from one choice to the next
    most : the largest tau
    """

    kept: Share = 0.01
    every: Count = 20
    most: Count = 30


def choose(step_s: float, empty_s: float, whole_s: float, share: float, most: int) -> tuple[int, float]:
    """(tau, delta) for T, b, q and s; where nothing does, `most` for tau and what the way carries."""
    carried = min(1.0, step_s / max(share * whole_s, 1e-12))
    taus = range(max(1, ceil(empty_s / step_s)), most + 1)
    pairs = [(tau, min(carried, (tau * step_s - empty_s) / max(whole_s, 1e-12))) for tau in taus]
    able = [(tau, delta) for tau, delta in pairs if delta >= LEAST]
    return min(able, key=lambda pair: phi(*pair), default=(most, max(LEAST, carried)))


def phi(tau: int, delta: float) -> float:
    """The noise of compression and staleness together."""
    return (1 - delta) / (delta * (1 - delta / 2) ** tau)


@dataclass
class WorkerState(DelayedState):
    """A worker's parameters, `residual` e [layout.size], the delta of its messages, and what it has measured."""

    residual: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    kept: float = 1.0
    tau: int = 0
    whole_nbytes: float = 0.0  # of a message with a delta of 1, by the last one
    step_s: float = 0.0  # T
    whole_s: float = 0.0  # q
    share: float = 0.0  # s


class DeCo(DelayedSystem):
    name = "deco"
    alike = follows_network = True
    options_type = DeCoOptions
    options: DeCoOptions

    def __init__(self, task: Task, options: DeCoOptions) -> None:
        super().__init__(task, options)
        whole = Layout.of([("model", (task.layout.size,))])
        kinds = {"gradient": TopK(whole, options.kept), "sum": Sparse(whole), "mean": Sparse(whole)}
        self.codecs = {kind: self.coder(codec, kind) for kind, codec in kinds.items()}

    def initial_state(self, name: str) -> WorkerState | ServerState:
        kept = self.options.kept
        if name not in self.task.roles.workers:
            return ServerState(policy=[0.0, kept])  # the global server's, as it has chosen last
        replica = Replica.of(self.task, self.task.training.optimizer, name == self.task.roles.workers[0])
        residual = torch.zeros_like(replica.weights)
        return WorkerState(**vars(replica), means=replica.weights.new_empty(0), residual=residual, kept=kept)

    async def code(self, node: Node, state: WorkerState, gradient: torch.Tensor, key: Key) -> Buffers:
        return await node.compute(self._telling, self._tell, state, gradient, key)

    def _telling(self, made: Buffers) -> Work:
        """The residual takes in the gradient, is coded, and what is sent leaves it."""
        codec, sent = self.codecs["gradient"], Message("gradient", 0, made)
        return self.task.encoding(codec, self.task.decoding(codec, sent) + self.task.passes(6))(made)

    def _tell(self, state: WorkerState, gradient: torch.Tensor, key: Key) -> Buffers:
        state.residual.add_(gradient)
        buffers: Buffers = self.codecs["gradient"].encode(state.residual, key, state.kept)
        state.residual.sub_(self.codecs["gradient"].decode(buffers))
        state.whole_nbytes = costs.size_of(buffers) / state.kept
        return buffers

    def report(self, state: WorkerState) -> Numbers:
        return state.step_s, state.empty_s, state.whole_s, state.share

    def decide(self, state: ServerState, report: Numbers, step: int) -> Numbers:
        if step == 1 or (step and (step + 1) % self.options.every == 0):
            step_s, empty_s, whole_s, share = report
            state.policy = [float(each) for each in choose(step_s, empty_s, whole_s, share, self.options.most)]
        return tuple(state.policy)

    def told(self, state: WorkerState, decision: Sequence[float]) -> None:
        state.tau, state.kept = int(decision[0]), decision[1]

    def delay(self, state: WorkerState) -> int:
        return state.tau

    def measured(self, state: WorkerState, step_s: float) -> None:
        state.step_s = _mixed(state.step_s, step_s)

    def exchanged(self, state: WorkerState, seconds: float, sent_nbytes: int, nbytes: int) -> None:
        byte_s = max(0.0, seconds - state.empty_s) / sent_nbytes
        state.whole_s = _mixed(state.whole_s, byte_s * state.whole_nbytes)
        state.share = _mixed(state.share, max(sent_nbytes, nbytes) / (sent_nbytes + nbytes))


def _mixed(before: float, now: float) -> float:
    return (1 - NEW) * before + NEW * now if before else now
