"""A device's training beside the CPU's: the losses of a few hundred steps.

Both train on the same generated images by the same draws. A device adds in another order, so the two come apart step by
step, as two seeds do, only later: the first steps must agree closely, and the end on the whole.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.experiment.load import load
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import virtual
from testbed.harness.gpu.steps import SYSTEMS, losses

KEPT = Path(__file__).with_name("losses.csv")  # the CPU's, written by `testbed bench gpu --write-losses`
STEPS = 400
FIRST, FIRST_TOLERANCE = 5, 5e-3  # the largest difference in so many steps
LAST, LAST_TOLERANCE = 50, 0.05  # of the means over so many; two seeds of a run differ by as much


@dataclass(frozen=True)
class Likeness:
    """How far a device's losses are from the CPU's: at the beginning the largest difference, at the end the means'."""

    system: str
    steps: int
    first: float
    last: float

    @property
    def holds(self) -> bool:
        return self.first <= FIRST_TOLERANCE and self.last <= LAST_TOLERANCE


def experiment(steps: int = STEPS) -> Experiment:
    """CifarNet by four workers on generated images, which are the same on every machine."""
    changes = {
        "data": {"dataset": "synthetic"},
        "training.steps": steps,
        "training.batch_size": 32,
        "topology.workers_per_region": 2,
        "run.probe_steps": 0,
        "run.checkpoint_steps": steps,
        "run.fabric": virtual(),
    }
    (point,) = load("cifarnet", changes, systems=SYSTEMS, seeds=[0])
    return point.experiment


def compared(system: str, device: str, kept: Mapping[str, Sequence[float]], steps: int = STEPS) -> Likeness:
    """Train a system on a device and compare its losses with those `kept`."""
    here = kept[system][:steps]  # of the schedule of all
    there = losses(experiment(), system, device, len(here))
    first = max(abs(a - b) for a, b in zip(here[:FIRST], there[:FIRST], strict=True))
    last = abs(sum(here[-LAST:]) - sum(there[-LAST:])) / len(here[-LAST:])
    return Likeness(system, len(here), first, last)


def read(path: Path = KEPT) -> dict[str, list[float]]:
    """The kept losses by system; empty where there are none."""
    if not path.is_file():
        return {}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0] if name != "step"}


def write(path: Path, steps: int = STEPS, systems: Sequence[str] = SYSTEMS) -> None:
    """Train on the CPU and keep the losses, system by system; those that are kept already are not made again."""
    found = read(path)
    for system in systems:
        if system in found:
            continue
        found[system] = losses(experiment(steps), system, "cpu", steps)
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["step", *found])
            writer.writerows([step, *(f"{found[name][step]:.7g}" for name in found)] for step in range(steps))
