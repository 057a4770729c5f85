"""How long `testbed compare` takes and what memory it needs, on records of many systems and seeds made up here.

    python benchmarks/compare.py --systems 20 --seeds 5 --steps 50000

The records are written by the testbed's own writer (each result is written once and copied: what is measured is
the reading). A step takes a second; every link has a row for each.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from testbed.record.events import Evaluated, LinkBytes, RunEnded, StepDone
from testbed.record.info import DataInfo, ResultInfo, RunInfo, write_info
from testbed.record.recorder import Recorder

REGIONS = ("us-west-1", "us-east-1", "us-east-2")
WORKERS = 4  # a region
SPENT = {"compute_s": 0.1, "codec_s": 0.01, "lan_s": 0.05, "wan_s": 0.7}


def links() -> list[str]:
    """The directed links of two regions of workers and one of the global server."""
    hosts = [f"{region}/{role}" for region in REGIONS for role in (*(f"w{k}" for k in range(WORKERS)), "lps")]
    lan = [link for host in hosts for link in (f"{host}>{host.split('/')[0]}", f"{host.split('/')[0]}>{host}")]
    return lan + [f"{a}>{b}" for a in REGIONS for b in REGIONS if a != b]


def write_result(folder: Path, steps: int) -> None:
    """The records of one system and seed, through the recorder."""
    random = np.random.default_rng(0)
    losses = 1.2 + np.exp(-np.arange(steps) / steps * 4) + random.normal(0, 0.05, steps)
    with Recorder(folder) as recorder:
        for step, loss in enumerate(losses.tolist()):
            for worker in range(2 * WORKERS):
                node = f"{REGIONS[worker // WORKERS]}/w{worker % WORKERS}"
                recorder.record(StepDone(time_s=step + 1.0, node=node, step=step, loss=loss, **SPENT))
            crossed = {link: int(random.integers(1_000_000)) for link in links()}
            recorder.record(LinkBytes(time_s=step + 1.0, interval_s=1.0, wire_bytes=crossed))
            if step % 1000 == 999:
                tests = {"time_s": step + 1.0, "step": step + 1, "loss": loss, "images": 10_000}
                recorder.record(Evaluated(model="full", accuracy=0.8 * (step + 1) / steps, **tests))
        recorder.record(RunEnded(time_s=float(steps), step=steps, how="finished"))
        recorder.finish()


def write_run(folder: Path, systems: int, seeds: int, steps: int) -> None:
    """A run of `systems` times `seeds` results."""
    names = [f"system-{k}" for k in range(systems)]
    facts = RunInfo(target="made-up", run_id=folder.name, systems=names, seeds=list(range(seeds)), profile="made-up")
    facts.experiment = {"model": "none", "target": {"loss": 1.4, "accuracy": 0.5}}
    facts.data = DataInfo(dataset="none")
    write_info(folder, facts)
    first = folder / names[0] / "seed-0"
    write_result(first, steps)
    for name in names:
        for seed in range(seeds):
            one = folder / name / f"seed-{seed}"
            if one != first:
                shutil.copytree(first, one, copy_function=_link)
    for name in names:
        for seed in range(seeds):
            write_info(folder / name / f"seed-{seed}", ResultInfo(system=name, seed=seed, status="finished"))


def _link(src: str, dst: str) -> None:
    """The same bytes under another name: a hundred copies of the events would fill the disk."""
    Path(dst).hardlink_to(src)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--keep", type=Path, help="write the records here, or read them where they are there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch) / "run"
        if not folder.exists():
            write_run(folder, options.systems, options.seeds, options.steps)
        began_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-P", "-m", "testbed", "compare", folder, "--over", "system-1"], check=True
        )
        took_s = time.perf_counter() - began_s
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{options.systems} systems x {options.seeds} seeds x {options.steps:,} steps:", end=" ")
    print(f"{took_s:.1f} s, {peak_mb:.0f} MB, exit code {done.returncode}")


if __name__ == "__main__":
    main()
