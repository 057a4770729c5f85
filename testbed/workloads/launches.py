"""Gradients on a device: captured once, launched for several workers at once.

1. A worker's gradient is asked for at one instant of the run's clock and needed at a later one. What is asked for at
   one instant is computed together, before the clock goes on (`run`); it is the gradient at the weights of the moment
   it was asked for, which are copied then.
2. The gradients of k workers are one graph for each k, in which each is a branch of its own: the same operations as
   alone, so that bits do not depend on who is computed together with whom.
3. What a batch is made of is drawn on the CPU and goes up in one transfer for all of them; the batch is made from the
   data set on the device, in the graph (`Dataset.drawn`, `Dataset.made`).
4. A network that draws random numbers (dropout) is launched for one worker at a time, with that worker's seed. Where
   nothing can be captured, the same is done operation by operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, linalg

from testbed.gpu.graphs import Captured, branches, can_capture, captured
from testbed.gpu.moves import refill
from testbed.gpu.notes import note
from testbed.workloads.data.base import Dataset
from testbed.workloads.factored import factored, size_of
from testbed.workloads.flat import FlatModel

if TYPE_CHECKING:
    from testbed.workloads.learner import Learner

MOST_TOGETHER = 16  # gradients; each takes the memory of its activations
Outcome = tuple[Tensor, Tensor]  # loss, gradient


class Rule(NamedTuple):
    """How a gradient is computed.

    Parameters
    ----------
    as_factors : with the linear layers' as factors (`testbed.workloads.factored`)
    decay : of weights; factors have none
    bound : of the norm
    """

    as_factors: bool
    decay: float
    bound: float | None


@dataclass(frozen=True)
class _Asked:
    learner: Learner
    step: int
    rule: Rule
    drawn: tuple[Tensor, ...]
    loss: Tensor
    gradient: Tensor


class Launches:
    """Computes the gradients of all learners of a process on its device.

    Parameters
    ----------
    model, dataset
        What is trained.

    Attributes
    ----------
    together
        Whether gradients may wait for others of the same instant; whoever sets it calls `run` before time passes.
    """

    def __init__(self, model: FlatModel, dataset: Dataset) -> None:
        self.together = False
        self._model, self._dataset = model, dataset
        self._asked: list[_Asked] = []
        self._weights: list[Tensor] = []  # of each place in a launch, which graphs work on
        self._parts: list[Tensor] = []  # what batches are made of, [places, ...] each
        self._seen: set[tuple[int, Rule]] = set()  # how many together, and how
        self._graphs: dict[tuple[int, Rule], Captured[list[Outcome]] | None] = {}
        self._draws: bool | None = None  # whether the network draws random numbers; None: not seen yet

    def gradient(self, learner: Learner, weights: Tensor, step: int, as_factors: bool = False) -> Outcome:
        """Loss (scalar) and gradient on the device, which are there once `run` has been called.

        The gradient is a flat vector; `as_factors` it is that of `Learner.factors`, laid as `Factored.flat`.
        """
        drawn = learner.drawn(step)
        rule = Rule(as_factors, 0.0 if as_factors else learner.weight_decay, learner.clip_norm)
        if self._asked and (len(self._asked) == MOST_TOGETHER or not self._alike(rule, drawn)):
            self.run()
        place = len(self._asked)
        while place >= len(self._weights):
            self._weights.append(torch.empty(self._model.layout.size, device=self._model.device))
        refill(self._weights[place], weights)
        layout = self._model.layout
        size = size_of(layout, learner.batch_size) if as_factors else layout.size
        loss, gradient = (torch.empty(shape, device=self._model.device) for shape in ((), size))
        self._asked.append(_Asked(learner, step, rule, drawn, loss, gradient))
        if not self.together or self._draws is not False:
            self.run()
        return loss, gradient

    def run(self) -> None:
        """Compute what has been asked for."""
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        self._bring([each.drawn for each in asked])
        graph = self._graph(len(asked), asked[0])
        if graph is None:
            with self._training(asked[0]):
                outcomes = self._all(len(asked), asked[0].rule)
        else:
            with self._training(asked[0]) if self._draws else nullcontext():
                graph.launch()
            outcomes = graph.made
        made = [part for outcome in outcomes for part in outcome]
        torch._foreach_copy_([part for each in asked for part in (each.loss, each.gradient)], made)

    def forget(self) -> None:
        """Whoever asked is gone."""
        self._asked = []

    def _alike(self, rule: Rule, drawn: Sequence[Tensor]) -> bool:
        """Whether a gradient can be computed together with those that have been asked for."""
        first = self._asked[0]
        return rule == first.rule and all(map(_same_form, drawn, first.drawn))

    def _bring(self, drawn: Sequence[tuple[Tensor, ...]]) -> None:
        """Bring what batches are made of to where they are made."""
        stacked = [torch.stack(parts) for parts in zip(*drawn, strict=True)]
        if len(stacked) != len(self._parts) or not all(
            _same_form(part[0], room[0]) for part, room in zip(stacked, self._parts, strict=True)
        ):
            self._graphs.clear()
            shapes = [(MOST_TOGETHER, *part.shape[1:]) for part in stacked]
            self._parts = [
                torch.empty(shape, dtype=part.dtype, device=self._model.device)
                for shape, part in zip(shapes, stacked, strict=True)
            ]
        for room, part in zip(self._parts, stacked, strict=True):
            refill(room[: len(part)], part)

    def _training(self, asked: _Asked) -> AbstractContextManager[None]:
        """Within it the network drops what it is to drop for this worker and step."""
        return self._model.training(asked.learner.dropout(asked.step))

    def _graph(self, count: int, asked: _Asked) -> Captured[list[Outcome]] | None:
        """The graph of so many gradients, which is captured at the second time; None where there is none."""
        key = count, asked.rule
        if key not in self._seen:
            self._seen.add(key)
            return None
        if key not in self._graphs:
            with self._training(asked):
                self._graphs[key] = self._capture(*key)
        return self._graphs[key]

    def _capture(self, count: int, rule: Rule) -> Captured[list[Outcome]] | None:
        if not can_capture(self._model.device):
            return None
        parts = [partial(self._one, place, rule) for place in range(count)]
        try:
            return captured(lambda: branches(parts, self._model.device), self._model.device)
        except RuntimeError as error:
            note(f"gradients are launched operation by operation: {error}")
            return None

    def _all(self, count: int, rule: Rule) -> list[Outcome]:
        """The gradients at the first places, operation by operation."""
        before = _random_state(self._model.device)
        outcomes = [self._one(place, rule) for place in range(count)]
        self._draws = bool(self._draws) or not torch.equal(before, _random_state(self._model.device))
        return outcomes

    def _one(self, place: int, rule: Rule) -> Outcome:
        """The gradient at one place; see `Learner.gradient` and `Learner.factors`."""
        parameters = self._model.views(self._weights[place])
        inputs, targets = self._dataset.made([part[place] for part in self._parts])

        def loss() -> Tensor:
            return self._dataset.loss(self._model(inputs, parameters), targets)

        if rule.as_factors:
            value, found = factored(self._model, parameters, len(inputs), loss, rule.bound)
            return value, found.flat
        value = loss()
        derivatives = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.reshape(-1) for part in derivatives])
        if rule.decay:
            gradient.add_(self._weights[place], alpha=rule.decay)
        if rule.bound is not None:
            gradient.mul_((rule.bound / linalg.vector_norm(gradient).double()).clamp(max=1.0))
        return value.detach(), gradient


def _same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _random_state(device: torch.device) -> Tensor:
    """Of the numbers that a network draws on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
