"""The benchmarks, which nobody runs every day, still find what they measure."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_finds_what_it_imports(path: Path) -> None:
    assert "main" in runpy.run_path(str(path), run_name="imported")
