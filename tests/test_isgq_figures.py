"""The computations of the script that makes ISGQ's figures: the best quantizer, zeros, and its kept tables."""

from __future__ import annotations

import runpy
from math import pi
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch

from testbed.codecs.base import Key
from testbed.codecs.factors import LloydMax
from testbed.layout import Layout

ROOT = Path(__file__).parents[1]
FIGURES: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "isgq_figures.py"), run_name="imported")
NORMAL = np.array([NormalDist().inv_cdf((k + 0.5) / 100_000) for k in range(100_000)])


@pytest.mark.parametrize(("levels", "nmse", "entropy"), [(2, 0.3634, 1.0), (4, 0.1175, 1.911), (8, 0.03454, 2.825)])
def test_a_normal_signals_best_quantizer_is_maxs(levels: int, nmse: float, entropy: float) -> None:
    """Max 1960, table 1."""
    assert FIGURES["optimum"](NORMAL, (levels,))[levels] == pytest.approx((nmse, entropy), rel=2e-3)


def test_a_half_normal_signal_loses_less_to_two_levels() -> None:
    nmse, _ = FIGURES["optimum"](np.maximum(NORMAL, 0), (2,))[2]
    assert nmse < 1 - 2 / pi


def test_as_many_levels_as_values_lose_nothing() -> None:
    values = np.array([0.0] * 50 + [1.0] * 25 + [-3.0] * 25)
    found = FIGURES["optimum"](values, (2, 3, 8))
    assert found[3] == found[8] and found[3] == pytest.approx((0.0, 1.5))
    assert found[2][0] == pytest.approx((50 / 9 + 25 * 4 / 9) / 250)  # 0 and 1 become 1/3
    assert found[2][1] == pytest.approx(0.8113, rel=1e-3)  # of a quarter and three


def test_zeros_are_exact() -> None:
    assert FIGURES["zeros"](np.array([0.0, -0.0, 1e-30, 5.0])) == 0.5


def test_what_a_message_brings_is_the_product_of_the_decoded_factors() -> None:
    layout = Layout.of([("fc.weight", (3, 4)), ("fc.bias", (3,))])
    x = torch.tensor([[0.0, 2.0, 0.0, 2.0], [2.0, 0.0, 0.0, 2.0]])
    delta = torch.tensor([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]])
    received, bits = FIGURES["brought"](layout, LloydMax(layout, 2, 2), (x, delta), Key(0, 0, 0))
    assert torch.equal(received, delta.T @ x / 2)  # of values that are levels nothing is lost
    assert bits >= 8 * 6 / 12


def test_tables_are_those_of_the_points() -> None:
    kept = ROOT / "results" / "reference" / "isgq-figures"
    frame = FIGURES["read"](kept / "isgq-figures.csv")
    assert (kept / "isgq-figures.md").read_text() == FIGURES["markdown"](frame)


@pytest.mark.slow
def test_a_figure_is_drawn_of_points_without_a_spread(tmp_path: Path) -> None:
    found = {("1", "baseline", step): [step / 100] for step in range(20, 120, 20)}
    found |= {(figure, "G", 2): [0.5] for figure in ("2a", "2b", "2c", "3", "bits")} | {("4", "isgq-mse-2", 1): [0.9]}
    frame = FIGURES["points"](found)
    assert "nan" not in FIGURES["markdown"](frame)
    FIGURES["save"](FIGURES["draw"](frame), tmp_path / "figures.png")
    assert (tmp_path / "figures.png").stat().st_size > 5000
