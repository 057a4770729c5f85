"""Gradients on a device: captured once, launched for several workers at once.

1. A worker's gradient is asked for at one instant of the run's clock and needed at a later one. What is asked for at
   one instant is computed together, before the clock goes on (`run`); it is the gradient at the weights of the moment
   it was asked for, which are copied then.
2. The gradients of k workers are one graph for each k: one pass over all their batches (`stacked`) where that gives
   each worker's own gradient, which is seen by comparing the two once; else a branch for each. Who is computed together
   with whom depends on the run's clock alone, so that a run's bits do not depend on where it was resumed.
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
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, linalg

from testbed.gpu.graphs import Captured, branches, can_capture, captured
from testbed.gpu.moves import refill
from testbed.gpu.notes import note
from testbed.workloads.data.base import Dataset
from testbed.workloads.devices import Precision, multiplied
from testbed.workloads.factored import factored, size_of
from testbed.workloads.flat import FlatModel
from testbed.workloads.stacked import NotStackable, Stacked, is_like, may_stack

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
    weights: Tensor
    version: int  # how many times they had been written to
    slot: int  # where they were copied to


class Form(NamedTuple):
    """What one graph computes.

    Parameters
    ----------
    gradients : how many
    rule : how each is computed
    alike : how many in a row are at the same weights
    """

    gradients: int
    rule: Rule
    alike: int


class Launches:
    """Computes the gradients of all learners of a process on its device.

    Parameters
    ----------
    model, dataset
        What is trained.
    precision
        Of products and convolutions of float32 (`precision`).

    Attributes
    ----------
    together
        Whether gradients may wait for others; whoever sets it says with `needed` until when, and calls `run` then.
    due_s
        On the run's clock, when the first of those that wait is needed.
    """

    def __init__(self, model: FlatModel, dataset: Dataset, precision: Precision = "tf32") -> None:
        self.together = False
        self.due_s = inf
        self._model, self._dataset, self._precision = model, dataset, precision
        self._asked: list[_Asked] = []
        self._rooms: list[Outcome] = []  # for those still to be asked for
        self._last_asked = 1
        self._weights: list[Tensor] = []  # a slot for each that differ, which graphs work on
        self._parts: list[Tensor] = []  # what batches are made of, [places, ...] each
        self._seen: set[Form] = set()
        self._graphs: dict[Form, Captured[list[Outcome]] | None] = {}
        self._stacks: dict[Form, bool] = {}  # whether one pass gives each worker's gradient
        self._draws: bool | None = None  # whether the network draws random numbers; None: not seen yet
        self._without_due = False

    def gradient(self, learner: Learner, weights: Tensor, step: int, as_factors: bool = False) -> Outcome:
        """Loss (scalar) and gradient on the device, which are there once `run` has been called.

        The gradient is a flat vector; `as_factors` it is that of `Learner.factors`, laid as `Factored.flat`.
        """
        drawn = learner.drawn(step)
        rule = Rule(as_factors, 0.0 if as_factors else learner.weight_decay, learner.clip_norm)
        if self._asked and (len(self._asked) == MOST_TOGETHER or not self._alike(rule, drawn)):
            self.run()
        slot = self._slot(weights)
        layout = self._model.layout
        size = size_of(layout, learner.batch_size) if as_factors else layout.size
        loss, gradient = self._room(size)
        self._asked.append(_Asked(learner, step, rule, drawn, loss, gradient, weights, weights._version, slot))
        self._without_due = True
        if self._draws is None:
            self._draws = self._seen_to_draw()
        if not self.together or self._draws:
            self.run()
        return loss, gradient

    def needed(self, at_s: float) -> None:
        """What was asked for since the last call is needed at this moment of the run's clock."""
        if self._without_due:
            self.due_s, self._without_due = min(self.due_s, at_s), False

    def run(self) -> None:
        """Compute what has been asked for."""
        self.due_s, self._without_due = inf, False
        if not self._asked:
            return
        self._last_asked = len(self._asked)
        asked, self._asked = sorted(self._asked, key=lambda each: each.slot), []
        groups = [list(group) for _, group in groupby(asked, key=lambda each: each.slot)]
        if len({len(group) for group in groups}) == 1:
            self._launch(asked, len(groups[0]))
            return
        for slot, group in enumerate(groups):
            if slot:
                self._weights[0].copy_(self._weights[slot])
            self._launch(group, len(group))

    def _launch(self, asked: Sequence[_Asked], alike: int) -> None:
        """Compute gradients of which so many in a row are at the same weights, which lie in the first slots."""
        form = Form(len(asked), asked[0].rule, alike)
        self._bring([each.drawn for each in asked])
        graph = self._graph(form, asked[0])
        if graph is None:
            with self._training(asked[0]), multiplied(self._precision, self._model.device):
                outcomes = self._all(form)
        else:
            with self._training(asked[0]) if self._draws else nullcontext():
                graph.launch()
            outcomes = graph.made
        made = [part for outcome in outcomes for part in outcome]
        torch._foreach_copy_([part for each in asked for part in (each.loss, each.gradient)], made)

    def forget(self) -> None:
        """Whoever asked is gone."""
        self._asked, self.due_s = [], inf

    def _room(self, size: int) -> Outcome:
        """Where a loss and a gradient of so many elements go.

        Those of one instant are rows of one piece of memory, so that whoever works on all of them need not bring them
        together; how many there will be is taken to be as many as there were.
        """
        if not self._rooms or not self._asked or self._rooms[-1][1].numel() != size:
            block = torch.empty((self._last_asked, size), device=self._model.device)
            losses = torch.empty(self._last_asked, device=self._model.device)
            self._rooms = list(zip(losses.unbind(), block.unbind(), strict=True))[::-1]
        return self._rooms.pop()

    def _slot(self, weights: Tensor) -> int:
        """Where these weights lie, copied as they are now; once for all who ask at the same ones."""
        for each in self._asked:
            if each.weights is weights and each.version == weights._version:
                return each.slot
        slot = 1 + max((each.slot for each in self._asked), default=-1)
        if slot == len(self._weights):
            self._weights.append(torch.empty(self._model.layout.size, device=self._model.device))
        refill(self._weights[slot], weights)
        return slot

    def _seen_to_draw(self) -> bool:
        """Whether the network draws random numbers, seen by computing the first gradient for nothing."""
        (asked,) = self._asked
        self._bring([asked.drawn])
        with self._training(asked), multiplied(self._precision, self._model.device):
            before = _random_state(self._model.device)
            self._one(0, asked.rule, 0)
            return not torch.equal(before, _random_state(self._model.device))

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

    def _graph(self, form: Form, asked: _Asked) -> Captured[list[Outcome]] | None:
        """The graph of a form, which is captured at the second time; None where there is none."""
        if form not in self._seen:
            self._seen.add(form)
            return None
        if form not in self._graphs:
            with self._training(asked), multiplied(self._precision, self._model.device):
                self._graphs[form] = self._capture(form)
        return self._graphs[form]

    def _capture(self, form: Form) -> Captured[list[Outcome]] | None:
        if not can_capture(self._model.device):
            return None
        try:
            return captured(lambda: self._computed(form), self._model.device)
        except RuntimeError as error:
            note(f"gradients are launched operation by operation: {error}")
            return None

    def _all(self, form: Form) -> list[Outcome]:
        """The gradients at the first places, operation by operation."""
        if form.gradients > 1 and form not in self._stacks:
            self._stacks[form] = self._can_stack(form)
        return self._computed(form)

    def _computed(self, form: Form) -> list[Outcome]:
        """The gradients at the first places, all in one pass or side by side."""
        if form.gradients > 1 and self._stacks.get(form):
            return self._stacked(form)
        parts = [partial(self._one, place, form.rule, place // form.alike) for place in range(form.gradients)]
        return branches(parts, self._model.device)

    def _can_stack(self, form: Form) -> bool:
        """Whether one pass over all batches gives what each worker's own gives; waits for the device."""
        if form.rule.as_factors or self._draws or not may_stack(self._model.module):
            return False
        try:
            together = self._stacked(form)
        except (NotStackable, RuntimeError, TypeError, ValueError) as error:
            note(f"each worker's gradient is computed by itself: {error}")
            return False
        last = form.gradients - 1
        alone = self._one(last, form.rule, last // form.alike)
        if all(map(is_like, together[last], alone)):
            return True
        note("each worker's gradient is computed by itself: examples of a batch have to do with one another")
        return False

    def _stacked(self, form: Form) -> list[Outcome]:
        """The gradients at the first places, in one pass."""
        count, rule, alike = form
        weights = torch.stack([self._weights[place // alike] for place in range(count)])
        parts = [(weights[:, layer.slice], layer.shape) for layer in self._model.layout]
        stacks = [part.view(count, *shape).detach().requires_grad_() for part, shape in parts]
        shown = [stack.detach()[0] for stack in stacks]
        inputs, targets = self._dataset.made([part[:count].flatten(0, 1) for part in self._parts])
        with Stacked(shown, stacks, len(inputs), alike):
            outputs = self._model(inputs, shown)
        losses = self._dataset.losses(outputs, targets, count)
        derivatives = torch.autograd.grad(losses.sum(), stacks, allow_unused=True, materialize_grads=True)
        gradients = torch.cat([part.reshape(count, -1) for part in derivatives], 1)
        if rule.decay:
            gradients.add_(weights, alpha=rule.decay)
        if rule.bound is not None:
            norms = linalg.vector_norm(gradients, dim=1, keepdim=True).double()
            gradients.mul_((rule.bound / norms).clamp(max=1.0).float())
        return list(zip(losses.detach().unbind(), gradients.unbind(), strict=True))

    def _one(self, place: int, rule: Rule, slot: int) -> Outcome:
        """The gradient of one batch at the weights in a slot; see `Learner.gradient` and `Learner.factors`."""
        weights = self._weights[slot]
        parameters = self._model.views(weights)
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
            gradient.add_(weights, alpha=rule.decay)
        if rule.bound is not None:
            gradient.mul_((rule.bound / linalg.vector_norm(gradient).double()).clamp(max=1.0))
        return value.detach(), gradient


def _same_form(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _random_state(device: torch.device) -> Tensor:
    """Of the numbers that a network draws on a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
