"""Every system under every kind of fault, as its paper prints it: it waits, goes on, and is the same each time.

`tests/systems/test_tolerance.py` has the same for those who go on without who is late.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import EXCHANGING, Played, experiment, play

from testbed.errors import RunError
from testbed.experiment.assembly import Assembly
from testbed.faults import FAULTS
from testbed.record.events import LinkBytes
from testbed.systems import SYSTEMS, Task
from testbed.wan.profile import Profile

GOLDEN = Path(__file__).parent / "golden"
OPTIONS: dict[str, dict[str, Any]] = {
    "weightgrad": EXCHANGING,
    "gaia": {"threshold": 0.1},
    "cocod": {"local_steps": 2},
    "deco": {"every": 2, "kept": 0.1},
    "diloco": {"local_steps": 3},
    "diloco-workers": {"local_steps": 3},
    "muloco": {"local_steps": 3},
    "sparseloco": {"local_steps": 3},
    "streaming-diloco": {"local_steps": 4, "overlap_steps": 1},
    "local-sgd": {"local_steps": 3},
    "hierarchical-local-sgd": {"local_steps": 1, "rounds": 3},
}
UNITS = 10  # in a run without faults: of these the times below are
FAULTS_ASKED = {
    "blackhole": ["blackhole us-west-1/*=us-*/* at 1 for 2"],
    "cut": ["cut us-west-1 at 1 for 2 every 5"],
    "delay": ["delay * ms=30 at 1 for 3"],
    "jitter": ["jitter * ms=30 hold_s=0.05 at 0 for 4"],
    "join": ["join us-west-1 at 2"],
    "kill": ["kill us-west-1/w0 at 2 for 2"],
    "leave": ["leave us-west-1 at 1 for 3"],
    "loss": ["loss * p=0.02 burst=3 at 1 for 3"],
    "partition": ["partition us-west-1 at 1 for 2"],
    "pause": ["pause us-west-1/w0 at 1 for 3"],
    "rate": ["rate * factor=0.2 at 1 for 3"],
    "reset": ["reset *=* at 1 every 20"],
    "slow": ["slow */w1 factor=500 spread=0.5 hold_s=0.05 mtbf 1 mttr 3 seed=4"],
}
BY_VALUES = {"adaptive", "bgt", "demo", "dgc", "ef21", "gaia", "isgq-dithered", "isgq-mse", "isgq-naive", "qgt", "qsgd"}
BY_VALUES |= {"sparseloco", "wgt"}  # the sizes of their messages depend on a library's last bits
SYNCHRONOUS = {"baseline", "terngrad", "fp16"}


def timed(sentences: list[str], unit_s: float) -> list[str]:
    """With times in seconds that were given in units."""

    def words(text: str) -> Iterator[str]:
        before = ""
        for word in text.split():
            yield f"{float(word) * unit_s:.6f}s" if before in ("at", "for", "every", "mtbf", "mttr") else word
            before = word

    return [" ".join(words(text)) for text in sentences]


@cache
def setting(system: str) -> tuple[Task, Profile]:
    it = experiment(systems={system: OPTIONS.get(system, {})}, training={"steps": 6})
    return Assembly(it).task(0, it.roles_of(system)), it.plan.profile


def played(system: str, faults: list[str], unit_s: float = 0.0) -> Played | str:
    """A run of six steps, or what it ended with."""
    task, profile = setting(system)
    asked = timed(faults, unit_s)
    if not any("lps" in role for role in task.roles.all):
        asked = [text.replace("us-west-1/*=us-*/*", "us-west-1/*=us-east-1/*") for text in asked]
    try:
        return play(system, task, profile, OPTIONS.get(system), faults=asked)
    except RunError as error:
        return str(error)


def in_numbers(run: Played | str) -> dict[str, Any]:
    """A run, small enough to review."""
    if isinstance(run, str):
        return {"error": run}
    wan = sum(event.wan_bytes for event in run.of(LinkBytes))
    return {"clock_s": run.clock_s, "wan_bytes": wan, "norm": max(float(it.norm()) for it in run.models.values())}


ONE_OF_A_KIND = ("baseline", "weightgrad", "diloco", "hierarchical-allreduce")


@pytest.mark.slow
@pytest.mark.parametrize(
    "system", [pytest.param(name, marks=[] if name in ONE_OF_A_KIND else pytest.mark.full) for name in sorted(SYSTEMS)]
)
def test_same_seed_same_bits_under_every_fault(small_data: None, system: str, request: pytest.FixtureRequest) -> None:
    assert set(FAULTS_ASKED) == set(FAULTS)
    found = {}
    plain = played(system, [])
    assert isinstance(plain, Played)
    for kind, faults in FAULTS_ASKED.items():
        run, again = (played(system, faults, plain.clock_s / UNITS) for _ in "12")
        if isinstance(run, str):
            assert kind == "kill" and run == again and "us-west-1/w0 is dead" in run, (kind, run)
        else:
            assert isinstance(again, Played) and run.events == again.events and run.clock_s == again.clock_s, kind
            assert all(torch.equal(model, again.models[name]) for name, model in run.models.items()), kind
            if system in SYNCHRONOUS:  # the times are others, the model is not
                assert run.clock_s > plain.clock_s, f"{kind} cost nothing"
                assert all(torch.equal(model, plain.models[name]) for name, model in run.models.items()), kind
        found[kind] = in_numbers(run)
    path = GOLDEN / f"{system}.json"
    if request.config.getoption("--rewrite-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    golden = json.loads(path.read_text())
    for kind, numbers in found.items():
        for name, value in numbers.items():
            if name == "norm":
                assert value == pytest.approx(golden[kind][name], rel=1e-4), (kind, name)
            elif system not in BY_VALUES:
                assert value == golden[kind][name], (kind, name)
