"""PowerSGD: each matrix of the gradient as a product of two thin ones (Vogels, Karimireddy and Jaggi, NeurIPS 2019).

arXiv 1905.13727. M [n, m] is a worker's gradient of a layer plus what earlier steps have left out of it (Algorithm 2).
One step of power iteration, its two products averaged over all workers, gives a mean of rank r (Algorithm 1):

    P <- mean(M Q);  P <- orthogonalize(P);  Q <- mean(M^T P);  gradient: P Q^T;  left out: M - P Q^T

One step's Q is what the next begins with (warm start); the first is drawn from the run's seed, standard normal.

- `powersgd`: the two means over the servers, one round trip after the other.
- `powersgd-ring`: over a ring of all workers, the paper's own all-reduce.

Decisions: a layer [out, ...] is the matrix [out, rest], and vectors go along with P as they are (the authors' code,
epfml/powersgd, `paper-code`); so do matrices of which P and Q together would be no smaller. Columns are made
orthonormal by QR, as in their later code: unlike Gram-Schmidt it holds where P has less than full rank. The update is
the experiment's optimizer with the mean, in the place of Algorithm 2's x - rate * (mean + momentum).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from testbed.layout import Layer, Layout
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Knob, Options, Task
from testbed.systems.protocols.means import Means, RingMeans
from testbed.systems.protocols.replica import Replica, ServerState
from testbed.systems.protocols.rings import RingOptions
from testbed.types import Count


class PowerSGDOptions(Options, frozen=True, forbid_unknown_fields=True):
    """`rank`: r, columns of P and Q; the paper's experiments have 1, 2 and 4."""

    rank: Count = 2


class PowerSGDRingOptions(RingOptions, frozen=True, forbid_unknown_fields=True):
    """`rank` as above; the others are the ring's."""

    rank: Count = 2


@dataclass
class WorkerState(Replica):
    """A worker's parameters, what it has left out so far [layout.size], and Q of all matrices one after the other."""

    error: torch.Tensor
    query: torch.Tensor


class PowerSGD(Means):
    name = "powersgd"
    options_type: ClassVar[type[Options]] = PowerSGDOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"rank": Knob(choices=(1, 2, 4))}

    def __init__(self, task: Task, options: Any) -> None:
        self.ranks = {layer: _rank(layer, options.rank) for layer in task.layout}
        shapes = [(layer, *_shape(layer), rank) for layer, rank in self.ranks.items()]
        p = Layout.of((layer.name, (n, rank) if rank else layer.shape) for layer, n, _, rank in shapes)
        q = Layout.of((layer.name, (m, rank) if rank else (0,)) for layer, _, m, rank in shapes)
        super().__init__(task, options, {"p": p, "q": q})
        read = sum(layer.size for layer, rank in self.ranks.items() if rank)
        flops = sum(2.0 * rank * layer.size for layer, rank in self.ranks.items())
        self.product = Work(gemm_flops=flops, coding_nbytes=4.0 * read)
        self.feedback = Work(coding_nbytes=12.0 * task.layout.size)  # two vectors are read, one is written
        self.orthogonalizing = Work(gemm_flops=sum(4.0 * n * rank**2 for _, n, _, rank in shapes))

    def initial_state(self, name: str) -> WorkerState | ServerState:
        if name not in self.task.roles.workers:
            return ServerState()
        state = Replica.of(self.task, self.task.training.optimizer, name == self.task.roles.workers[0])
        size = 0 if self.task.timing_only else self.layouts["q"].size
        query = torch.randn(size, generator=torch.Generator().manual_seed(self.task.seed))
        return WorkerState(**vars(state), error=torch.zeros_like(state.weights), query=query.to(state.weights.device))

    async def worker(self, node: Node, state: WorkerState) -> None:
        learner = self.task.learner(self.worker_index(node))
        taking = self.product + self.feedback + self.task.update_work
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            p = await node.compute(self.feedback + self.product, self._first, state, gradient)
            p = await self.mean(node, "p", p, step)
            q = await node.compute(self.orthogonalizing + self.product, self._second, state, p)
            state.query = await self.mean(node, "q", q, step)
            await node.compute(taking, self._take, state, p, step)
            node.step_done(step, loss)

    def models(self, states: Mapping[str, WorkerState]) -> dict[str, torch.Tensor]:
        return states[self.task.roles.workers[0]].models()

    def _first(self, state: WorkerState, gradient: torch.Tensor) -> torch.Tensor:
        """Let `error` be the gradient and what was left out, M; this worker's P of it, and the vectors of it."""
        state.error.add_(gradient)
        p = gradient.new_empty(self._size("p"))
        for layer, whole, left, right in self._parts(state.error, p, state.query):
            left.copy_(whole @ right if self.ranks[layer] else whole)
        return p

    def _second(self, state: WorkerState, p: torch.Tensor) -> torch.Tensor:
        """Make the mean P orthonormal, in place; this worker's Q."""
        q = p.new_empty(self._size("q"))
        for layer, whole, left, right in self._parts(state.error, p, q):
            if self.ranks[layer]:
                left.copy_(torch.linalg.qr(left).Q)
                torch.matmul(whole.T, left, out=right)
        return q

    def _take(self, state: WorkerState, p: torch.Tensor, step: int) -> None:
        """Make the update with the mean P Q^T; `error` becomes what that leaves out of M."""
        mean = torch.empty_like(state.error)
        for layer, whole, left, right in self._parts(mean, p, state.query):
            whole.copy_(left @ right.T if self.ranks[layer] else left)
            state.error[layer.slice] -= mean[layer.slice] if self.ranks[layer] else state.error[layer.slice]
        state.update(self.task, mean, step, self.task.training.optimizer)

    def _parts(self, *vectors: torch.Tensor) -> Iterator[tuple[Any, ...]]:
        """Each layer, and its part of a whole vector, of P's and of Q's as matrices; none in a timing-only run."""
        for layer, p, q in zip(self.ranks, self.layouts["p"], self.layouts["q"], strict=True):
            if not self.task.timing_only:
                shapes = ((layer, _shape(layer)), (p, _shape(p)), (q, _shape(q)))
                yield layer, *(v[place.slice].view(shape) for v, (place, shape) in zip(vectors, shapes, strict=True))

    def _size(self, kind: str) -> int:
        return 0 if self.task.timing_only else self.layouts[kind].size


class PowerSGDRing(PowerSGD, RingMeans):
    name = "powersgd-ring"
    options_type = PowerSGDRingOptions


def _shape(layer: Layer) -> tuple[int, int]:
    """A layer as a matrix; a vector is a column."""
    rows = layer.shape[0] if layer.shape else 1
    return rows, layer.size // rows if rows else 0


def _rank(layer: Layer, most: int) -> int:
    """Columns of a layer's P and Q; 0 for one that goes as it is."""
    n, m = _shape(layer)
    rank = min(most, n, m)
    return rank if not layer.bias and rank * (n + m) < layer.size else 0
