"""When a system first was as good as the target asks, by the tests of the model that it reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from testbed.record import frames
from testbed.report.numbers import reached
from testbed.report.numbers.asked import Target
from testbed.report.numbers.reached import Reached
from testbed.report.numbers.summary import aggregate, relate, relate_to

NO_STEPS = frames.empty("steps")


def probes(steps: list[int], values: list[float], name: str = "train_loss", step_s: float = 2.0) -> pd.DataFrame:
    return pd.DataFrame({"step": steps, "time_s": [step_s * step for step in steps], name: values})


@pytest.fixture
def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a window can be as short as the test wants it."""
    monkeypatch.setattr(reached, "LEAST", 1)


@pytest.mark.usefixtures("one_is_enough")
def test_between_two_tests_the_time_is_interpolated() -> None:
    """From 2.0 at step 10 to 1.0 at step 20, 1.7 is reached at step 13, and known to the ten steps between."""
    found = reached.by_loss(NO_STEPS, probes([0, 10, 20], [2.3, 2.0, 1.0]), Target(loss=1.7))
    assert found is not None
    assert found.time_s == pytest.approx(26.0) and found.step == 13 and found.resolution_s == 20.0


def test_no_fewer_than_five_are_judged_together() -> None:
    """By chance the third test is good; the mean of the last five is, which stands for step 40."""
    shaky = probes([0, 10, 20, 30, 40, 50, 60], [3.0, 3.0, 0.0, 3.0, 2.0, 2.0, 2.0])
    middles, means = reached.smoothed(shaky["step"].to_numpy(), shaky["train_loss"].to_numpy(), window=10)
    assert middles == pytest.approx([0, 5, 10, 15, 20, 30, 40])
    assert means == pytest.approx([3.0, 3.0, 2.0, 2.25, 2.2, 2.0, 1.8])
    found = reached.by_loss(NO_STEPS, shaky, Target(loss=1.9))
    assert found is not None and found.step == 35 and found.resolution_s == 20.0


@pytest.mark.usefixtures("one_is_enough")
def test_the_mean_over_the_window_is_what_counts() -> None:
    """One good test among bad ones is chance: of the last 20 steps there are two."""
    shaky = probes([0, 10, 20, 30, 40], [3.0, 1.0, 3.0, 1.4, 1.4])
    found = reached.by_loss(NO_STEPS, shaky, Target(loss=1.5, window=20))
    assert found is not None and 25 < found.step <= 35, "the middles of the last two means"
    once = reached.by_loss(NO_STEPS, shaky, Target(loss=1.5, window=10))
    assert once is not None and once.step < 10


@pytest.mark.parametrize("window", [10, 50, 100, 150])
def test_a_window_hides_nothing_of_what_a_system_needs_more_steps(window: int) -> None:
    """A loss that falls evenly is at the target where it is, by whatever window; half as fast, at twice the step."""
    steps = np.arange(0, 410, 10)
    once, half = (probes(list(steps), list(2.5 - fall * steps)) for fall in (0.01, 0.005))
    found = [reached.by_loss(NO_STEPS, each, Target(loss=1.6, window=window)) for each in (once, half)]
    assert [each.step for each in found if each] == [90, 180]
    assert [each.time_s for each in found if each] == pytest.approx([180.0, 360.0])


def test_a_curve_goes_on_to_the_last_test() -> None:
    """By means of fewer and fewer tests; a target is not judged by these."""
    steps = np.arange(0, 110, 10)
    middles, means = reached.smoothed(steps, 1.0 * steps, window=100, to_the_end=True)
    assert middles == pytest.approx(means) and np.all(np.diff(middles) > 0) and middles[-1] == 100
    judged, _ = reached.smoothed(steps, 1.0 * steps, window=100)
    assert judged[-1] == 55 and reached.judged_s(probes(list(steps), list(steps)), 100) == 110.0


def test_a_target_that_is_missed_or_not_asked_for_is_none() -> None:
    assert reached.by_loss(NO_STEPS, probes([0, 10], [2.0, 1.9]), Target(loss=1.0)) is None
    assert reached.by_loss(NO_STEPS, probes([0], [0.5]), Target(accuracy=0.5)) is None
    assert reached.by_test(NO_STEPS, probes([0], [0.5]), Target(loss=0.5)) is None


@pytest.mark.usefixtures("one_is_enough")
@pytest.mark.parametrize(
    ("target", "name", "values"),
    [
        (Target(accuracy=0.6), "accuracy", [0.2, 0.4, 0.8]),
        (Target(metric="bits", value=2.6, better="lower"), "bits", [3.0, 2.8, 2.4]),
        (Target(metric="skill", value=2.6, better="higher"), "skill", [2.0, 2.4, 2.8]),
    ],
)
def test_a_test_counts_by_its_own_better(target: Target, name: str, values: list[float]) -> None:
    found = reached.by_test(NO_STEPS, probes([0, 10, 20], values, name), target)
    assert found is not None
    assert (found.time_s, found.step, found.resolution_s) == (pytest.approx(30.0), pytest.approx(15, abs=1), 20.0)


