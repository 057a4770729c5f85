"""How far an emulation is slowed down for a device that is faster than this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from testbed.errors import InputError
from testbed.experiment.assembly import Assembly, threads
from testbed.fabrics.virtual import VirtualFabric
from testbed.record.events import Computed, Event, StepDone
from testbed.roles.compute import MEASURED, compute_model

MOST = 50.0  # unless it is asked for: at that the default run takes two hours
MARGIN = 1.25  # the real math of a step must fit into the modelled time with this much to spare
LATE = 0.05  # of a step, by which a role's math may take longer than modelled
REHEARSED = 4  # steps of each system


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
        if MARGIN * needed <= MOST:
            needed = max(needed, *(_of_steps(assembly, system) for system in assembly.experiment.systems))
    dilation = max(1.0, math.ceil(10 * MARGIN * needed) / 10)
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

    rounds = math.ceil(len(task.roles.workers) / _cores())
    return min(taken_s() for _ in range(5)) * rounds / device.seconds(task.gradient_work)


def _of_steps(assembly: Assembly, system: str) -> float:
    """Seconds here for one of the run's: a few steps are played in this process, as measured and as modelled."""
    experiment = assembly.experiment
    here, there = (_rehearsed(assembly, system, device) for device in (MEASURED, experiment.compute.device))
    workers, late_s = experiment.roles.workers, LATE * there.step_s
    turns = math.ceil(len(workers) / _cores())  # until a core is a worker's
    roles = [
        took_s * (turns if role in workers else 1) / (there.roles.get(role, 0.0) + late_s)
        for role, took_s in here.roles.items()
    ]
    return max(sum(here.roles.values()) / _cores() / there.step_s, *roles)


@dataclass(frozen=True)
class _Rehearsal:
    """Seconds of a step, and what each role computes in one."""

    step_s: float
    roles: Mapping[str, float]


def _rehearsed(assembly: Assembly, system: str, device: str) -> _Rehearsal:
    experiment, events = assembly.experiment, list[Event]()
    steps = min(REHEARSED, experiment.training.steps)
    plan, compute = experiment.network_plan, compute_model(device)
    fabric = VirtualFabric(plan, compute, assembly.system, tcp=experiment.network, timeline_steps=steps)
    fabric.record = events.append
    fabric.begin(system, experiment.run.seeds[0], Path(), 0.0, None)
    end_s = fabric.segment(steps)
    firsts = [event.time_s for event in events if isinstance(event, StepDone) and event.step == 0]
    ready_s = max(firsts) if steps > 1 else 0.0  # in the first step all is made ready
    counted = max(steps - 1, 1)
    roles: dict[str, float] = {}
    for event in events:
        if isinstance(event, Computed) and event.time_s - event.seconds >= ready_s:
            roles[event.node] = roles.get(event.node, 0.0) + event.seconds / counted
    return _Rehearsal((end_s - ready_s) / counted, roles)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
