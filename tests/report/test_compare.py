"""Runs are compared like with like, or marked."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from testbed.errors import InputError
from testbed.record.info import DataInfo
from testbed.report.compare import compare, load_all
from testbed.report.tables import show_compared

MakeRun = Callable[..., Path]


def test_runs_are_joined_with_their_names(make_run: MakeRun) -> None:
    frame = compare(load_all([make_run("a"), make_run("b", seeds=(1,))]))
    assert list(frame["run"].unique()) == ["cifarnet/a", "cifarnet/b"]
    assert len(frame) == 6 and frame["differs"].eq("").all()
    assert frame.columns[0] == "run"


def test_a_run_without_a_baseline_is_measured_against_the_others(make_run: MakeRun) -> None:
    runs = load_all([make_run("new", systems=["weightgrad"]), make_run("old", systems=["baseline", "terngrad"])])
    frame = compare(runs).set_index("system")
    assert frame.loc["weightgrad", "compression"] == pytest.approx(17_200_000 / 420_000)
    times = frame["time_to_target_s"]
    assert frame.loc["weightgrad", "speedup_vs_baseline"] == pytest.approx(times["baseline"] / times["weightgrad"])


def test_a_baseline_on_another_fabric_or_seed_is_no_measure(make_run: MakeRun) -> None:
    base = make_run("base", systems=["baseline"])
    other_fabric = make_run("virtual", systems=["weightgrad"], fabric="virtual")
    other_seed = make_run("seed", systems=["weightgrad"], seeds=(7,))
    frame = compare(load_all([base, other_fabric, other_seed])).set_index("run")
    assert frame.loc[["cifarnet/virtual", "cifarnet/seed"], "compression"].isna().all()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"data": DataInfo(dataset="CIFAR-10", stand_in=True)}, "data"),
        ({"profile": "wanify-8"}, "profile"),
        ({"dilation": 8.0}, "dilation"),
        ({"compute": "measured"}, "compute"),
        ({"experiment": {"model": "vgg"}}, "model"),
        ({"target": {"loss": 1.7}}, "target"),
    ],
)
def test_what_differs_is_refused_by_name_unless_asked_for_and_then_marked(
    make_run: MakeRun, options: dict, key: str
) -> None:
    runs = load_all([make_run("a"), make_run("b", **options)])
    with pytest.raises(InputError, match=rf"differ in .*{key}.*cifarnet/a"):
        compare(runs)
    frame = compare(runs, mixed=True)
    assert frame["differs"].str.contains(key).all()
    out = io.StringIO()
    show_compared(frame, Console(file=out))
    assert "NOT LIKE WITH LIKE" in out.getvalue() and key in out.getvalue()


def test_in_a_mixed_comparison_no_baseline_is_borrowed(make_run: MakeRun) -> None:
    runs = load_all([make_run("a"), make_run("b", systems=["weightgrad"], dilation=8.0)])
    frame = compare(runs, mixed=True)
    assert frame.loc[frame["run"] == "cifarnet/b", "compression"].isna().all()


def test_a_run_given_twice_is_refused(make_run: MakeRun) -> None:
    folder = make_run("a")
    with pytest.raises(InputError, match="twice"):
        load_all([folder, folder / ".." / "a"])
