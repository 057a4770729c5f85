"""Workers that one plays for leave the record that they would leave themselves."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from small_runs import EXCHANGING, each_system, experiment, start

from testbed.errors import RunError
from testbed.experiment.sizes import Recorded
from testbed.fabrics.virtual.folds import folds_of
from testbed.record import lines
from testbed.record.events import Event, LinkBytes, Sent, StepDone
from testbed.roles.roles import kind_of
from testbed.systems import SYSTEMS
from testbed.wan.plan import region_of

RINGS = "hierarchical-allreduce"
ALIKE = each_system((name for name, system in SYSTEMS.items() if system.alike), "diloco")
OPTIONS: dict[str, dict[str, Any]] = {
    "weightgrad": EXCHANGING,
    "diloco": {"local_steps": 3, "fragments": 2, "coding": "int8"},
    "cocod": {"local_steps": 3},
    "deco": {"every": 3},
    "diloco-workers": {"local_steps": 3, "fragments": 2, "coding": "int8"},
    "muloco": {"local_steps": 3},
    "sparseloco": {"local_steps": 3},
    "streaming-diloco": {"local_steps": 4, "overlap_steps": 1},
    "terngrad": {"entropy": "on"},
}
PART = 0.1  # of float32's bytes, where sizes depend on the data
EVEN = {"model": {"name": "vector", "parameters": 2**16, "forward_gflop": 1.0}}  # cut into chunks of one size


def timed(folder: Path, system: str, **topology: Any) -> dict[tuple[str, ...], Any]:
    """What the record of a timing-only run says: each region's steps, bytes by region, link and connection."""
    sized = {"device": "m60", "math": "none", "sizes": {system: PART}}
    parts: dict[str, Any] = {"topology": topology, "training": {"batch_size": 48}, "run": {"probe_steps": 0}}
    parts |= EVEN if system == RINGS else {}
    run = start(experiment(systems={system: OPTIONS.get(system, {})}, compute=sized, **parts), folder)
    found: dict[tuple[str, ...], Any] = defaultdict(float)
    for line in lines.whole_lines(run / system / "seed-0" / lines.FILE_NAME):
        event: Event = lines.decode(line)
        match event:
            case StepDone():
                spent = (event.time_s, event.compute_s, event.lan_s, event.wan_s)
                steps = found.setdefault(("steps", region_of(event.node), str(event.step)), [0, *spent])
                steps[0] += event.workers
                assert steps[1:] == pytest.approx(spent, rel=1e-9), "the workers of a region do the same"
            case LinkBytes():
                for link, wire_bytes in event.wire_bytes.items():
                    src, dst = link.split(">")
                    lan = f"{kind_of(src)} or {kind_of(dst)}" if "/" in link else ""
                    found["link", region_of(src), region_of(dst), lan] += wire_bytes
            case Sent():
                found["sent", event.node, event.peer] += event.nbytes + event.messages
    return found


@pytest.mark.parametrize("kind", ["tree", "flat"])
@pytest.mark.parametrize("system", ALIKE)
def test_the_record_is_that_of_a_run_in_which_each_plays(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, kind: str
) -> None:
    if kind not in SYSTEMS[system].topologies:
        pytest.skip("it has no such topology")
    folded = timed(tmp_path / "folded", system, kind=kind, workers_per_region=4)
    monkeypatch.setattr(SYSTEMS[system], "alike", False)
    each = timed(tmp_path / "each", system, kind=kind, workers_per_region=4)
    assert folded.keys() == each.keys()
    for what, value in each.items():
        assert folded[what] == pytest.approx(value, rel=1e-9), what


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "ahead"), [(2, 0), (3, 2), (6, 0)])
def test_one_worker_plays_for_its_region_in_rings(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, ahead: int
) -> None:
    monkeypatch.setitem(OPTIONS, RINGS, {"ahead": ahead})
    monkeypatch.setitem(EVEN["model"], "parameters", 2**10 * workers * 12)
    folded = timed(tmp_path / "folded", RINGS, workers_per_region=workers)
    monkeypatch.setattr(SYSTEMS[RINGS], "alike", False)
    each = timed(tmp_path / "each", RINGS, workers_per_region=workers)
    assert folded == {what: pytest.approx(value, rel=1e-9) for what, value in each.items()}


@pytest.mark.slow
def test_one_worker_plays_for_its_region(small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def watched(system: Any) -> Any:
        found.append(folds_of(system))
        return found[-1]

    monkeypatch.setattr("testbed.fabrics.virtual.fabric.folds_of", watched)
    timed(tmp_path, "baseline", workers_per_region=3)
    assert [members[0] for members in found[-1]] == ["us-west-1/w0", "us-east-1/w0"]
    assert [len(members) for members in found[-1]] == [3, 3]
    sized = {"device": "m60", "math": "none"}
    start(experiment(systems={"allreduce": {}}, compute=sized, run={"probe_steps": 0}), tmp_path / "ring")
    assert found[-1] == [], "neighbours in a ring do not do the same"
    parts: dict[str, Any] = {"topology": {"workers_per_region": 3}, "training": {"batch_size": 48}, **EVEN}
    start(experiment(systems={RINGS: {}}, compute=sized, run={"probe_steps": 0}, **parts), tmp_path / "thirds")
    assert found[-1] == [], "65,536 values are no three equal chunks"
    timed(tmp_path / "quarters", RINGS, workers_per_region=4)
    assert [len(members) for members in found[-1]] == [4, 4]


def test_a_server_that_treats_its_workers_otherwise_is_told(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lps(self: Any, node: Any, state: Any) -> None:
        async for step in node.steps(state):
            gradients = await node.collect(node.clients)
            await node.send(node.server, self._merge(node, gradients, step, state))
            answer = await node.recv(node.server)
            await node.broadcast(reversed(node.clients), answer)

    monkeypatch.setattr(SYSTEMS["baseline"], "lps", lps)
    with pytest.raises(RunError, match=r"/w1 is sent another message than us-.*/w0.*`alike`"):
        timed(tmp_path, "baseline")


@pytest.mark.parametrize(("kind", "alike"), [("gradient", False), ("mean", True)])
def test_sizes_that_were_recorded_of_workers_are_sent_by_each(tmp_path: Path, kind: str, alike: bool) -> None:
    recorded = Recorded(tmp_path, 1, sizes={("a/w0", "gradient"): {0: [8]}, ("b/gs", "mean"): {0: [9]}})
    assert recorded.alike({kind}) is alike
