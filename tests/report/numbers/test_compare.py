"""Runs are compared like with like, or marked."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from testbed.errors import InputError
from testbed.record.info import DataInfo
from testbed.record.reader import load
from testbed.report.numbers.asked import Target
from testbed.report.numbers.compare import compare, load_all, names_of
from testbed.report.numbers.summary import aggregate, summarize
from testbed.report.numbers.tables import compared_tables
from testbed.report.numbers.wording import dollars, size, times
from testbed.report.pictures import draw
from testbed.report.terminal import show_compared

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]
BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "compare.py"


def test_runs_are_joined_with_their_names(make_run: MakeRun) -> None:
    frame = compare(load_all([make_run("a"), make_run("b", seeds=(1,))])).frame
    assert list(frame["run"].unique()) == ["cifarnet/a", "cifarnet/b"]
    assert len(frame) == 6 and frame["differs"].eq("").all()
    assert frame.columns[0] == "run"


def test_a_run_without_a_baseline_is_measured_against_the_others(make_run: MakeRun) -> None:
    runs = load_all([make_run("new", systems=["weightgrad"]), make_run("old", systems=["baseline", "terngrad"])])
    frame = compare(runs).frame.set_index("system")
    assert frame.loc["weightgrad", "compression"] == pytest.approx(17_200_000 / 420_000)
    times = frame["time_to_target_s"]
    assert frame.loc["weightgrad", "speedup_vs_baseline"] == pytest.approx(times["baseline"] / times["weightgrad"])


def test_all_that_is_said_against_a_baseline_is_said_against_anothers(make_run: MakeRun) -> None:
    """A step's speedup, too: the only one that timing-only runs have."""
    target = {"loss": 1.8, "accuracy": 0.45, "window": 10}
    whole = summarize(load(make_run("whole", systems=["baseline", "weightgrad"], target=target))).iloc[1]
    runs = load_all([make_run(system, systems=[system], target=target) for system in ("baseline", "weightgrad")])
    borrowed = compare(runs).frame.iloc[1][whole.index]
    assert whole[["step_speedup", "speedup_to_accuracy", "accuracy_vs_baseline"]].notna().all()
    pd.testing.assert_series_equal(borrowed, whole, check_names=False)


def test_a_baseline_on_another_fabric_or_seed_is_no_measure(make_run: MakeRun) -> None:
    base = make_run("base", systems=["baseline"])
    other_fabric = make_run("virtual", systems=["weightgrad"], fabric="virtual")
    other_seed = make_run("seed", systems=["weightgrad"], seeds=(7,))
    frame = compare(load_all([base, other_fabric, other_seed])).frame.set_index("run")
    assert frame.loc[["cifarnet/virtual", "cifarnet/seed"], "compression"].isna().all()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"data": DataInfo(dataset="CIFAR-10", stand_in=True)}, "data"),
        ({"profile": "wanify-8"}, "profile"),
        ({"dilation": 8.0}, "dilation"),
        ({"compute": "measured"}, "compute"),
        ({"experiment": {"model": {"name": "vgg"}}}, "model"),
        ({"target": {"loss": 1.7}}, "target"),
    ],
)
def test_what_differs_is_refused_by_name_unless_asked_for_and_then_marked(
    make_run: MakeRun, options: dict, key: str
) -> None:
    runs = load_all([make_run("a"), make_run("b", **options)])
    with pytest.raises(InputError, match=rf"differ in .*{key}.*cifarnet/a"):
        compare(runs)
    found = compare(runs, force=True)
    assert found.frame["differs"].str.contains(key).all()
    out = io.StringIO()
    show_compared(found, Console(file=out))
    assert "NOT LIKE WITH LIKE" in out.getvalue() and key in out.getvalue()


def test_in_a_forced_comparison_no_baseline_is_borrowed(make_run: MakeRun) -> None:
    runs = load_all([make_run("a"), make_run("b", systems=["weightgrad"], dilation=8.0)])
    frame = compare(runs, force=True).frame
    assert frame.loc[frame["run"] == "cifarnet/b", "compression"].isna().all()


def test_a_run_given_twice_is_refused(make_run: MakeRun) -> None:
    folder = make_run("a")
    with pytest.raises(InputError, match="twice"):
        load_all([folder, folder / ".." / "a"])


def test_seeds_of_runs_that_differ_in_nothing_else_are_put_together(make_run: MakeRun) -> None:
    first, second = make_run("a", seeds=(0,)), make_run("b", seeds=(1, 2))
    found = compare(load_all([first, second]))
    heads, cells = compared_tables(found)["Loss and accuracy"]
    assert found.by == ("system",) and heads[:2] == ["system", "seeds"]
    assert [line[:2] for line in cells] == [["Baseline", "3"], ["TernGrad", "3"], ["WeightGrad", "3"]]
    pooled = aggregate(pd.concat([summarize(load(first)), summarize(load(second))]))
    assert cells[2][heads.index("final loss")].startswith(f"{pooled['final_loss'][2]:.3f} ± ")


