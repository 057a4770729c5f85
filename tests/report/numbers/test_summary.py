"""The summary says what the records say, and is empty where they say nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from testbed.record.events import Evaluated, Event, LinkBytes, StepDone
from testbed.record.info import RunInfo, write_info
from testbed.record.reader import load
from testbed.record.recorder import Recorder
from testbed.report.numbers.asked import Target
from testbed.report.numbers.interval import half_width, of_ratios, t_975
from testbed.report.numbers.reached import running_mean
from testbed.report.numbers.sentences import caveats, headlines
from testbed.report.numbers.summary import COLUMNS, SPENT, aggregate, ratio, relate, summarize
from testbed.report.numbers.tables import rows
from testbed.report.numbers.wording import duration
from testbed.report.pictures import draw

MakeRun = Callable[..., Path]
ROW = dict(zip(COLUMNS, [None] * len(COLUMNS), strict=True))


def summary_of(folder: Path, target: dict[str, float], **systems: list[Event]) -> pd.DataFrame:
    write_info(folder, RunInfo(target="t", run_id="r", experiment={"target": target}, systems=list(systems)))
    for system, events in systems.items():
        with Recorder(folder / system / "seed-0") as recorder:
            for event in events:
                recorder.record(event)
    return summarize(load(folder)).set_index("system")


def steps(*losses: float, step_s: float = 1.0) -> list[Event]:
    return [StepDone(time_s=(k + 1) * step_s, step=k, loss=v, compute_s=0.25) for k, v in enumerate(losses)]


def evaluated(model: str, accuracy: float, step: int = 1) -> Evaluated:
    return Evaluated(time_s=float(step), step=step, model=model, loss=1.0, accuracy=accuracy, images=10)


def sent(link: str, wire_bytes: int) -> LinkBytes:
    return LinkBytes(time_s=1.0, interval_s=1.0, wire_bytes={link: wire_bytes})


def test_columns_stand_in_the_documented_order(make_run: MakeRun) -> None:
    frame = summarize(load(make_run(steps=60)))
    assert tuple(frame.columns) == COLUMNS
    assert list(frame["system"]) == ["baseline", "terngrad", "weightgrad"]
    assert set(frame["status"]) == {"finished"} and set(frame["data"]) == {"CIFAR-10"}


def test_final_loss_is_the_mean_of_the_last_fifty_steps(tmp_path: Path) -> None:
    rows = summary_of(tmp_path, {}, long=steps(*[9.0] * 10, *[1.0] * 25, *[2.0] * 25), short=steps(4.0, 2.0))
    assert rows.loc["long", "final_loss"] == 1.5
    assert rows.loc["short", "final_loss"] == 3.0
    assert rows.loc["short", "mean_compute_s"] == 0.25


def test_target_is_reached_when_the_running_mean_first_is_at_it(tmp_path: Path) -> None:
    losses = steps(4.0, 0.0, 3.0, 1.0, 2.0, 9.0, step_s=2.0)
    row = summary_of(tmp_path, {"loss": 2.0, "window": 3}, one=losses).loc["one"]
    assert row["time_to_target_s"] == 8.0  # steps 1 to 3: (0 + 3 + 1) / 3; the first three make 7/3
    assert row["steps_to_target"] == 4
    assert row["target"] == "loss ≤ 2"


def test_a_single_low_step_is_not_the_target_and_never_reached_is_empty(tmp_path: Path) -> None:
    rows = summary_of(tmp_path, {"loss": 1.0, "window": 2}, one=steps(5.0, 0.5, 5.0), few=steps(0.5))
    assert rows[["time_to_target_s", "steps_to_target", "speedup_vs_baseline"]].isna().all(axis=None)


def test_an_accuracy_target_takes_the_first_test_of_the_result_at_or_above(tmp_path: Path) -> None:
    tests = [
        evaluated("full", 0.9, 10),
        evaluated("quantized", 0.5, 10),
        evaluated("quantized", 0.6, 20),
        evaluated("ema", 0.7, 20),
    ]
    rows = summary_of(tmp_path, {"accuracy": 0.6}, q=tests, full=tests[:1], low=tests[1:2])
    assert list(rows["time_to_target_s"].fillna(-1)) == [20.0, 10.0, -1]
    assert list(rows["final_accuracy"]) == [0.6, 0.9, 0.5]
    assert rows.loc["q", ["accuracy_full", "accuracy_quantized", "accuracy_ema"]].tolist() == [0.9, 0.6, 0.7]


def test_a_message_counts_once_on_the_wan_or_on_the_lan(tmp_path: Path) -> None:
    """22 bytes leave the host, 15 of them for other regions: 7 stay on the LAN, however many links they cross."""
    links = [sent("a>b", 10), sent("b>a", 5), sent("a/w0>a", 22), sent("a>a/w0", 7)]
    rows = summary_of(tmp_path, {}, both=links, one_region=links[2:], silent=steps(1.0))
    assert list(rows["wan_bytes"].fillna(-1)) == [15, 0, -1]
    assert list(rows["lan_bytes"].fillna(-1)) == [7, 22, -1]


def test_compression_is_per_step_and_speedup_to_the_target_against_the_same_seed(tmp_path: Path) -> None:
    base = [*steps(2.0, 1.0, step_s=6.0), sent("a>b", 1000)]
    fast = [*steps(2.0, 1.0, 1.0, 1.0, step_s=1.5), sent("a>b", 200)]
    rows = summary_of(tmp_path, {"loss": 1.0, "window": 1}, baseline=base, fast=fast)
    assert list(rows["compression"]) == [1.0, 10.0]
    assert list(rows["speedup_vs_baseline"]) == [1.0, 4.0]


def test_without_a_baseline_that_reached_the_target_there_is_no_speedup(make_run: MakeRun) -> None:
    alone = summarize(load(make_run("alone", systems=["weightgrad"])))
    assert alone["time_to_target_s"].notna().all()
    assert alone[["speedup_vs_baseline", "compression"]].isna().all(axis=None)
    killed = summarize(load(make_run("killed", ends={"baseline": (20, None)})))
    assert killed["speedup_vs_baseline"].isna().all()
    assert list(killed["status"]) == ["partial", "finished", "finished"]


@pytest.mark.slow
def test_seeds_are_related_to_their_own_baseline(make_run: MakeRun) -> None:
    frame = summarize(load(make_run(seeds=(0, 1))))
    for seed, group in frame.groupby("seed"):
        times = group.set_index("system")["time_to_target_s"]
        speedups = group.set_index("system")["speedup_vs_baseline"]
        assert speedups["terngrad"] == pytest.approx(times["baseline"] / times["terngrad"]), seed


def test_a_seed_that_is_over_is_not_set_against_a_baseline_that_was_stopped(make_run: MakeRun) -> None:
    run = load(make_run(systems=["baseline", "terngrad"], seeds=(2, 3), ends={("baseline", 3): (110, None)}))
    assert run.results[1].status == "partial"
    frame = summarize(run)
    assert frame["time_to_target_s"].notna().all(), "it was stopped behind the target"
    paired = ["compression", "speedup_vs_baseline", "speedup_resolution", "step_speedup", "accuracy_vs_baseline"]
    seeds = frame[frame["system"] == "terngrad"].set_index("seed")[paired]
    assert seeds.loc[2].notna().all() and seeds.loc[3].isna().all()
    [said] = headlines(run, frame)
    base = aggregate(frame).set_index("system").loc["baseline"]
    assert f"baseline in {duration(base['time_to_target_s'])}; there is no speedup, as not every seed has one" in said


def test_of_two_runs_of_one_seed_the_one_that_is_over_is_what_others_are_set_against() -> None:
    rows = [
        ("baseline", "partial", 1.0),
        ("baseline", "finished", 8.0),
        ("new", "finished", 4.0),
        ("new", "partial", 2.0),
    ]
    frame = pd.DataFrame(rows, columns=["system", "status", "time_to_target_s"]).assign(seed=0)
    assert ratio(frame, "time_to_target_s", "baseline").tolist() == [8.0, 1.0, 2.0, 4.0]


def test_a_target_that_is_met_before_the_first_step_is_not_said_to_be_missed(make_run: MakeRun) -> None:
    run = load(make_run(systems=["baseline", "terngrad"]))
    frame = relate(summarize(run).assign(time_to_target_s=0.0))
    [said] = headlines(run, frame)
    assert "in 0 s, baseline in 0 s; there is no speedup" in said
    assert any("untrained model is at the target already" in line for line in caveats(run, frame))
    assert not any("untrained" in line for line in caveats(run, summarize(run)))
    assert draw(run, "comparison", frame).axes[2].get_xlabel() == "s"


@pytest.mark.parametrize(("steps", "every", "last"), [(30, 10, 15), (70, 10, 20), (30, 3, 0), (120, 10, 0), (30, 0, 0)])
def test_a_run_with_few_tests_for_its_length_says_what_they_leave_open(
    make_run: MakeRun, steps: int, every: int, last: int
) -> None:
    run = load(make_run(steps=steps, target={"loss": 0.5}))
    run.info.experiment["run"]["probe_steps"] = every
    said = [line for line in caveats(run, summarize(run)) if "run.probe_steps" in line]
    assert bool(said) == bool(last)
    assert all(f"{every} steps apart" in line and f"last {last} steps" in line for line in said)


def test_a_mean_is_of_what_is_done_and_where_nothing_is_of_what_has_begun(make_run: MakeRun) -> None:
    stopped: dict[str | tuple[str, int], tuple[int, str | None]] = {
        ("terngrad", 1): (20, "interrupted"),
        "weightgrad": (30, None),
    }
    run = load(make_run(seeds=(0, 1), ends={**stopped, ("weightgrad", 1): (0, None)}))
    frame = summarize(run)
    together = aggregate(frame).set_index("system")
    assert list(together["seeds"]) == [2, 1, 1] and list(together["reached"]) == [2, 1, 0]
    assert list(together["steps"]) == [120, 120, 30]
    heads, cells = rows(frame)
    assert [dict(zip(heads, line, strict=True))["system"] for line in cells] == [
        "Baseline",
        "TernGrad",
        "WeightGrad (unfinished)",
    ]
    said = " ".join(caveats(run, frame))
    assert "Fewer than 50 steps" in said  # WeightGrad's 30, of which nothing better is there
    assert "Fewer than 50 steps" not in " ".join(caveats(run, frame[frame["system"] == "terngrad"]))
    assert "3 of 6 over" in said and "terngrad seed 1 is interrupted: 20 steps recorded" in said


@pytest.mark.slow
def test_a_seed_that_diverged_is_not_left_out_of_a_mean(make_run: MakeRun) -> None:
    """What diverges in one of three seeds has not reached its target by the mean of the other two."""
    for steps in (30, 0):
        ends: dict[str | tuple[str, int], tuple[int, str | None]] = {("terngrad", 2): (steps, "diverged")}
        frame = summarize(load(make_run(f"failed-{steps}", seeds=(0, 1, 2), ends=ends)))
        terngrad = aggregate(frame).set_index("system").loc["terngrad"]
        assert (terngrad["seeds"], terngrad["reached"]) == (3, 2)
        assert pd.isna(terngrad["time_to_target_s"]) and pd.isna(terngrad["speedup_vs_baseline"])
        heads, cells = rows(frame)
        [line] = [dict(zip(heads, each, strict=True)) for each in cells if "TernGrad" in each[0]]
        assert line["system"] == "TernGrad (unfinished)" and line["time to target"] == "not reached by 1"


@pytest.mark.slow
def test_a_seed_that_failed_for_the_machines_sake_is_no_part_of_a_mean(make_run: MakeRun) -> None:
    """Its disk was full: what it has is that of a part, as of one that was stopped."""
    frame = summarize(load(make_run("full", seeds=(0, 1, 2), ends={("terngrad", 2): (4, "failed")})))
    terngrad = aggregate(frame).set_index("system").loc["terngrad"]
    assert (terngrad["seeds"], terngrad["reached"]) == (2, 2) and terngrad["steps"] == 120


def test_one_nan_or_huge_loss_spoils_no_more_than_its_window() -> None:
    means = running_mean(np.array([np.nan, 1.0, 1e30, 2.0, 4.0]), 2)
    assert np.isnan(means[:2]).all() and list(means[2:]) == [5e29, 5e29, 3.0]
    assert np.isnan(running_mean(np.ones(2), 3)).all()


def test_a_target_without_a_window_takes_ten_steps_and_a_loss_goes_before_an_accuracy() -> None:
    target = Target.of(RunInfo(experiment={"target": {"loss": 1.5, "accuracy": 0.4}}))
    assert target == Target(1.5, 0.4, 10)
    assert str(target) == "loss ≤ 1.5" and target.in_words == ("loss ≤ 1.5", "accuracy ≥ 40 %")
    assert not Target.of(RunInfo(experiment={"target": "soon"})).stated


def test_a_run_is_timed_to_its_loss_and_to_its_accuracy(tmp_path: Path) -> None:
    events = [*steps(*[2.0] * 4, *[1.0] * 6), evaluated("full", 0.3, step=5), evaluated("full", 0.5, step=10)]
    slow = [*steps(*[2.0] * 6, *[1.0] * 4, step_s=2.0), evaluated("full", 0.5, step=20)]
    rows = summary_of(tmp_path, {"loss": 1.0, "accuracy": 0.4, "window": 2}, baseline=slow, quick=events)
    assert rows.loc["quick", ["time_to_target_s", "steps_to_target", "time_to_accuracy_s"]].tolist() == [6.0, 6, 10.0]
    assert rows.loc["quick", ["speedup_vs_baseline", "speedup_to_accuracy"]].tolist() == [16.0 / 6.0, 2.0]


def test_where_a_step_went_adds_up_and_is_empty_where_it_was_not_recorded(tmp_path: Path) -> None:
    spent = {"compute_s": 0.25, "codec_s": 0.125, "lan_s": 0.125, "wan_s": 1.0}
    told: list[Event] = [StepDone(time_s=2.0 * (k + 1), step=k, loss=1.0, **spent) for k in range(3)]
    rows = summary_of(tmp_path, {}, told=told, untold=steps(1.0, 1.0))
    assert [rows.loc["told", f"mean_{name}_s"] for name in SPENT] == [0.25, 0.125, 0.125, 1.0, 0.5]
    assert rows.loc["untold", "mean_compute_s"] == 0.25
    assert rows.loc["untold", [f"mean_{name}_s" for name in SPENT[1:]]].isna().all()


def test_bytes_to_the_target_are_those_sent_until_then(tmp_path: Path) -> None:
    sizes = [LinkBytes(time_s=k + 1.0, interval_s=1.0, wire_bytes={"a>b": 100}) for k in range(4)]
    rows = summary_of(tmp_path, {"loss": 1.5, "window": 1}, hit=[*steps(2.0, 1.0, step_s=1.25), *sizes], miss=sizes)
    assert rows.loc["hit", "time_to_target_s"] == 2.5 and rows.loc["hit", "wan_bytes_to_target"] == 250
    assert rows.loc["miss", "wan_bytes"] == 400 and pd.isna(rows.loc["miss", "wan_bytes_to_target"])


def test_egress_is_priced_by_the_senders_region_and_empty_where_a_pair_has_no_price(tmp_path: Path) -> None:
    gb = 1_000_000_000
    priced = [sent("us-east-1>us-east-2", gb), sent("sa-east-1>us-east-1", 2 * gb), sent("sa-east-1/w0>sa-east-1", gb)]
    strange = [sent("us-east-1>us-east-2", gb), sent("rack-1>rack-2", 1)]
    idle = [sent("us-east-1>us-east-2", gb), sent("rack-1>rack-2", 0)]
    rows = summary_of(tmp_path, {}, priced=priced, strange=strange, idle=idle, dark=steps(1.0))
    assert rows.loc["priced", "egress_usd"] == pytest.approx(0.01 + 2 * 0.138)
    assert rows.loc["idle", "egress_usd"] == pytest.approx(0.01)
    assert rows.loc[["strange", "dark"], "egress_usd"].isna().all()


def test_ratios_are_averaged_by_their_logarithms() -> None:
    mean, low, high = of_ratios(np.array([0.5, 2.0, 1.0]))
    wide = 2.4843 * np.log(2)  # 4.303 standard errors of three logarithms that are log 2 apart
    assert (mean, low, high) == pytest.approx((1.0, np.exp(-wide), np.exp(wide)), rel=1e-3)
    assert of_ratios(np.array([0.5, 2.0, 1.0]), 0.1)[2] == pytest.approx(high * np.exp(0.1))
    assert np.isnan(of_ratios(np.array([3.0]), 0.1)[1])


def test_the_interval_is_students() -> None:
    # Three values with standard deviation 1: 4.303 / sqrt(3).
    assert half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(2.4843, abs=1e-3)
    assert np.isnan(half_width(np.array([1.0])))
    assert t_975(60) == pytest.approx(2.0003, abs=1e-3) and t_975(31) == pytest.approx(2.0395, abs=1e-3)


def test_aggregate_gives_mean_and_interval_and_never_averages_over_only_the_lucky_seeds() -> None:
    done = {**ROW, "system": "a", "status": "finished", "steps": 5, "time_to_target_s": 5.0}
    rows = [{**done, "seed": k, "final_loss": k + 1.0} for k in range(3)]
    rows[2]["time_to_target_s"] = None
    frame = aggregate(pd.DataFrame(rows).astype({"time_to_target_s": "float64"}))
    row = frame.iloc[0]
    assert (row["seeds"], row["reached"]) == (3, 2)
    assert (row["final_loss"], row["final_loss_high"] - 2.0) == (2.0, pytest.approx(2.4843, abs=1e-3))
    assert pd.isna(row["time_to_target_s"]) and pd.isna(row["wan_bytes"])


@pytest.mark.slow
def test_relating_changes_nothing_else(make_run: MakeRun) -> None:
    frame = summarize(load(make_run(seeds=(0, 1))))
    shuffled = frame.sample(frac=1, random_state=3)
    related = relate(shuffled)
    assert (related.loc[related["system"] == "baseline", "speedup_vs_baseline"] == 1.0).all()
    own = {"compression", "speedup_vs_baseline", "speedup_to_accuracy", "speedup_resolution", "accuracy_vs_baseline"}
    others = [c for c in COLUMNS if c not in own | {"step_speedup", "accuracy_resolution"}]
    pd.testing.assert_frame_equal(related[others], shuffled[others])
