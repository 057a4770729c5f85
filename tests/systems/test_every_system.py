"""What every system is held to, whatever it does: it trains, goes on from a checkpoint, and repeats to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import EXCHANGING, experiment

from testbed.experiment.assembly import Assembly
from testbed.experiment.schema import Experiment
from testbed.fabrics.virtual import VirtualFabric
from testbed.record.events import Event
from testbed.roles.compute import compute_model
from testbed.systems import SYSTEMS

OPTIONS: dict[str, dict[str, Any]] = {
    "weightgrad": EXCHANGING,
    "gaia": {"threshold": 0.02, "barrier_s": 0.001, "clock_steps": 1},
    "diloco": {"local_steps": 3, "fragments": 2},
    "cocod": {"local_steps": 3},
    "deco": {"every": 3},
    "diloco-workers": {"local_steps": 3, "fragments": 2, "coding": "int8"},
    "muloco": {"local_steps": 3},
    "sparseloco": {"local_steps": 3},
    "streaming-diloco": {"local_steps": 4, "overlap_steps": 1},
}
CASES = [(system, kind) for system in sorted(SYSTEMS) for kind in SYSTEMS[system].topologies]
STEPS = 8


def of(system: str, kind: str) -> Experiment:
    training = {"steps": STEPS, "ema_decay": 0.9}
    return experiment(systems={system: OPTIONS.get(system, {})}, training=training, topology={"kind": kind})


def opened(it: Experiment, events: list[Event]) -> VirtualFabric:
    fabric = VirtualFabric(it.plan, compute_model("m60"), Assembly(it).system)
    fabric.record = events.append
    return fabric


def models(fabric: VirtualFabric, it: Experiment, system: str) -> dict[str, torch.Tensor]:
    return Assembly(it).system(system, 0).models(fabric.states(Path()))


@pytest.mark.slow
@pytest.mark.parametrize(("system", "kind"), CASES)
def test_goes_on_from_a_checkpoint_to_the_same_bits(small_data: None, system: str, kind: str, tmp_path: Path) -> None:
    it = of(system, kind)
    whole_events: list[Event] = []
    whole = opened(it, whole_events)
    whole.begin(system, 0, tmp_path, 0.0, None)
    clock_s = whole.segment(5)
    whole.save(tmp_path)
    before = len(whole_events)
    whole.segment(STEPS)

    events: list[Event] = []
    resumed = opened(it, events)
    resumed.begin(system, 0, tmp_path, clock_s, tmp_path)
    resumed.segment(STEPS)
    assert events == whole_events[before:]
    expected, found = models(whole, it, system), models(resumed, it, system)
    assert expected.keys() == found.keys()
    for name, weights in expected.items():
        assert torch.equal(found[name], weights), name
        assert bool(weights.isfinite().all()), name
        assert not torch.equal(weights, Assembly(it).task(0).initial), name
