"""What one step asks of a device: operations started, times waited, bytes up and down. Counted on the stand-in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from testbed.experiment.assembly import Assembly, threads
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import FABRICS, Setting, virtual
from testbed.gpu import doubts
from testbed.gpu.standin import NAME, Counts, standin
from testbed.record.held import Held

WARM_UP = (2, 4, 6)  # ends of segments: in the first step of each all workers begin at the same instant


@dataclass(frozen=True)
class StepCounts:
    """Of one step of all roles of a system, a mean over some; attributes as `Counts`'.

    `waits_at` has the lines that waited, with how many times a step; `gradients` is how many workers there are, and
    `flops` are the operations of their gradients.
    """

    launches: float
    graphs: float
    captured: float
    waits: float
    up: float
    ups: float
    down: float
    touched: float
    gradients: int
    flops: float
    waits_at: dict[str, float]


def count(experiment: Experiment, system: str, steps: int = 3, warm_up: Sequence[int] = WARM_UP) -> StepCounts:
    """Play `steps` steps of a system, after some to warm up, and count; losses are read after the last one.

    Where regions come apart later than in `warm_up`, the first gradients of each by itself are checked among the
    steps that count.
    """
    kind = FABRICS[virtual()]
    experiment = experiment.on(kind.device)
    with standin() as counts, TemporaryDirectory() as folder, threads(1):
        doubts.drop()
        assembly = Assembly(experiment, NAME)
        with kind.open(Setting(assembly, NAME)) as fabric:
            held = Held(lambda event: None)
            fabric.record = held
            fabric.begin(system, experiment.run.seeds[0], Path(folder), 0.0, None)
            for stop_at in warm_up:
                fabric.segment(stop_at)
            held.release()
            before = deepcopy(counts)
            fabric.segment(warm_up[-1] + steps)
            held.release()
            after = deepcopy(counts)
        workers = len(experiment.roles_of(system).workers)
        return _per_step(before, after, steps, workers, assembly.task(0).gradient_flops * workers)


def _per_step(before: Counts, after: Counts, steps: int, gradients: int, flops: float) -> StepCounts:
    numbers: dict[str, Any] = {
        field.name: (getattr(after, field.name) - getattr(before, field.name)) / steps
        for field in fields(after)
        if not isinstance(getattr(after, field.name), Counter)
    }
    where = {place: waits / steps for place, waits in (after.where - before.where).items()}
    return StepCounts(gradients=gradients, flops=flops, waits_at=where, **numbers)
