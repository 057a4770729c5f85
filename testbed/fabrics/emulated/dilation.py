"""How far an emulation is slowed down for a device that is faster than this machine."""

from __future__ import annotations

import math
import os
from pathlib import Path
from time import perf_counter, process_time
from typing import Literal

from testbed.errors import InputError
from testbed.experiment.assembly import Assembly, threads
from testbed.fabrics.virtual import VirtualFabric
from testbed.roles.compute import MEASURED, compute_model

MOST = 50.0  # unless it is asked for: at that the default run takes two hours
MARGIN = 1.25  # the real math of a step must fit into the modelled time with this much to spare
REHEARSED = (1, 3)  # steps: in the first all is made ready, the others count


def choose_dilation(assembly: Assembly) -> float:
    """The factor k: as the experiment says, or the smallest at which the real math fits the modelled device.

    1. All workers compute their gradients at the same time on this machine's cores, each on one thread.
    2. All that a system's roles compute in a step, coding and updates too, fits into the time that the step takes.

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
    """Seconds here for one of the run's, all cores at work: a few steps are played in this process, once for each."""
    modelled_s = _played(assembly, system, assembly.experiment.compute.device, "clock")
    return _played(assembly, system, MEASURED, "work") / _cores() / modelled_s


def _played(assembly: Assembly, system: str, device: str, what: Literal["clock", "work"]) -> float:
    """Seconds of the run's clock, or of this process's work, for the steps that count."""
    experiment = assembly.experiment
    plan, make = experiment.network_plan, assembly.system
    fabric = VirtualFabric(plan, compute_model(device), make, tcp=experiment.network)
    fabric.begin(system, experiment.run.seeds[0], Path(), 0.0, None)
    first, last = (min(steps, experiment.training.steps) for steps in REHEARSED)
    began_s = fabric.segment(first) if first < last else 0.0
    worked_s = process_time()
    ended_s = fabric.segment(last)
    return ended_s - began_s if what == "clock" else process_time() - worked_s


def _cores() -> int:
    return len(os.sched_getaffinity(0))
