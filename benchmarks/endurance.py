"""What a long run takes: memory and open files as it goes on, its records, its report.

    python benchmarks/endurance.py [--steps 20000] [--out results/reference/endurance]

Plays so many steps of a tiny model with four workers in two regions, each system a run. Writes endurance.csv (samples
of the processes that play) and endurance.md. Exit code 1: something grew, or was too much.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd

from testbed.report.numbers.tables import markdown_table

EXPERIMENT = """\
title = "A long run of a tiny model"
[topology]
profile = "weightgrad-ec2"
regions = ["us-west-1", "us-east-1"]
workers_per_region = 2
server_region = "us-east-2"
[model]
name = "tiny"
[data]
dataset = "synthetic"
[training]
steps = {steps}
batch_size = 16
[compute]
device = "m60"
[run]
fabric = "virtual"
checkpoint_steps = 1000
eval_images = 50
[systems.{system}]
"""
SAMPLE_S = 0.5
WARM = 0.1  # of the run's wall time: libraries load, caches fill
MOST_BYTES_A_STEP, MOST_REPORT_S, MOST_GROWTH = 1000, 30.0, 0.02


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", "testbed", *map(str, words)]


def sampled(line: list[str], folder: Path) -> pd.DataFrame:
    """Memory (MB) and open files of a command, all its processes together, every `SAMPLE_S` seconds of its life."""
    rows, began = [], time.monotonic()
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            sums = [sum(column) for column in zip(*map(_held, _family(process.pid)), strict=True)]
            if sums:
                rows.append({"at_s": time.monotonic() - began, "memory_mb": sums[0], "files": sums[1]})
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit(f"{' '.join(line)}: exit code {process.returncode}")
    return pd.DataFrame(rows)


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _held(pid: int) -> tuple[float, int]:
    """Resident memory in MB, and open files; nothing of a process that has just ended."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * 4096 / 1e6, len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0.0, 0


def judged(frame: pd.DataFrame, bytes_a_step: float, report_s: float) -> list[tuple[str, str, str, bool]]:
    """What was measured, its figure, its bound, and whether it keeps to it."""
    # Between the start, when libraries load, and the end, when pictures are drawn.
    share = frame["at_s"] / frame["at_s"].max()
    played = frame[(share > WARM) & (share < 1 - WARM)]
    early, late = (part.median() for part in (played.head(len(played) // 4), played.tail(len(played) // 4)))
    memory, files = (f"{early[name]:.0f}, {late[name]:.0f}" for name in ("memory_mb", "files"))
    return [
        (
            "memory in the first and last quarter (MB)",
            memory,
            f"{MOST_GROWTH:.0%} more",
            bool(late["memory_mb"] < early["memory_mb"] * (1 + MOST_GROWTH)),
        ),
        ("open files, the same", files, "as many", bool(late["files"] <= early["files"])),
        ("records (bytes a step)", f"{bytes_a_step:.0f}", f"{MOST_BYTES_A_STEP:,}", bytes_a_step < MOST_BYTES_A_STEP),
        ("`testbed report` (s)", f"{report_s:.1f}", f"{MOST_REPORT_S:.0f}", report_s < MOST_REPORT_S),
    ]


def played(system: str, steps: int) -> tuple[pd.DataFrame, list[tuple[str, str, str, bool]]]:
    """The samples of a run of one system, and what they come to."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "long.toml").write_text(EXPERIMENT.format(steps=steps, system=system))
        frame = sampled(command("run", "long.toml", "--out", "results", "--jobs", "1", "--quiet"), folder)
        [run] = folder.glob("results/long/*")
        record_bytes = sum(path.stat().st_size for path in (run / system).rglob("*") if path.is_file())
        began = time.monotonic()
        subprocess.run(command("report", run), check=True, stdout=subprocess.DEVNULL)
        return frame.assign(system=system), judged(frame, record_bytes / steps, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--systems", type=lambda text: text.split(","), default=["baseline", "terngrad"])
    parser.add_argument("--out", type=Path, default=Path("results/reference/endurance"))
    options = parser.parse_args()
    runs = {system: played(system, options.steps) for system in options.systems}
    options.out.mkdir(parents=True, exist_ok=True)
    frame = pd.concat([frame for frame, _ in runs.values()], ignore_index=True)
    frame.to_csv(options.out / "endurance.csv", index=False, float_format="%.4g")
    figures = [(system, *row) for system, (_, rows) in runs.items() for row in rows]
    cells = [[system, what, figure, bound, "" if kept else "missed"] for system, what, figure, bound, kept in figures]
    table = markdown_table([f"{options.steps:,} steps of a tiny model", "", "figure", "at most", ""], cells)
    (options.out / "endurance.md").write_text(table + "\n")
    print(table)
    return 0 if all(kept for *_, kept in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
