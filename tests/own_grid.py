"""What the tests of `benchmarks/own_grid` share: its scripts, and rows as it has them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
SCRIPTS = HOME / "benchmarks" / "own_grid"
GRID: dict[str, Any] = runpy.run_path(str(SCRIPTS), run_name="imported")
ROWS: dict[str, Any] = runpy.run_path(str(SCRIPTS / "own_rows.py"), run_name="imported")
MAP: dict[str, Any] = runpy.run_path(str(SCRIPTS / "own_map.py"), run_name="imported")
PLAYS, TUNED = (sys.modules[name] for name in ("own_plays", "own_tuned"))


def rows(device: str, system: str, *target_s: float | None, waiting: float = 0.1, later_s: float = 0.0) -> list[Any]:
    cell = {"workload": "own", "profile": "lan", "device": device, "system": system, "resolution": 0.05}
    computing_s = [None if each is None else each * (1 - waiting) for each in target_s]
    held_s = [None if each is None else each + later_s for each in target_s]
    return [
        {**cell, "seed": seed, "target_s": reported, "held_s": held, "computing_s": computing}
        for seed, (reported, held, computing) in enumerate(zip(target_s, held_s, computing_s, strict=True))
    ]