@pytest.mark.parametrize(
    "options", [{"seeds": (0,)}, {"seeds": (1,), "fabric": "virtual"}, {"seeds": (1,), "steps": 90}]
)
def test_runs_that_repeat_a_seed_or_differ_stay_apart(make_run: MakeRun, options: dict) -> None:
    found = compare(load_all([make_run("a"), make_run("b", **options)]))
    assert found.by == ("run", "system") and len(compared_tables(found)["Time"][1]) == 6


def test_copies_and_runs_of_other_series_with_the_same_label_stay_apart(make_run: MakeRun, tmp_path: Path) -> None:
    """Else their seeds would be taken for seeds of one run, and a baseline would have a speedup over itself."""
    first = make_run("batch_size=8", seeds=(0, 1))
    second = shutil.copytree(first, tmp_path / "another" / "cifarnet" / first.name)
    found = compare(runs := load_all([first, second]))
    assert names_of(runs) == [f"{first.parent.parent.name}/cifarnet/batch_size=8", "another/cifarnet/batch_size=8"]
    assert found.by[:2] == ("run", "system")
    base = aggregate(found.frame, found.by).query("system == 'baseline'")
    assert list(base["seeds"]) == [2, 2] and (base["speedup_vs_baseline"] == 1.0).all()
    draw(runs, "series")


def test_no_baseline_is_borrowed_from_a_run_with_another_setting(make_run: MakeRun) -> None:
    """Of a batch or a trace nothing is said in the columns that must agree."""
    base, new = make_run("base", systems=["baseline"]), make_run("new", systems=["weightgrad"])
    facts = json.loads((new / "run.json").read_text())
    facts["experiment"]["training"] = facts["experiment"].get("training", {}) | {"batch_size": 999}
    (new / "run.json").write_text(json.dumps({key: value for key, value in facts.items() if key != "crc"}))
    found = compare(load_all([base, new]))
    assert found.frame.set_index("system").loc["weightgrad", ["compression", "speedup_vs_baseline"]].isna().all()
    assert any("training.batch_size" in note for note in found.notes)


def test_settings_that_differ_are_told(make_run: MakeRun) -> None:
    found = compare(load_all([make_run("a"), make_run("b", steps=90)]))
    assert "The runs' settings differ in training.steps (120, 90)." in found.notes


def test_the_speedup_over_any_system_is_the_ratio_of_the_times_to_target(make_run: MakeRun) -> None:
    frame = compare(load_all([make_run(seeds=(0, 1))]), over=["terngrad"]).frame
    one = frame[frame["seed"] == 1].set_index("system")
    expected = one.loc["terngrad", "time_to_target_s"] / one.loc["weightgrad", "time_to_target_s"]
    assert one.loc["weightgrad", "speedup_over_terngrad"] == pytest.approx(expected)
    with pytest.raises(InputError, match=r"--over terngard: no run has that system.*did you mean 'terngrad'"):
        compare(load_all([make_run("b")]), over=["terngard"])


def test_any_target_can_be_asked_for_and_one_that_was_not_reached_is_no_number(make_run: MakeRun) -> None:
    found = compare(load_all([make_run()]), target=Target(loss=1.7, accuracy=0.469))
    heads, cells = compared_tables(found)["Time"]
    column = heads.index("time to accuracy")
    reached = found.frame["time_to_accuracy_s"].notna()
    assert reached.any() and not reached.all()
    assert [cell[column] == "not reached" for cell in cells] == list(~reached)


def test_a_price_that_is_not_known_is_said(make_run: MakeRun) -> None:
    found = compare(load_all([make_run()]))
    assert any("skyplane" in note and "Apache-2.0" in note for note in found.notes)
    assert (found.frame["egress_usd"] > 0).all()


def test_the_table_is_the_frame(make_run: MakeRun) -> None:
    found = compare(load_all([make_run()]))
    heads, cells = compared_tables(found)["Traffic"]
    row = found.frame.set_index("system").loc["weightgrad"]
    writers = {
        "WAN bytes": ("wan_bytes", size),
        "compression": ("compression", times),
        "egress": ("egress_usd", dollars),
    }
    for head, (metric, write) in writers.items():
        assert cells[2][heads.index(head)] == write(row[metric]) != "–"


def test_a_rounding_error_is_no_interval(make_run: MakeRun) -> None:
    found = compare(load_all([make_run(seeds=(0, 1, 2))]))
    found.frame["mean_compute_s"] += [1e-17 * k for k in range(len(found.frame))]
    heads, cells = compared_tables(found)["Where a step's time went"]
    assert {line[heads.index("computing")] for line in cells} == {"0.150 s"}


@pytest.mark.full
def test_twenty_systems_five_seeds_and_fifty_thousand_steps_fit_into_a_gigabyte() -> None:
    done = subprocess.run([sys.executable, BENCHMARK], capture_output=True, text=True, check=True, timeout=600)
    print(said := done.stdout.splitlines()[-1])
    assert "20 systems x 5 seeds x 50,000 steps" in said
    assert done.stdout.count("system-19") >= 4  # a row in each table
    assert float(re.search(r"([\d.]+) MB", said)[1]) < 1000
