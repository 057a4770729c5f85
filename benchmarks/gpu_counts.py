"""What a step of CifarNet asks of a GPU, by system, and how long one would need: counted on a stand-in device.

    python benchmarks/gpu_counts.py [--out results/reference/gpu] [--systems baseline,terngrad] [--batch 512]

Eight workers with a batch of 512 together, as in WeightGrad's table 2 (`experiments/systems.toml`). How many operations
there are does not depend on the batch, and how much memory the gradients move is linear in it: so steps are counted
with a small batch, and what each further example moves is the difference of two, of the baseline; of a system whose
messages grow with the batch, its own. Losses, and whether vectors were finite, are read once in `--steps` steps (two
waits); a run reads them at its tests, every 10 steps. What happens every 20 steps, as meetings of copies do, is in 20
`--steps` once.
Writes counts.json and counts.md, and goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from testbed.experiment.load import load
from testbed.experiment.schema import Experiment
from testbed.gpu import notes
from testbed.harness.gpu.counts import StepCounts, count
from testbed.harness.gpu.needed import FIGURES, read, records, table
from testbed.report.numbers.tables import markdown_table

GPU = "h100"
COUNTED = 16  # examples of all workers together
OTHER = 48
GROWING = ("up", "down", "touched", "flops")  # with the batch


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, default=Path("build/gpu-counts"))
    arguments.add_argument("--systems", default="", help="names with commas between; all of the experiment")
    arguments.add_argument("--batch", type=int, default=512, help="of all workers together")
    arguments.add_argument("--steps", type=int, default=4)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / "counts.json"
    found: dict[str, StepCounts] = {}
    if kept.is_file() and (before := json.loads(kept.read_text()))["batch"] == options.batch:
        found, said = read(before["systems"]), before["notes"]
        for line in said:
            notes.note(line)
    few = _experiment(COUNTED, options.systems.split(",") if options.systems else [])
    wanted = list(few.systems)
    order = dict.fromkeys([*_experiment(COUNTED).systems, *wanted])
    if missing := [system for system in wanted if system not in found]:
        for system in missing:
            gc.collect()  # vectors of the last one, which are few and large, wait in cycles
            growth = _growth("baseline" if few.kind_of(system).sums_gradients else system, options.steps)
            found[system] = _grown(count(few, system, options.steps), growth, options.batch - COUNTED)
            print(system, f"{found[system].launches:.0f} started, {found[system].waits:.2g} waits", flush=True)
            _write(options.out, options.batch, {name: found[name] for name in order if name in found})
    print((options.out / "counts.md").read_text())


def _write(out: Path, batch: int, found: dict[str, StepCounts]) -> None:
    content = {"gpu": GPU, "batch": batch, "notes": notes.said(), "systems": records(found)}
    (out / "counts.json").write_text(json.dumps(content, indent=1) + "\n")
    lines = markdown_table(*table(found, FIGURES[GPU])) + "\n\n" + _where(found) + _notes()
    (out / "counts.md").write_text(lines)


def _experiment(batch: int, systems: Sequence[str] = ()) -> Experiment:
    changes = {"training.batch_size": batch, "run.fabric": "virtual", "run.seeds": [0]}
    (point,) = load("systems", changes, systems=systems)
    return point.experiment


@cache
def _growth(system: str, steps: int) -> dict[str, float]:
    """What each further example adds to a step."""
    one, other = (count(_experiment(batch, [system]), system, steps) for batch in (COUNTED, OTHER))
    return {name: (getattr(other, name) - getattr(one, name)) / (OTHER - COUNTED) for name in GROWING}


def _grown(counts: StepCounts, growth: dict[str, float], examples: int) -> StepCounts:
    return replace(counts, **{name: getattr(counts, name) + growth[name] * examples for name in GROWING})


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
