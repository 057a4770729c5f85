"""What an emulated run takes beside its training: until its first step, at a checkpoint, at its end, and in memory.

    python benchmarks/startup.py [--cases 11,41,default] [--label LABEL] [--out results/reference/startup]

Plays the default experiment's 11 roles and 41 in eight regions for a few steps, and the default run as it is. Writes
startup.csv, where rows of other labels stay, and startup.md. On an idle machine. Exit code 1: something took too long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from testbed.report.numbers.tables import markdown_table

LOOK_S = 0.05
SHORT = ["--set", "training.steps=8", "--set", "run.checkpoint_steps=2", "--set", "run.probe_steps=0"]
EIGHT = [
    "us-east-1",
    "us-west-1",
    "eu-west-1",
    "sa-east-1",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-northeast-1",
]
ON_EIGHT = [
    *("--set", "topology.profile=wanify-8", "--set", f"topology.regions={json.dumps(EIGHT)}"),
    *("--set", "topology.server_region=us-east-1", "--set", "training.batch_size=128"),
]
CASES = {
    "11": ["--systems", "weightgrad", *SHORT],
    "41": ["--systems", "weightgrad", *SHORT, *ON_EIGHT],
    "default": [],
}
FIGURES = {
    "first_step_s": "first step (s)",
    "checkpoint_s": "a checkpoint on the way (s)",
    "beside_s": "wall time beside the emulated (s)",
    "resident_mb": "a role's memory (MB)",
    "own_mb": "of it its own",
}
BOUNDS = {
    ("11", "first_step_s"): 20,
    ("41", "first_step_s"): 60,
    ("11", "checkpoint_s"): 1,
    ("default", "beside_s"): 45,
}


@dataclass
class Watch:
    """What is seen of a run from outside, in seconds since its command was given."""

    folder: Path
    began: float
    events: Path | None = None  # of the first system
    first_step_s: float | None = None
    last_step_s: float = 0.0
    checkpoints_s: list[float] = field(default_factory=list)
    seen_bytes: int = 0

    def look(self) -> bool:
        """Read what has been recorded since the last time; whether the first step has just been made."""
        self.events = self.events or next(self.folder.glob("*/*/*/seed-*/events.jsonl"), None)
        if self.events is None:
            return False
        now_s, before = time.monotonic() - self.began, self.first_step_s
        for event in self._new(self.events):
            if event["event"] == "step":
                self.first_step_s = self.first_step_s or now_s
                self.last_step_s = now_s
            elif event["event"] == "checkpointed":
                self.checkpoints_s.append(now_s - self.last_step_s)
        return before is None and self.first_step_s is not None

    def _new(self, path: Path) -> Iterator[dict[str, Any]]:
        with path.open("rb") as file:
            file.seek(self.seen_bytes)
            for line in file:
                if line.endswith(b"\n"):
                    self.seen_bytes += len(line)
                    yield json.loads(line)


def played(options: list[str]) -> dict[str, float]:
    """The figures of one run of the default experiment with these options."""
    memory: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        line = [sys.executable, "-P", "-m", "testbed", "run", "cifarnet", "--fabric", "mininet", "--quiet", *options]
        watch = Watch(folder, time.monotonic())
        with subprocess.Popen(
            [*line, "--out", folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None:
                if watch.look():
                    memory = list(_memory_of_roles())
                time.sleep(LOOK_S)
        wall_s = time.monotonic() - watch.began
        if process.returncode or watch.first_step_s is None or not watch.checkpoints_s[:-1]:
            raise SystemExit(f"{' '.join(line)}: exit code {process.returncode}")
        [summary] = folder.glob("*/*/summary.csv")
        emulated_s = pd.read_csv(summary)["time_s"].sum()
    resident, own = (fmean(column) for column in zip(*memory, strict=True))
    on_the_way_s = median(watch.checkpoints_s[:-1])  # the first is the slowest; the last tests all models
    figures = (watch.first_step_s, on_the_way_s, wall_s - emulated_s, resident, own)
    return dict(zip(FIGURES, figures, strict=True))


def _memory_of_roles() -> Iterator[tuple[float, float]]:
    """Of each role's process its resident memory and what it shares with nobody, in MB."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and b"RoleActor" in (process / "cmdline").read_bytes():
                lines = (process / "smaps_rollup").read_text().splitlines()[1:]
                kb = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in lines)}
                yield kb["Rss"] / 1e3, (kb["Private_Clean"] + kb["Private_Dirty"]) / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--label", default="now")
    parser.add_argument("--out", type=Path, default=Path("results/reference/startup"))
    options = parser.parse_args()
    rows = [{"label": options.label, "roles": case, **played(CASES[case])} for case in options.cases]
    late = [name for row in rows for name in FIGURES if row[name] > BOUNDS.get((row["roles"], name), float("inf"))]
    options.out.mkdir(parents=True, exist_ok=True)
    table = options.out / "startup.csv"
    kept = pd.read_csv(table, dtype={"roles": str}) if table.is_file() else pd.DataFrame(columns=["label"])
    frame = pd.concat([kept[kept["label"] != options.label], pd.DataFrame(rows)], ignore_index=True)
    frame.to_csv(table, index=False, float_format="%.3g")
    cells = [[row["label"], row["roles"], *(f"{row[name]:.3g}" for name in FIGURES)] for _, row in frame.iterrows()]
    text = markdown_table(["", "roles", *FIGURES.values()], cells)
    (options.out / "startup.md").write_text(text + "\n")
    print(text)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
