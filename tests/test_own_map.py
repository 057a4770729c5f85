"""The map of our own system: who is the best other in a cell, when a model is held, and what is said of both."""

from __future__ import annotations

from math import exp, log, sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_grid import HOME, MAP, ROWS, rows

KEPT = HOME / "results" / "reference" / "own"


@pytest.fixture
def cells() -> pd.DataFrame:
    frame = pd.DataFrame(
        [
            *rows("m60", "concord", 2.0, 1.0, later_s=1.0),
            *rows("m60", "weightgrad", 4.0, 4.0, waiting=0.7, later_s=9.0),
            *rows("m60", "bgt", 5.0, 6.0),
            *rows("m60", "local-sgd", 1.0, None),
            *rows("h100", "concord", None, None),
            *rows("h100", "weightgrad", None, None),
        ]
    )
    compared: pd.DataFrame = MAP["compared"](frame)
    return compared


def test_a_cell_is_compared_with_the_best_other_that_always_arrives(cells: pd.DataFrame) -> None:
    cell = cells.iloc[0]
    assert cell["map"] == "target_s" and cell["best_other"] == "weightgrad" and cell["waiting"] == pytest.approx(0.7)
    assert cell["speedup"] == pytest.approx(sqrt(2 * 4))
    assert cell["other_s"] == pytest.approx(4.0) and cell["alone_s"] == pytest.approx(4.0 * 0.3)
    wide = 12.706 * log(2) / 2 + 0.1  # of two logarithms that are log 2 apart, the standard error; what both leave open
    assert (cell["low"], cell["high"]) == pytest.approx((exp(log(8) / 2 - wide), exp(log(8) / 2 + wide)), rel=1e-3)


def test_where_every_worker_is_to_hold_the_model_another_system_may_be_the_best(cells: pd.DataFrame) -> None:
    cell = cells.iloc[1]
    assert cell["map"] == "held_s" and cell["best_other"] == "bgt" and cell["waiting"] == pytest.approx(0.1)
    assert cell["speedup"] == pytest.approx(sqrt(5 / 3 * 6 / 2))


def test_the_kept_map_is_what_the_kept_tables_give() -> None:
    cells = MAP["compared"](pd.read_csv(KEPT / "systems.csv"))
    pd.testing.assert_frame_equal(cells, pd.read_csv(KEPT / "grid.csv"), rtol=1e-5)
    said, finals = (KEPT / "grid.md").read_text(), KEPT / "finals.csv"
    assert MAP["markdown"](cells) in said and MAP["in_short"](cells) in said
    assert ("Final metrics" in said) == finals.is_file()
    assert not finals.is_file() or MAP["of_finals"](pd.read_csv(finals)) in said


def test_in_how_many_cells_ours_is_ahead_is_counted(cells: pd.DataFrame) -> None:
    reported, held = MAP["in_short"](cells).splitlines()
    assert reported == (
        "- own, reported: ahead in 1 of 1 cells, 2.83× at least in each; 1 intervals reach below 1; "
        "at least twice as soon in 1 of 1 where the other waits for over half of its time."
    )
    assert "2.24× at least in each" in held and "in 0 of 0 where" in held


