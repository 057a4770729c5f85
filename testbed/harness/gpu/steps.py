"""What a step takes on a device, by model and system, and where the time goes."""

from __future__ import annotations

import cProfile
import math
import pstats
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from testbed.experiment.assembly import Assembly, threads
from testbed.experiment.load import load
from testbed.experiment.schema import Experiment
from testbed.fabrics.base import Fabric
from testbed.fabrics.registry import FABRICS, Setting, virtual
from testbed.record.events import Event, StepDone
from testbed.record.held import Held

WARM_UP = (3, 6, 12)  # ends of segments, in which all that is captured has been captured
SHOWN = 12  # kernels, and functions of the program, that take longest
NAMED = 60  # characters of a kernel's name
PROFILED = 10  # steps of each of the two profiles

# Eight workers, 512 examples together; a language model with its own batch, a large network with a small one.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "cifarnet": ("cifarnet", {"training.batch_size": 512}),
    "resnet-50": (
        "cifarnet",
        {
            "model": {"name": "resnet-50"},
            "data": {"dataset": "imagenet"},
            "training.batch_size": 64,
            "topology.workers_per_region": 1,
        },
    ),
    "gpt": ("gpt", {"topology.workers_per_region": 4, "training.batch_size": 128}),
}
SYSTEMS = ("baseline", "terngrad", "weightgrad")
ALSO = {"cifarnet": ("gaia",)}  # timed, too: the fourth of the paper's run


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of a step, a mean over `steps`.

    Attributes
    ----------
    wall : as the program sees it, until the device is done
    busy : what the device's kernels take together; None where they cannot be timed
    kernels : milliseconds a step by kernel, those that take longest
    functions : of the program, likewise, each without what it calls; looked at by a profiler, which nearly doubles it
    """

    model: str
    system: str
    steps: int
    wall: float
    busy: float | None = None
    kernels: dict[str, float] = field(default_factory=dict)
    functions: dict[str, float] = field(default_factory=dict)


def case(model: str, changes: Mapping[str, Any] | None = None, steps: int = 100) -> Experiment:
    """The experiment of a case, without tests on the way."""
    name, own = CASES[model]
    quiet = {"run.probe_steps": 0, "run.checkpoint_steps": steps, "training.steps": 10_000, "run.fabric": virtual()}
    systems = (*SYSTEMS, *ALSO.get(model, ()))
    (point,) = load(name, {**own, **quiet, **(changes or {})}, systems=systems, seeds=[0])
    return point.experiment


def time_of(experiment: Experiment, model: str, system: str, device: str, steps: int, budget_s: float) -> StepTime:
    """Play `steps` steps, fewer where they would take longer than `budget_s`."""
    with TemporaryDirectory() as folder, Play(experiment, system, device, Path(folder), lambda event: None) as play:
        for stop_at in WARM_UP:
            play.to(stop_at)
        began_s = perf_counter()
        play.to(WARM_UP[-1] + 2)
        each_s = (perf_counter() - began_s) / 2
        steps = max(2, min(steps, math.floor(budget_s / max(each_s, 1e-6))))
        done = WARM_UP[-1] + 2
        began_s = perf_counter()
        play.to(done + steps)
        wall_s = (perf_counter() - began_s) / steps
        looked_at, done = min(steps, PROFILED), done + steps
        busy, kernels = _kernels(play, done, looked_at) if device.startswith("cuda") else (None, {})
        return StepTime(
            model, system, steps, 1e3 * wall_s, busy, kernels, _functions(play, done + looked_at, looked_at)
        )


class Play:
    """`with Play(...) as play`: a system on the virtual fabric, without a harness around it."""

    def __init__(self, experiment: Experiment, system: str, device: str, folder: Path, record: Any) -> None:
        kind = FABRICS[virtual()]
        experiment = experiment.on(kind.device)
        self._assembly = Assembly(experiment, device)
        self._fabric: Fabric = kind.open(Setting(self._assembly, device))
        self._held = Held(record)
        self._fabric.record = self._held
        self._system, self._seed, self._folder = system, experiment.run.seeds[0], folder
        self._threads = threads(1)

    def __enter__(self) -> Play:
        self._threads.__enter__()
        self._fabric.begin(self._system, self._seed, self._folder, 0.0, None)
        return self

    def to(self, step: int) -> None:
        """Play to a step, and wait for the device."""
        self._fabric.segment(step)
        self._held.release()
        if self._assembly.device.type == "cuda":
            torch.cuda.synchronize(self._assembly.device)

    def __exit__(self, *exception: Any) -> None:
        self._threads.__exit__(None, None, None)
        self._fabric.close()


def _kernels(play: Play, done: int, steps: int) -> tuple[float | None, dict[str, float]]:
    """What the device's kernels take: all together, and the longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        play.to(done + steps)
    taken: dict[str, float] = {}
    for each in profiler.key_averages():  # what has the same long name but for its end is one here
        name = each.key[:NAMED]
        taken[name] = taken.get(name, 0.0) + each.self_device_time_total / 1e3 / steps
    longest = sorted(taken, key=lambda name: -taken[name])[:SHOWN]
    return sum(taken.values()) or None, {name: taken[name] for name in longest}


def _functions(play: Play, done: int, steps: int) -> dict[str, float]:
    """What the program's functions take, each without those that it calls: the longest."""
    with cProfile.Profile() as profiler:
        play.to(done + steps)
    taken: dict[str, float] = {}
    for (file, _, name), (_, _, own_s, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        where = "/".join(Path(file).parts[-2:])  # and no machine's folders
        key = f"{where} {name}" if where not in ("", "~") else name
        taken[key] = taken.get(key, 0.0) + 1e3 * own_s / steps
    return {name: taken[name] for name in sorted(taken, key=lambda name: -taken[name])[:SHOWN]}


def losses(experiment: Experiment, system: str, device: str, steps: int) -> list[float]:
    """The workers' mean loss of each step."""
    found: dict[int, list[float]] = {}

    def note(event: Event) -> None:
        if isinstance(event, StepDone):
            found.setdefault(event.step, []).append(event.loss)

    with TemporaryDirectory() as folder, Play(experiment, system, device, Path(folder), note) as play:
        play.to(steps)
    return [sum(found[step]) / len(found[step]) for step in range(steps)]
