"""The same faults on both fabrics: they come at the same times and hold steps up as long."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from testbed.fabrics.registry import FABRICS
from testbed.record import lines
from testbed.record.events import Absent, Reset
from testbed.record.reader import Result, Run, load
from testbed.report.numbers import disturbed

pytestmark = [pytest.mark.emulation, pytest.mark.slow]

SETTINGS = {
    "data.dataset": "synthetic",
    "topology.workers_per_region": 1,  # two cores compute as fast as the modelled device: no dilation to speak of
    "training.batch_size": 32,
    "training.steps": 36,
    "run.eval_images": 50,
    "run.probe_steps": 0,
    "run.checkpoint_steps": 18,
    "compute.device": "m60",
}
RESET = ["reset us-west-1/lps=us-east-2/gs at 450ms"]  # in the midst of a message
FAULTS = [
    "partition us-west-1 at 1s for 1.5s",
    "slow us-east-1/w0 factor=4 at 7s for 1s",
    "pause us-east-1/lps at 9s for 2s",
]


# The global server is twice as patient; a region here has one worker, without which its LPS has nothing to say.
TOLERANT = {"systems.terngrad.tolerance": "leave-out", "systems.terngrad.patience_s": 0.4}
FAULT_S = 2
ABSENCES = [
    f"leave us-west-1 at 1s for {FAULT_S}s",
    f"kill us-east-1/w0 at 6s for {FAULT_S}s",
    f"blackhole us-east-1/lps=us-east-2/gs at 10s for {FAULT_S}s",
]


def played(fabric: str, out: Path, asked: Sequence[str], more: Mapping[str, object] = MappingProxyType({})) -> Run:
    settings = [word for key, value in {**SETTINGS, **more}.items() for word in ("--set", f"{key}={value}")]
    faults = [word for fault in asked for word in ("--fault", fault)]
    line = [
        sys.executable,
        "-m",
        "testbed",
        "run",
        "cifarnet",
        "--fabric",
        fabric,
        "--systems",
        "terngrad",
        "--no-gate",
    ]
    done = subprocess.run(
        [*line, "--quiet", "--out", str(out), *settings, *faults],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return load(next(out.glob("cifarnet/*")))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)
    return {fabric: played(fabric, tmp_path_factory.mktemp(fabric), FAULTS) for fabric in ("virtual", "mininet")}


@pytest.fixture(scope="module")
def both_reset(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """By itself: a connection that was begun anew waits otherwise for what a later fault makes it lose."""
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)
    few = {"training.steps": 8, "run.checkpoint_steps": 8}
    return {fabric: played(fabric, tmp_path_factory.mktemp(fabric), RESET, few) for fabric in ("virtual", "mininet")}


def steps_s(run: Run, span: disturbed.Span) -> np.ndarray:
    """How long each of the steps takes that go on while a fault is in force, and the next."""
    done_s = run.results[0].steps["time_s"].to_numpy()
    begun_s = np.concatenate([[0.0], done_s[:-1]])
    going_on = np.flatnonzero((done_s > span.begin_s) & (begun_s <= span.end_s))
    return (done_s - begun_s)[[*going_on, going_on[-1] + 1]]


def held_up_s(run: Run, span: disturbed.Span) -> float:
    """By a fault that lasts, the longest of these steps; by a reset, which begins the windows of two ways anew, all."""
    took_s = steps_s(run, span)
    return float(took_s.max() if span.end_s - span.begin_s > 0.1 else took_s.sum())


def test_each_fault_comes_and_goes_at_its_time(both: dict[str, Run]):
    virtual, emulated = (disturbed.spans(run.results[0]) for run in both.values())
    for one, other in zip(virtual, emulated, strict=True):
        assert (one.kind, one.about) == (other.kind, other.about)
        assert other.begin_s == pytest.approx(one.begin_s, abs=0.1)
        assert other.end_s == pytest.approx(one.end_s, abs=0.1)


@pytest.mark.parametrize("faulty", ["both", "both_reset"])
def test_steps_are_held_up_as_long(faulty: str, request: pytest.FixtureRequest):
    runs: dict[str, Run] = request.getfixturevalue(faulty)
    for span in disturbed.spans(runs["virtual"].results[0]):
        virtual_s, emulated_s = (held_up_s(run, span) for run in runs.values())
        assert emulated_s == pytest.approx(virtual_s, rel=0.1, abs=0.05), span


def test_on_both_what_a_reset_has_lost_is_sent_again(both_reset: dict[str, Run]):
    virtual, emulated = (
        [
            (event.link, event.resent)
            for line in lines.whole_lines(run.results[0].folder / lines.FILE_NAME)
            if isinstance(event := lines.decode(line), Reset)
        ]
        for run in both_reset.values()
    )
    assert virtual == [("us-west-1/lps=us-east-2/gs", 1)]
    # On a busy machine the message may not be on its way yet; that no other is lost either, the run's end says.
    assert emulated in (virtual, [("us-west-1/lps=us-east-2/gs", 0)])
    assert [len(run.results[0].steps) for run in both_reset.values()] == [8] * 2


@pytest.mark.full
def test_those_who_are_late_are_left_out_and_come_back_alike(tmp_path: Path):
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)
    virtual, emulated = (
        played(fabric, tmp_path / fabric, ABSENCES, {**TOLERANT, "training.steps": 100}).results[0]
        for fabric in ("virtual", "mininet")
    )
    for one, other in zip(absences(virtual), absences(emulated), strict=True):
        assert one[:3] == other[:3]
        # A step or two of some 0.2 s; and TCP, which has doubled its waits for as long as nothing came through, tries
        # again at some time within as long again.
        allowed_s = 0.5 + (FAULT_S if one[2] else 0.0)
        assert other[3] == pytest.approx(one[3], abs=allowed_s), one
    for found in (virtual, emulated):
        done_s = found.steps["time_s"]
        for begin_s, end_s in ((2.2, 3), (7.2, 8), (11.2, 12)):  # when patience is over, and before the fault is
            assert ((done_s > begin_s) & (done_s < end_s)).any(), "nobody went on without those who are late"


def absences(result: Result) -> list[tuple[str, str, bool, float]]:
    """Who left out whom, or took it back, in order of time, and when."""
    found = [lines.decode(line) for line in lines.whole_lines(result.folder / lines.FILE_NAME)]
    absent = sorted((event for event in found if isinstance(event, Absent)), key=lambda event: event.time_s)
    return [(event.node, event.peer, event.back, event.time_s) for event in absent]
