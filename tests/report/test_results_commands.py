"""`testbed plot`, `compare` and `report` write what they say, and refuse what they cannot do in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from testbed.cli import main
from testbed.record.reader import load
from testbed.report.numbers.compare import compare, load_all

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_plot_draws_the_kinds_and_formats_that_were_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    folder = make_run()
    assert (
        run("plot", folder, "--kind", "speedup", "--kind", "loss", "--format", "pdf", "--out", tmp_path / "figs") == 0
    )
    assert sorted(path.name for path in (tmp_path / "figs").iterdir()) == ["loss.pdf", "speedup.pdf"]
    assert not (folder / "comparison.png").exists()


def test_plot_draws_everything_there_is_beside_the_records(make_run: MakeRun) -> None:
    folder = make_run(systems=["baseline"])
    assert run("plot", folder, "--format", "png") == 0
    assert {"comparison.png", "summary.md"} <= {path.name for path in folder.iterdir()}
    assert {path.name for path in (folder / "plots").iterdir()} == {"loss.png", "speedup.png", "time.png"}


def test_report_opens_the_page_in_the_users_browser(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, browser = make_run(), tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)  # it looks for browsers once
    assert run("report", folder, "--open") == 0
    assert (tmp_path / "opened").read_text().strip() == (folder / "report.html").resolve().as_uri()


def test_plot_puts_several_runs_into_one_picture(make_run: MakeRun) -> None:
    first, second = make_run("a"), make_run("b", topology={"regions": ["x"], "workers_per_region": 2})
    assert run("plot", first, second, "--format", "png") == 0
    assert [path.name for path in (first / "plots").iterdir()] == ["workers.png"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "bits"], "hold nothing for 'bits'"),
        (["--kind", "sped"], "did you mean 'speedup'"),
        (["--format", "gif"], "--format gif: unknown; known: pdf, png\n"),
    ],
)
def test_plot_refuses_in_one_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run("plot", make_run(systems=["baseline"], steps=20), *arguments) == 2
    assert said in capsys.readouterr().err


def test_compare_prints_its_tables_and_writes_the_rows(
    make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, table = make_run(seeds=(0, 1)), tmp_path / "rows.csv"
    assert run("compare", folder, "--over", "terngrad", "--csv", table) == 0
    shown = capsys.readouterr().out
    for head in ("Loss and accuracy", "Time", "Traffic", "Where a step's time went", "over TernGrad", "egress"):
        assert head in shown
    written = pd.read_csv(table)
    expected = compare(load_all([folder]), over=["terngrad"]).frame
    assert list(written.columns) == list(expected.columns)
    assert written["speedup_over_terngrad"].tolist() == pytest.approx(expected["speedup_over_terngrad"].tolist())


def test_compare_takes_other_targets_than_the_experiments(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("compare", make_run(), "--loss", "0.1", "--accuracy", "0.3") == 0
    shown = capsys.readouterr().out
    assert shown.count("not reached") == 3 and "time to accuracy" in shown
    assert run("compare", make_run("b"), "--accuracy", "45") == 2
    assert "a fraction above 0, at most 1" in capsys.readouterr().err


def test_report_writes_one_file(make_run: MakeRun, tmp_path: Path) -> None:
    folder, page = make_run(systems=["baseline"], steps=20), tmp_path / "page.html"
    before = sorted(folder.rglob("*"))
    assert run("report", folder, "--out", page) == 0
    assert load(folder).name in page.read_text() and sorted(folder.rglob("*")) == before
