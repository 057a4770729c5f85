"""How far an emulation is slowed down for a device that is faster than this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter

from testbed.errors import InputError
from testbed.experiment.assembly import Assembly, threads
from testbed.fabrics.virtual import VirtualFabric
from testbed.record.events import Computed, Event, StepDone
from testbed.roles.compute import MEASURED, compute_model
from testbed.roles.roles import kind_of

MOST = 50.0  # unless it is asked for: at that the default run takes two hours
MARGIN = 1.25  # the real math of a computation must fit into the modelled time with this much to spare
BUSY = 0.6  # of a step, for which cores may be at the math of it: messages and the network take their part
LATE = 0.05  # of a step, by which a role's math may take longer than modelled
REHEARSED = 10  # steps of each system: a system that adapts has done so after the first half, which does not count


def choose_dilation(assembly: Assembly) -> float:
    """The factor k: as the experiment says, or the smallest at which the real math fits the modelled device.

    1. All workers compute their gradients at the same time on this machine's cores, each on one thread.
    2. All that a system computes in a step, coding and updates too, fits into the time that the step takes, and each
       role's part, on a core of its own, into its modelled time and a little more.

    Raises
    ------
    InputError
        It would be so large that whoever did not ask for it would take the run for one that hangs.
    """
    compute = assembly.experiment.compute
    if compute.dilation != "auto":
        return float(compute.dilation)
    if compute_model(compute.device).device is None:
        return 1.0
    with threads(1):
        needed = _of_gradients(assembly)
        if needed <= MOST:
            needed = max(needed, *(_of_steps(assembly, system) for system in assembly.experiment.systems))
    dilation = max(1.0, math.ceil(10 * needed) / 10)
    if dilation > MOST:
        workers = len(assembly.experiment.roles.workers)
        raise InputError(
            f"compute.device: to play {workers} of '{compute.device}', this machine needs "
            f"{dilation:,.0f} seconds for each of theirs; simulate the network instead (--fabric virtual), compute as "
            'this machine does (compute.device = "measured"), or insist with compute.dilation'
        )
    return dilation


def _of_gradients(assembly: Assembly) -> float:
    """Seconds here for one of the device's while workers compute their gradients."""
    task = assembly.task(0)
    device, learner = compute_model(assembly.experiment.compute.device).device, task.learner(0)
    assert device is not None

    def taken_s() -> float:
        began_s = perf_counter()
        learner.gradient(task.initial, 0)
        return perf_counter() - began_s

    taken = min(taken_s() for _ in range(5)) * _turns(task.roles.workers)
    return MARGIN * taken / device.seconds(task.gradient_work)


def _of_steps(assembly: Assembly, system: str) -> float:
    """Seconds here for one of the run's: a few steps are played in this process, as modelled and as measured.

    How often something is computed in a step is the modelled run's, since a system that does not wait does less in a
    longer step; how long it takes is the measured run's.
    """
    experiment = assembly.experiment
    there, here = (_rehearsed(assembly, system, device) for device in (experiment.compute.device, MEASURED))
    took: dict[tuple[str, str], list[float]] = {}
    for event in here.computed:
        took.setdefault((kind_of(event.node), event.what), []).append(event.seconds)
    roles: dict[str, _Part] = {}
    for event in there.computed:
        part = roles.setdefault(event.node, _Part())
        part.modelled_s += event.seconds / there.steps
        part.real_s += mean(took.get((kind_of(event.node), event.what), [event.seconds])) / there.steps
    workers, late_s = experiment.roles.workers, LATE * there.step_s
    each = [
        part.real_s * (_turns(workers) if role in workers else 1) / (part.modelled_s + late_s)
        for role, part in roles.items()
    ]
    all_s = sum(part.real_s for part in roles.values()) / _cores()
    return max(all_s / BUSY / there.step_s, MARGIN * max(each, default=0.0))


@dataclass
class _Part:
    """Seconds that a role computes in a step, on the device and here."""

    modelled_s: float = 0.0
    real_s: float = 0.0


@dataclass(frozen=True)
class _Rehearsal:
    """Steps that count, seconds of each, and what is computed in them."""

    steps: int
    step_s: float
    computed: Sequence[Computed]


def _rehearsed(assembly: Assembly, system: str, device: str) -> _Rehearsal:
    experiment, events = assembly.experiment, list[Event]()
    steps = min(REHEARSED, experiment.training.steps)
    plan, compute = experiment.network_plan, compute_model(device)
    fabric = VirtualFabric(plan, compute, assembly.system, tcp=experiment.network, timeline_steps=steps)
    fabric.record = events.append
    fabric.begin(system, experiment.run.seeds[0], Path(), 0.0, None)
    fabric.segment(steps)
    before, done = steps // 2, [event for event in events if isinstance(event, StepDone)]
    ready_s = max((event.time_s for event in done if event.step < before), default=0.0)
    done_s = max(event.time_s for event in done)  # what comes after it is a checkpoint's
    computed = [
        each
        for each in events
        if isinstance(each, Computed) and each.time_s - each.seconds >= ready_s and each.time_s <= done_s
    ]
    return _Rehearsal(steps - before, (done_s - ready_s) / (steps - before), computed)


def _turns(workers: Sequence[str]) -> int:
    """How many of them a core has, one after the other."""
    return math.ceil(len(workers) / _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0))
