"""The scalars that TensorBoard reads are the records' numbers, also where a run was stopped and went on."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import numpy as np
import pytest
from small_runs import experiment, plain, start, toml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import testbed
from testbed.cli import main
from testbed.errors import InputError, Interrupted
from testbed.harness import session as run
from testbed.record import tensorboard
from testbed.record.events import Event, StepDone
from testbed.record.reader import Result

pytestmark = pytest.mark.slow

TAGS = {"train/loss", "train/step_time_s", "wan/bytes", "test/loss/full", "test/accuracy/full"}


def scalars(folder: Path) -> dict[str, tuple[list[int], np.ndarray, np.ndarray]]:
    """Steps, wall times and values of each tag, as TensorBoard reads them."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {}
    for tag in events.Tags()["scalars"]:
        each = events.Scalars(tag)
        found[tag] = ([e.step for e in each], np.array([e.wall_time for e in each]), np.array([e.value for e in each]))
    return found


def check(result: Result) -> None:
    found = scalars(result.folder)
    steps, _, losses = found["train/loss"]
    assert steps == list(range(1, 9))
    np.testing.assert_allclose(losses, result.steps["loss"], rtol=1e-6)
    _, wall, _ = found["train/loss"]
    np.testing.assert_allclose(wall - wall[0], result.steps["time_s"] - result.steps["time_s"][0], atol=1e-5)
    _, _, spent = found["train/step_time_s"]
    np.testing.assert_allclose(spent, np.diff(result.steps["time_s"], prepend=0.0), rtol=1e-5)
    steps, _, sizes = found["wan/bytes"]
    assert steps == list(range(1, 9)) and (np.diff(sizes) >= 0).all()
    assert sizes[-1] == pytest.approx(sum(n for link, n in result.link_bytes.items() if "/" not in link), rel=1e-6)
    tests = result.evaluations[result.evaluations["model"] == "full"]
    assert found["test/accuracy/full"][0] == list(tests["step"])
    np.testing.assert_allclose(found["test/accuracy/full"][2], tests["accuracy"], rtol=1e-6)
    np.testing.assert_allclose(found["test/loss/full"][2], tests["loss"], rtol=1e-6)


def test_each_system_and_seed_has_its_scalars(small_data: None, tmp_path: Path) -> None:
    it = experiment(systems={"baseline": {}, "weightgrad": {}}, run={"seeds": [0, 1]})
    loaded = testbed.load(start(it, tmp_path, tensorboard=True))
    assert len(loaded.results) == 4
    for result in loaded.results:
        assert set(scalars(result.folder)) >= TAGS
        check(result)
    assert "test/accuracy/quantized" in scalars(loaded.folder / "weightgrad" / "seed-1")


def test_a_resumed_run_has_each_step_once(small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    see, it = tensorboard.Scalars.see, experiment(systems={"baseline": {}})

    def stop_at_step_5(self: tensorboard.Scalars, event: Event) -> None:
        see(self, event)
        if isinstance(event, StepDone) and event.step == 5:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(tensorboard.Scalars, "see", stop_at_step_5)
        with pytest.raises(Interrupted):
            start(it, tmp_path, tensorboard=True)
    [folder] = (tmp_path / "test").iterdir()
    assert scalars(folder / "baseline" / "seed-0")["train/loss"][0] == [1, 2, 3, 4, 5]
    run.ready(folder, jobs=1)()
    [result] = testbed.load(folder).results
    check(result)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=[pytest.mark.slow, pytest.mark.full])])
def test_the_command_line_asks_for_it(small_data: None, tmp_path: Path, jobs: int) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(toml(plain(systems={"baseline": {}, "terngrad": {}}, training={"steps": 4})))
    assert main(["run", str(file), "--out", str(tmp_path / "out"), "--tensorboard", "--jobs", str(jobs)]) == 0
    [folder] = (tmp_path / "out" / "mine").iterdir()
    assert all(scalars(result.folder)["train/loss"][0] == [1, 2, 3, 4] for result in testbed.load(folder).results)
    assert main(["run", "--resume", str(folder), "--tensorboard"]) == 2


def test_without_tensorboard_installed_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'geo-testbed\[tensorboard\]'"):
        tensorboard.require()
