"""What `testbed bench gpu` does, in small on the stand-in device, so that the first GPU meets code that has run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest
import torch
from small_runs import plain

from testbed.cli import main
from testbed.codecs import Ternary
from testbed.gpu.standin import DEVICE, NAME, standin
from testbed.harness.gpu import bench, checks, likeness, steps
from testbed.harness.gpu.bench import Plan
from testbed.harness.gpu.counts import StepCounts
from testbed.harness.gpu.needed import FIGURES, needed

pytestmark = pytest.mark.slow  # plays on an imitated device

TINY: dict[str, Any] = {"model": {"name": "tiny"}, "data": {"dataset": "synthetic"}, "training.batch_size": 16}


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(
        NAME,
        tmp_path,
        sizes=(1, 1025),
        speed_sizes=(2000,),
        models=("cifarnet",),
        systems=("baseline", "weightgrad"),
        jobs=1,  # the stand-in is in this process alone
        timed_steps=2,
        changes=TINY,
    )


def done(plan: Plan, *parts: str) -> dict[str, bench.Part]:
    """What is written of these parts."""
    with standin():
        bench.run(replace(plan, parts=parts), say=lambda line: None)
    written = json.loads((plan.out / "gpu.json").read_text())
    return {part["name"]: bench.Part(**part) for part in written["parts"]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("testbed: error: bench gpu: torch ")
    assert error.count("\n") == 1


def test_a_part_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--part", "codec"]) == 2
    assert "no part 'codec'; did you mean 'codecs'" in capsys.readouterr().err


def test_codecs_are_compared_to_the_byte(plan: Plan) -> None:
    found = done(plan, "doctor", "codecs")
    assert found["codecs"].holds
    assert len(found["codecs"].figures) == 2 * (len(checks.CODECS) + 1)
    assert "0 differ" in found["codecs"].lines[0]
    assert found["doctor"].lines


def test_a_byte_that_differs_is_told(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CODECS", {"ternary": Ternary})
    monkeypatch.setattr("testbed.codecs.resident.base.R3", 0x31848BAD)  # the device's random numbers are others
    found = done(plan, "codecs")["codecs"]
    assert found.holds is False
    assert "bytes" in found.lines[1]


def test_codecs_and_steps_are_timed(small_data: None, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.harness.gpu.bench.SPEEDS_S", math.inf)  # a machine may be as slow as it likes
    found = done(plan, "speeds", "steps")
    assert {each["codec"] for each in found["speeds"].figures} == set(checks.CODECS)
    assert all(each["encode_gbyte_s"] > 0 for each in found["speeds"].figures)
    timed = [(each["system"], each["steps"]) for each in found["steps"].figures]
    assert timed == [("baseline", 2), ("weightgrad", 2), ("gaia", 2)]
    assert all(each["wall"] > 0 for each in found["steps"].figures)
    assert all(len(each["functions"]) == steps.SHOWN for each in found["steps"].figures)


def test_one_of_each_thing_is_timed(small_data: None, plan: Plan) -> None:
    found = {
        each["name"]: each for each in done(replace(plan, gradients=(("cifarnet", 4),)), "figures")["figures"].figures
    }
    assert {"launch", "wait", "memory", "up", "down", "graph of 500, start"} <= set(found)
    assert all(each["value"] > 0 for each in found.values())
    assert found["arithmetic of cifarnet, 4 examples, ieee"]["unit"] == "GFLOP/s"


def test_what_was_done_before_stays(small_data: None, plan: Plan) -> None:
    done(plan, "doctor")
    assert list(done(plan, "codecs")) == ["doctor", "codecs"]


def test_losses_are_held_against_the_cpus(small_data: None, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = plan.out / "losses.csv"
    monkeypatch.setattr(likeness, "experiment", lambda steps=4: steps_of(4))
    likeness.write(kept, 4, ["baseline"])
    same = likeness.read(kept)
    assert len(same["baseline"]) == 4
    other = {"baseline": [loss + 0.1 for loss in same["baseline"]]}
    with standin():
        assert likeness.compared("baseline", NAME, same, 4).holds
        assert not likeness.compared("baseline", NAME, other, 4).holds


def steps_of(count: int) -> Any:
    """A tiny network's experiment."""
    return steps.case("cifarnet", {**TINY, "training.steps": count}, steps=count)