@pytest.mark.slow
def test_where_nobody_arrives_nothing_is_said(cells: pd.DataFrame, tmp_path: Path) -> None:
    assert cells.iloc[2]["best_other"] == "" and cells.iloc[2][["speedup", "ours_s", "other_s"]].isna().all()
    said = [line for line in MAP["markdown"](cells).splitlines() if "h100" in line]
    assert len(said) == 2 and not any("×" in line or "nan" in line for line in said)
    MAP["save"](MAP["draw"](cells), tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 5000


def test_what_averages_now_and_then_is_held_with_its_next_averaging() -> None:
    done_s = np.cumsum([0.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0, 5.0])  # an averaging of 4 s every four steps
    held = ROWS["held"]
    assert held("baseline", done_s, 5.5, 3.0, 0) == {"held_s": 5.5, "copies": False}
    assert held("diloco", done_s, 10.0, 6.0, 4) == {"held_s": 16.0, "copies": True}
    assert held("local-sgd", done_s, 10.0, 6.0, 4) == {"held_s": 16.0, "copies": True, "average_s": 4.0}
    assert held("local-sgd-100", done_s, 8.0, 4.0, 4)["held_s"] == 8.0
    done_s = np.cumsum([0.0, 1.0, 2.0, 1.0, 2.0, 1.0, 9.0])  # 1 s in each region's every second step, then 8 s of all
    assert held("hierarchical-local-sgd", done_s, 3.0, 2.0, 6)["average_s"] == pytest.approx(9.0 - 1.5)


def test_whoever_keeps_copies_may_average_them_right_then_as_local_sgd_does() -> None:
    """In the cheapest of its ways: DiLoCo's next averaging is after 6 s, and one in four bits takes one."""
    known = {
        "bgt": (False, 5.0, 5.0, None),
        "diloco": (True, 5.0, 11.0, None),
        "muloco": (True, 5.0, 5.5, None),
        "cocod": (True, None, None, None),
        "local-sgd": (True, 5.0, 12.0, 4.0),
        "local-sgd-4-bits": (True, 7.0, 9.0, 1.0),
    }
    rows = [
        {"system": name, "copies": copies, "target_s": target_s, "held_s": held_s, "average_s": average_s}
        for name, (copies, target_s, held_s, average_s) in known.items()
    ]
    then = ROWS["averaged_right_then"](pd.DataFrame(rows)).set_index("system")["held_s"].dropna()
    assert then.to_dict() == {"bgt": 5.0, "diloco": 6.0, "muloco": 5.5, "local-sgd": 6.0, "local-sgd-4-bits": 8.0}
    nobody = pd.DataFrame(rows[:1]).drop(columns="average_s")
    assert ROWS["averaged_right_then"](nobody)["held_s"].tolist() == [5.0]


def test_final_metrics_are_compared_seed_by_seed() -> None:
    records = [
        {"workload": "own", "alike": alike, "system": system, "seed": seed, "metric": metric + seed / 10}
        | {"steps": steps, "held_s": 24.0, "device": "h100"}
        for alike, steps in (("steps", 400), ("time", 540))
        for system, metric in (("concord", 0.52), ("weightgrad", 0.5))
        for seed in range(3)
    ]
    by_steps, by_time = MAP["of_finals"](pd.DataFrame(records)).splitlines()
    assert "own, h100, as many steps" in by_steps and "(400 steps, 24.0 s)" in by_steps and "+0.02 ± " in by_steps
    assert "own, h100, as much time" in by_time and "(540 steps, 24.0 s)" in by_time


def test_where_the_end_alone_takes_longer_there_is_no_as_much_time() -> None:
    ends = pd.DataFrame({"system": ["concord", "local-sgd"], "steps": 400, "held_s": [0.26, 0.18]})
    assert ROWS["in_as_much_time"](ends.assign(mean_step_s=1e-4)) == 0
    assert ROWS["in_as_much_time"](ends.assign(mean_step_s=5e-4)) == 240


def test_an_end_is_over_when_the_last_region_says_so(tmp_path: Path) -> None:
    events = [
        {"kind": "boundary", "peer": "a/lps", "sent_s": 0.1},  # when the segment began
        {"kind": "mean", "peer": "c/gs", "sent_s": 0.4},
        {"kind": "boundary", "peer": "a/lps", "sent_s": 0.5},
        {"kind": "boundary", "peer": "b/lps", "sent_s": 0.6},
        {"kind": "boundary", "peer": "c/gs", "sent_s": 0.7},
        {"kind": None, "peer": None, "sent_s": None},
    ]
    result = SimpleNamespace(events=pd.DataFrame(events), steps=pd.DataFrame({"time_s": [0.2, 0.35]}))
    run = SimpleNamespace(folder=tmp_path, results=[result])
    assert ROWS["closing"](run) == pytest.approx(0.25)
    assert ROWS["closing"](SimpleNamespace(folder=tmp_path)) == pytest.approx(0.25), "it is kept where events are not"
    with pytest.raises(SystemExit, match="delete the folder"):
        ROWS["closing"](SimpleNamespace(folder=tmp_path / "other", results=[replace_events(result, events[:0])]))


def replace_events(result: Any, events: list[Any]) -> Any:
    columns = ["kind", "peer", "sent_s"]
    return SimpleNamespace(events=pd.DataFrame(events, columns=columns).astype({"peer": "string"}), steps=result.steps)
