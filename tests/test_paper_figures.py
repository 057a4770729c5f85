"""The papers' figures that are made by programs of their own: what is counted in them."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
HISTOGRAMS: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "terngrad_histograms.py"), run_name="imported")
THRESHOLDS: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "threshold_figures.py"), run_name="imported")


def test_a_gaussian_is_clipped_as_calculated() -> None:
    """And as TernGrad says of its gradients: shorter by 1.0 to 1.5 %, turned by 2 to 3 degrees (section 3.3)."""
    random = np.random.default_rng(0)
    x = random.normal(size=400_000).astype(np.float32)
    clipped = x.clip(-2.5, 2.5)
    trits = np.sign(clipped) * (random.random(x.size) < np.abs(clipped) / 2.5)
    stages = {"original": x, "clipped": clipped, "ternary": trits, "final": trits}
    found, expected = HISTOGRAMS["figures"](HISTOGRAMS["Seen"](0, "conv2.weight", stages)), HISTOGRAMS["gaussian"](2.5)
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=0.03, abs=0.02)
    assert 0.010 < expected["shorter"] < 0.015 and 2 < expected["turned_degrees"] < 3


@pytest.mark.slow
def test_histograms_are_of_what_the_codec_makes(small_data: None) -> None:
    steps = 3
    task = HISTOGRAMS["experiment_of"](steps).task(0)
    found = list(HISTOGRAMS["training"](task, steps, range(0, steps, 2)))
    assert [(it.step, it.layer) for it in found] == [(step, layer) for step in (0, 2) for layer in HISTOGRAMS["LAYERS"]]
    for it in found:
        original, clipped, trits, mean = (it.stages[name] for name in HISTOGRAMS["STAGES"])
        bound = np.abs(clipped).max()
        assert np.array_equal(clipped, original.clip(-bound, bound))
        assert bound == pytest.approx(2.5 * original.std(), rel=1e-4)
        levels = np.unique(trits)
        assert len(levels) == 3 and levels[0] == -levels[2] and levels[2] >= bound and levels[1] == 0
        assert set(np.unique(mean)) <= {np.float32(count * levels[2] / 2) for count in range(-2, 3)}


@pytest.mark.slow
def test_gradients_go_on_from_averaged_trits(small_data: None) -> None:
    """What is looked at does not change what is trained."""
    task = HISTOGRAMS["experiment_of"](3).task(0)
    last = [list(HISTOGRAMS["training"](task, 3, range(first, 3)))[-1] for first in (0, 2)]
    assert np.array_equal(last[0].stages["original"], last[1].stages["original"])


@pytest.mark.parametrize(
    ("system", "buffers", "values"),
    [
        ("wgt", [104, 267, 26, 295, 2517], 839),  # three bytes a value
        ("bgt", [104, 267, 12], 96),  # a bit
        ("qgt", [104, 267, 12, 40], 96),
        ("wgt", [104, 0, 26, 0, 0], 0),
    ],
)
def test_values_of_a_message_are_counted_by_its_buffers(system: str, buffers: list[int], values: int) -> None:
    assert THRESHOLDS["count"](system, buffers) == values


def test_a_share_is_the_mean_over_workers() -> None:
    sizes = {
        ("rack-1/w0", "gradient"): {0: [0, 0, 0, 0, 30], 1: [0, 0, 0, 0, 0]},
        ("rack-1/w1", "gradient"): {0: [0, 0, 0, 0, 90], 1: [0, 0, 0, 0, 60]},
        ("gs", "gradient"): {0: [0, 0, 0, 0, 900], 1: [0, 0, 0, 0, 900]},
    }
    assert THRESHOLDS["shares"]("wgt", sizes, 100) == pytest.approx([0.2, 0.1])


def test_papers_shares_follow_from_its_bytes() -> None:
    """Section 4: 1.75 % at T = 5e-3 (WGT); a value of BGT has one bit, one of QGT eight."""
    paper = THRESHOLDS["paper_points"]()
    shares = {name: THRESHOLDS["paper_share"](name, paper) for name in THRESHOLDS["SHOWN"]}
    assert shares == pytest.approx({"wgt": 0.0175, "bgt": 0.00728, "qgt": 0.00927}, rel=0.01)


def test_every_row_of_the_papers_tables_has_a_point_here() -> None:
    kept = THRESHOLDS["kept_points"](ROOT / "results" / "reference" / "papers" / "threshold-nin")
    paper = THRESHOLDS["paper_points"]()
    assert len(kept) == len(paper) == 18
    assert set(zip(kept["system"], kept["threshold"], strict=True)) == set(
        zip(paper["system"], paper["threshold"], strict=True)
    )
    assert kept["sent"].between(0, 1).all() and kept["above"].between(-10, 1).all()