@pytest.mark.usefixtures("one_is_enough")
def test_what_was_no_number_before_is_reached_when_it_is_one() -> None:
    found = reached.by_loss(NO_STEPS, probes([0, 10, 20], [np.nan, np.nan, 1.0]), Target(loss=1.5))
    assert found == Reached(40.0, 20, 20.0)


def test_older_records_are_judged_by_what_they_have() -> None:
    """By the running mean of the workers' losses; and by checkpoints, to what lies between two."""
    steps = pd.DataFrame({"step": range(4), "time_s": [1.0, 2.0, 3.0, 4.0], "loss": [3.0, 2.0, 1.0, 1.0]})
    none = probes([], [])
    assert reached.by_loss(steps, none, Target(loss=1.5, window=2)) == Reached(3.0, 3, 1.0)
    tests = pd.DataFrame({"step": [100, 200], "time_s": [10.0, 20.0], "accuracy": [0.4, 0.5]})
    assert reached.by_test(tests, none, Target(accuracy=0.5)) == Reached(20.0, 200, 10.0)


def related(times_s: dict[str, list[float]], resolution_s: float = 0.0) -> pd.DataFrame:
    """Times to the target by system, a seed each."""
    rows = [
        {"system": system, "seed": seed, "time_to_target_s": time_s, "resolution_s": resolution_s}
        for system, each in times_s.items()
        for seed, time_s in enumerate(each)
    ]
    frame = pd.DataFrame(rows).assign(
        wan_bytes=1,
        steps=1,
        mean_step_s=1.0,
        time_to_accuracy_s=np.nan,
        final_accuracy=0.5,
        accuracy_resolution_s=np.nan,
    )
    return relate(frame)


def test_speedups_are_paired_by_seed() -> None:
    """Seeds differ threefold, the ratio hardly: its interval is narrow all the same."""
    frame = related({"baseline": [10.0, 20.0, 30.0], "fast": [5.0, 10.0, 15.1]})
    fast = aggregate(frame, metrics=["speedup_vs_baseline"]).iloc[1]
    assert fast["speedup_vs_baseline"] == pytest.approx(2.0, rel=0.01)
    assert 1.97 < fast["speedup_vs_baseline_low"] < 2.0 < fast["speedup_vs_baseline_high"] < 2.02


def test_twice_as_fast_and_half_as_fast_are_as_far_from_the_same() -> None:
    frame = related({"baseline": [10.0, 10.0], "either": [5.0, 20.0]})
    assert aggregate(frame, metrics=["speedup_vs_baseline"])["speedup_vs_baseline"].iloc[1] == pytest.approx(1.0)


def test_an_interval_holds_what_lies_between_two_tests() -> None:
    """Both times are known to 2 of 20 s, half of it to either side: 5 % each, so 10 % of the ratio."""
    frame = related({"baseline": [20.0] * 3, "same": [20.0] * 3}, resolution_s=2.0)
    same = aggregate(frame, metrics=["speedup_vs_baseline"]).iloc[1]
    assert same["speedup_vs_baseline_low"] == pytest.approx(np.exp(-0.1))
    assert same["speedup_vs_baseline_high"] == pytest.approx(np.exp(0.1))


def test_so_does_that_of_a_speedup_to_a_second_target() -> None:
    frame = related({"baseline": [20.0] * 3, "same": [20.0] * 3})
    both = relate(frame.assign(time_to_accuracy_s=40.0, accuracy_resolution_s=8.0))
    assert aggregate(both, metrics=["speedup_to_accuracy"])["speedup_to_accuracy_high"][1] == pytest.approx(np.exp(0.2))


def test_so_does_that_over_any_other_system_and_not_that_over_itself() -> None:
    frame = relate_to(related({"baseline": [20.0] * 3, "fast": [10.0] * 3, "rival": [10.0] * 3}, 1.0), "fast")
    base, fast, rival = aggregate(frame, metrics=["speedup_vs_baseline", "speedup_over_fast"]).to_dict("records")
    assert rival["speedup_over_fast_high"] == pytest.approx(np.exp(0.1)) and rival["speedup_over_fast"] == 1.0
    assert base["speedup_over_fast_low"] == pytest.approx(0.5 * np.exp(-0.075))
    assert np.isnan(fast["speedup_over_fast_high"]) and np.isnan(base["speedup_vs_baseline_high"])


def test_an_old_record_has_no_probes(tmp_path: Path) -> None:
    """A frame of an older testbed has neither of the columns; they are there, and say so."""
    old = frames.empty("evaluations").drop(columns=["probe", "train_loss"])
    old.loc[0] = [1, 2.0, "full", 1.5, 0.5, 100]
    old.to_parquet(tmp_path / "evaluations.parquet")
    read = frames.read(tmp_path, "evaluations")
    assert read is not None and not read["probe"].any() and read["train_loss"].isna().all()
