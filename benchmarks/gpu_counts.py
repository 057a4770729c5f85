"""What a step of CifarNet asks of a GPU, by system, and how long one would need: counted on a stand-in device.

    python benchmarks/gpu_counts.py [--out results/reference/gpu] [--systems baseline,terngrad] [--batch 512]

Eight workers with a batch of 512 together, as in WeightGrad's table 2 (`experiments/systems.toml`). Losses, and whether
vectors were finite, are read once in `--steps` steps (two waits); a run reads them at its tests, every 10 steps. Writes
counts.json and counts.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from testbed.experiment.load import load
from testbed.gpu import notes
from testbed.harness.gpu.counts import StepCounts, count
from testbed.harness.gpu.needed import FIGURES, records, table
from testbed.report.numbers.tables import markdown_table

GPU = "h100"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--systems", default="", help="names with commas between; all")
    arguments.add_argument("--batch", type=int, default=512, help="of all workers together")
    arguments.add_argument("--steps", type=int, default=4)
    options = arguments.parse_args()
    (point,) = load("systems", {"training.batch_size": options.batch, "run.fabric": "virtual"})
    experiment = point.experiment
    wanted = options.systems.split(",") if options.systems else list(experiment.systems)
    found: dict[str, StepCounts] = {}
    for system in wanted:
        found[system] = count(experiment, system, options.steps)
        print(system, f"{found[system].launches:.0f} started, {found[system].waits:.2g} waits", flush=True)
    lines = markdown_table(*table(found, FIGURES[GPU])) + "\n\n" + _where(found) + _notes()
    print(lines)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "counts.md").write_text(lines)
        (options.out / "counts.json").write_text(json.dumps({"gpu": GPU, "systems": records(found)}, indent=1) + "\n")


def _where(found: dict[str, StepCounts]) -> str:
    """Who waits, of each system, and how many times a step."""
    lines = ["Where a step waits, and how many times:", ""]
    for system, counts in found.items():
        by_place: Counter[str] = Counter()
        for place, waits in counts.waits_at.items():
            file, _, function = place.partition(" ")
            by_place[f"`{file.partition(':')[0]}`, {function}"] += waits  # type: ignore[assignment]
        lines.append(f"- {system}: " + "; ".join(f"{place}: {waits:.2g}" for place, waits in by_place.most_common()))
    return "\n".join(lines) + "\n"


def _notes() -> str:
    return "\n" + "".join(f"- {line}\n" for line in notes.said()) if notes.said() else ""


if __name__ == "__main__":
    main()