def test_the_kept_losses_are_of_a_run_that_learns() -> None:
    kept = likeness.read()
    if not kept:
        pytest.skip("none are kept yet: testbed bench gpu --write-losses testbed/harness/gpu/losses.csv")
    assert kept.keys() <= set(steps.SYSTEMS)
    for losses in kept.values():
        assert len(losses) == likeness.STEPS
        assert sum(losses[-50:]) < sum(losses[:50])


def test_the_long_run_goes_on_where_its_time_was_over(
    small_data: None, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {**TINY, "training.steps": 60, "run.checkpoint_steps": 2, "run.probe_steps": 0, "run.eval_images": 20}
    short = replace(plan, changes=changes, scale="")
    monkeypatch.setattr(bench, "LEAST_S", 0.0)
    first = done(replace(short, budget_s=2.0, began_s=monotonic()), "paper")["paper"]
    assert "begun in" in first.lines[0]
    assert "stopped" in first.lines[1]
    second = done(replace(short, budget_s=300.0, began_s=monotonic()), "paper")["paper"]
    assert "goes on in" in second.lines[0]
    assert second.lines[1] == "finished"


def test_no_time_left_is_said(plan: Plan) -> None:
    assert "not begun" in done(replace(plan, budget_s=1.0), "paper")["paper"].lines[0]


def test_what_a_gpu_needs_adds_up() -> None:
    """By hand: 100 started, 10 of them graphs of 500 operations; 2.7 GB of memory; 20 GFLOP; two waits."""
    counts = StepCounts(100, 10, 500, 2, 5e6, 4, 5e6, 2.7e9, gradients=8, flops=20e9, waits_at={})
    round_figures = {"launch_us": 5, "graph_us": 10, "node_us": 2, "wait_us": 20}
    rates = {"memory_gbyte_s": 2700, "link_gbyte_s": 50, "gflops": 20_000}
    found = needed(counts, msgspec.structs.replace(FIGURES["h100"], **round_figures, **rates))
    assert found.program == pytest.approx((94 * 5 + 10 * 10) / 1e3)
    assert found.starting == pytest.approx(590 * 2 / 1e3)
    assert found.memory == pytest.approx(1.0 + 0.2)
    assert found.arithmetic == pytest.approx(1.0)
    assert found.step == pytest.approx(1.18 + 1.2 + 1.0 + 2 * 0.02)


ROOT = Path(__file__).parents[2]
BARE = """
import sys
missing = {"numba", "llvmlite", "pyarrow", "matplotlib", "rich", "jinja2", "ray", "mininet", "zmq", "pyroute2", "PIL"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Missing())
from pathlib import Path
from testbed.experiment import load
from testbed.gpu.standin import NAME, standin
from testbed.harness import session
from testbed.harness.gpu import bench

experiment = load.from_dict(eval(sys.argv[1]), "test.toml")
with standin():
    folder = session.prepare(experiment, session.Request("test", "virtual", NAME, Path(sys.argv[2])))
    session.ready(folder, 1)()
    plan = bench.Plan(NAME, Path(sys.argv[2]), parts=["doctor", "codecs"], sizes=(1025,))
    assert bench.run(plan)
"""


def test_a_training_image_has_all_it_takes(tmp_path: Path) -> None:
    """torch, numpy, pandas and msgspec: the tables are made elsewhere, of the same events."""
    data = plain(systems={"baseline": {}, "terngrad": {}, "weightgrad": {}}, training={"steps": 4})
    command = [sys.executable, "-P", "-c", BARE, repr(data), str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={"TESTBED_DATA": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "numba" in ran.stdout
    for system in ("baseline", "terngrad", "weightgrad"):
        (folder,) = tmp_path.glob(f"test/*/{system}/seed-0")
        assert (folder / "events.jsonl").stat().st_size
        assert not (folder / "steps.parquet").exists()


def test_the_stand_in_is_no_device_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--device", NAME]) == 2
    assert f"device '{NAME}' is no GPU" in capsys.readouterr().err
    assert DEVICE.type != "cpu"
