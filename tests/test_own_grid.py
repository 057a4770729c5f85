"""The map of our own system: who is the best other in a cell, and what is said of cells in which nobody arrives."""

from __future__ import annotations

import runpy
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

OWN_GRID = Path(__file__).parents[1] / "benchmarks" / "own_grid.py"
GRID: dict[str, Any] = runpy.run_path(str(OWN_GRID), run_name="imported")


def rows(
    device: str, system: str, *target_s: float | None, waiting: float = 0.1, held_s: float | None = None
) -> list[Any]:
    cell = {"workload": "own", "profile": "lan", "device": device, "system": system, "waiting": waiting}
    return [{**cell, "seed": seed, "target_s": each, "held_s": held_s} for seed, each in enumerate(target_s)]


@pytest.fixture
def cells() -> pd.DataFrame:
    frame = pd.DataFrame(
        [
            *rows("m60", "concord", 2.0, 1.0, held_s=3.0),
            *rows("m60", "weightgrad", 4.0, 4.0, waiting=0.7),
            *rows("m60", "bgt", 5.0, 6.0),
            *rows("m60", "local-sgd", 1.0, None),
            *rows("h100", "concord", None, None),
            *rows("h100", "weightgrad", None, None),
        ]
    )
    compared: pd.DataFrame = GRID["compared"](frame)
    return compared


def test_a_cell_is_compared_with_the_best_other_that_always_arrives(cells: pd.DataFrame) -> None:
    cell = cells.iloc[0]
    assert cell["best_other"] == "weightgrad" and cell["waiting"] == 0.7 and cell["held_s"] == 3.0
    assert cell["speedup"] == pytest.approx(sqrt(2 * 4))
    wide = 12.706 * log(2) / 2  # of two logarithms that are log 2 apart: their standard error is half of that
    assert (cell["low"], cell["high"]) == pytest.approx((exp(log(8) / 2 - wide), exp(log(8) / 2 + wide)), rel=1e-3)


def test_where_nobody_arrives_nothing_is_said(cells: pd.DataFrame, tmp_path: Path) -> None:
    assert cells.iloc[1]["best_other"] == "" and cells.iloc[1][["speedup", "ours_s", "other_s"]].isna().all()
    said = GRID["markdown"](cells).splitlines()[-1]
    assert "h100" in said and "×" not in said and "nan" not in said
    GRID["save"](GRID["draw"](cells), tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 5000


def test_a_network_and_a_device_are_settings_of_the_experiment() -> None:
    from testbed.experiment.load import load
    from testbed.experiment.sweeps import value

    for profile in GRID["PROFILES"]:
        given = [part for part in GRID["cell"](profile, "l40s") if part != "--set"]
        changes = {key: value(text) for key, _, text in (setting.partition("=") for setting in given)}
        for workload in GRID["WORKLOADS"]:
            assert load(workload, changes)[0].experiment.topology.profile == profile
