"""What a GPU needs for one of each thing that a step asks of it, and what a worker's own gradient reaches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from testbed.experiment.assembly import Assembly
from testbed.experiment.load import load
from testbed.fabrics.registry import FABRICS, virtual
from testbed.gpu.graphs import can_capture, captured
from testbed.gpu.moves import finish, pinned
from testbed.harness.gpu.steps import CASES
from testbed.workloads.learner import Learner

SMALL, LARGE = 1000, 60_000_000  # elements: of an operation that is all start, of one beyond the caches
NODES = (1, 10, 100, 500)  # of a graph
GRADIENTS = (("cifarnet", 64), ("cifarnet", 512), ("resnet-50", 32), ("gpt", 16))  # and examples of a worker
PASSES = 3  # of a forward pass's operations: the backward pass has twice as many


@dataclass(frozen=True)
class Figure:
    """One measured number: `value` of `unit`, of what is called `name`."""

    name: str
    value: float
    unit: str


def device(where: torch.device, large: int = LARGE, calls: int = 1000) -> Iterator[Figure]:
    """Times to start work and to wait for it, and how much memory moves."""
    x, many = torch.zeros(SMALL, device=where), max(calls // 20, 2)
    yield Figure("launch", 1e6 * _started(lambda: x.add_(1), calls), "us")
    yield Figure("clone", 1e6 * _started(x.clone, calls), "us")
    yield Figure("wait", 1e6 * _done(lambda: x.sum().cpu(), many), "us")
    big, room = torch.zeros(large, device=where), torch.empty(large, device=where)
    yield Figure("memory", 2 * big.nbytes / _done(lambda: room.copy_(big), many) / 1e9, "GB/s")
    host = pinned(torch.zeros(large // 4))
    part = big[: len(host)]
    yield Figure("up", host.nbytes / _done(lambda: part.copy_(host, non_blocking=True), many) / 1e9, "GB/s")
    yield Figure("down", host.nbytes / _done(lambda: host.copy_(part, non_blocking=True), many, part) / 1e9, "GB/s")
    if can_capture(where):
        for nodes in NODES:
            graph = captured(partial(_add, x, nodes), where)
            yield Figure(f"graph of {nodes}, start", 1e6 * _started(graph.launch, many, x), "us")
            yield Figure(f"graph of {nodes}, an operation", 1e6 * _done(graph.launch, many, x) / nodes, "us")


def gradients(name: str, models: tuple[tuple[str, int], ...] = GRADIENTS, calls: int = 30) -> Iterator[Figure]:
    """What one worker's gradient reaches on the device `name`, its batch made and its weights there."""
    for model, batch in models:
        for precision in ("tf32", "ieee"):
            experiment, own = CASES[model]
            changes = {**own, "compute.fp32_precision": precision, "run.fabric": virtual()}
            (point,) = load(experiment, changes, systems=("baseline",), seeds=[0])
            it = point.experiment.on(FABRICS[virtual()].device)
            work = Assembly(it, name).workload
            learner = work.learner(np.arange(4 * batch), 0, batch, 0, it.training)
            weights, steps = work.initial_weights(0).to(work.device), count()
            taken_s = _done(partial(_gradient, learner, weights, steps), calls)
            what = f"{model}, {batch} examples, {precision}"
            yield Figure(f"gradient of {what}", 1e3 * taken_s, "ms")
            yield Figure(f"arithmetic of {what}", PASSES * work.forward_flops * batch / taken_s / 1e9, "GFLOP/s")


def _gradient(learner: Learner, weights: Tensor, steps: Iterator[int]) -> object:
    return learner.gradient(weights, next(steps))[1]


def _add(x: Tensor, times: int) -> Tensor:
    for _ in range(times):
        x.add_(1)
    return x


def _started(work: Callable[[], object], calls: int, on: Tensor | None = None) -> float:
    """Seconds that the program takes for a call, whatever the device does meanwhile."""
    finish([_warmed(work), on])
    began_s = perf_counter()
    for _ in range(calls):
        made = work()
    taken_s = perf_counter() - began_s
    finish([made, on])
    return taken_s / calls


def _done(work: Callable[[], object], calls: int, on: Tensor | None = None) -> float:
    """Seconds of a call, until the device is done."""
    finish([_warmed(work), on])
    began_s = perf_counter()
    for _ in range(calls):
        made = work()
    finish([made, on])
    return (perf_counter() - began_s) / calls


def _warmed(work: Callable[[], object]) -> object:
    return [work() for _ in range(5)][-1]
