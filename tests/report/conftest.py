"""Synthetic records of runs that look like real ones, written through the recorder."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testbed.record.events import Evaluated, Event, LinkBytes, RunEnded, RunStarted, StepDone
from testbed.record.info import DIVERGED, NOT_FINITE, DataInfo, ResultInfo, RunInfo, read_info, write_info
from testbed.record.recorder import Recorder

# system: seconds a step, WAN bytes a step, step constant of the loss's decay, final accuracy
SYSTEMS: dict[str, tuple[float, int, float, float]] = {
    "baseline": (1.9, 17_200_000, 90.0, 0.472),
    "terngrad": (0.52, 1_950_000, 95.0, 0.468),
    "weightgrad": (0.24, 420_000, 80.0, 0.470),
    "gaia": (0.6, 2_100_000, 100.0, 0.461),
    "dgc": (0.4, 260_000, 100.0, 0.466),
    "diloco": (0.22, 880_000, 120.0, 0.455),
    "mqgrad": (0.65, 2_500_000, 94.0, 0.469),
    "qsgd": (0.7, 2_900_000, 92.0, 0.470),
    "something-new": (0.9, 5_000_000, 91.0, 0.471),
}
WAN = ("us-west-1>us-east-2", "us-east-2>us-west-1", "us-east-1>us-east-2", "us-east-2>us-east-1")
LAN = ("us-west-1/w0>us-west-1", "us-west-1>us-west-1/w0")
MakeRun = Callable[..., Path]
Recorded = Callable[[str, int, int, "str | None"], Path]


def events_of(system: str, seed: int, steps: int, ended: str | None, workers: int = 2) -> list[Event]:
    """The events of one system and seed; without `ended` it looks killed."""
    step_s, wan_bytes, decay, accuracy = SYSTEMS.get(system, SYSTEMS["something-new"])
    random = np.random.default_rng([seed, *system.encode()])
    losses = 1.45 + 0.85 * np.exp(-np.arange(steps)[:, None] / decay) + random.normal(0, 0.07, (steps, workers))
    events: list[Event] = [RunStarted(time_s=0.0, step=0)]
    for step in range(steps):
        end_s = (step + 1) * step_s
        for worker in range(workers):
            node, loss = f"us-west-1/w{worker}", float(losses[step, worker])
            events.append(StepDone(time_s=end_s, node=node, step=step, loss=loss, compute_s=0.15))
        for links, size_bytes in ((WAN, wan_bytes // 4), (LAN, 3_000_000)):
            for link in links:
                events.append(LinkBytes(time_s=end_s, interval_s=step_s, wire_bytes={link: size_bytes}))
    models = {"full": accuracy - 0.03, "quantized": accuracy} if system == "weightgrad" else {"full": accuracy}
    for model, value in models.items():
        value += float(random.normal(0, 0.003))
        events.append(
            Evaluated(time_s=steps * step_s, step=steps, model=model, loss=1.5, accuracy=value, images=10_000)
        )
    if ended is not None:
        how, error = ("failed", f"w0 failed: layer a{NOT_FINITE}") if ended == DIVERGED else (ended, "")
        events.append(RunEnded(time_s=steps * step_s, step=steps, how=how, error=error))
    return events


def write_run(
    recorded: Recorded,
    folder: Path,
    systems: Sequence[str] = ("baseline", "terngrad", "weightgrad"),
    seeds: Sequence[int] = (0,),
    steps: int = 120,
    target: dict[str, Any] | None = None,
    ends: Mapping[str | tuple[str, int], tuple[int, str | None]] | None = None,
    **facts: Any,
) -> Path:
    """Write a run; `ends` gives a system's (or one seed's) steps and how it ended, `facts` are fields of `RunInfo`."""
    experiment = {
        "model": {"name": "cifarnet"},
        "data": {"dataset": "cifar10"},
        "training": {"steps": steps, "batch_size": 128},
        "topology": {"profile": "weightgrad-ec2", "regions": ["us-west-1", "us-east-1"], "workers_per_region": 4},
        "target": {"loss": 1.8, "window": 10} if target is None else target,
        "systems": {system: {} for system in systems},
        "run": {"timeline_steps": 3},
    }
    info = RunInfo(
        target="cifarnet",
        run_id=folder.name,
        experiment=experiment,
        profile="weightgrad-ec2",
        fabric="mininet",
        delay_mechanism="netem",
        dilation=4.0,
        compute="m60",
        systems=list(systems),
        seeds=list(seeds),
        data=DataInfo(dataset="CIFAR-10"),
    )
    for key, value in facts.items():
        setattr(info, key, value)
    write_info(folder, info)
    for system in systems:
        for seed in seeds:
            given = ends or {}
            done, ended = given.get((system, seed), given.get(system, (steps, "finished")))
            one = folder / system / f"seed-{seed}"
            shutil.copytree(recorded(system, seed, done, ended), one)
            checksums = read_info(one, ResultInfo).checksums
            status = ended or "running"
            write_info(one, ResultInfo(system=system, seed=seed, steps=steps, status=status, checksums=checksums))
    return folder


@pytest.fixture(scope="session")
def recorded() -> Iterator[Recorded]:
    """The records of one system and seed, written once for all tests: they copy them."""
    with tempfile.TemporaryDirectory() as kept:

        @functools.cache
        def record(system: str, seed: int, steps: int, ended: str | None) -> Path:
            folder = Path(kept) / f"{system}-{seed}-{steps}-{ended}"
            recorder = Recorder(folder)
            for event in events_of(system, seed, steps, ended):
                recorder.record(event)
            checksums = recorder.finish() if ended else {}
            recorder.close()
            write_info(folder, ResultInfo(checksums=checksums))
            return folder

        yield record


@pytest.fixture
def make_run(tmp_path: Path, recorded: Recorded) -> MakeRun:
    """`write_run` into a fresh folder (the first argument is the run's id)."""
    return lambda run_id="run", **options: write_run(recorded, tmp_path / "cifarnet" / run_id, **options)
