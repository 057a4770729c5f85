"""What a Ray cluster costs: a sweep of 24 plays on four nodes of this machine, beside the same with `--jobs 2`.

    python benchmarks/cluster.py [--steps 40] [--pairs 2] [--out results/reference/cluster]

Each node is a raylet with a core and an address of its own; all share this machine's cores, so no speedup is to be seen
but what the cluster takes beside the plays. The first sweep on the cluster begins cold: its nodes have never seen the
testbed. Writes cluster.csv and cluster.md. On an idle machine. Exit code 1: records differ, or it took too long.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from testbed.report.numbers.tables import markdown_table

NODES, PLAYS = 4, 24
SWEEP = [
    *("cifarnet", "--fabric", "virtual", "--systems", "baseline,terngrad,weightgrad,gaia", "--seeds", "0,1,2"),
    *("--sweep", "topology.wan_factor=0.5,1", "--quiet"),
]
KEPT = ("events.jsonl", "*.parquet", "model.npz", "summary.csv")
MOST_SHARE, MOST_S_A_PLAY = 0.05, 2.0
AROUND = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "PYTHONSAFEPATH": "1"}


@contextmanager
def cluster() -> Iterator[str]:
    """Four nodes on this machine; gives their address."""
    os.environ.update(AROUND)
    from ray.cluster_utils import Cluster

    def node(number: int) -> dict[str, object]:
        return {"num_cpus": 1, "node_ip_address": f"127.0.0.{number}", "object_store_memory": 80 << 20}

    nodes = Cluster(initialize_head=True, head_node_args={**node(2), "include_dashboard": False})
    try:
        for number in range(3, 2 + NODES):
            nodes.add_node(**node(number))
        yield str(nodes.address)
    finally:
        nodes.shutdown()


def played(folder: Path, *words: str) -> float:
    """How long the sweep takes, in seconds."""
    began_s = time.monotonic()
    line = [sys.executable, "-P", "-m", "testbed", "run", *SWEEP, *words, "--out", str(folder)]
    subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.monotonic() - began_s


def recorded(folder: Path) -> dict[str, bytes]:
    """What must not depend on where it was played."""
    [run] = folder.glob("*/*")
    found = {str(path.relative_to(run)): path.read_bytes() for kind in KEPT for path in run.rglob(kind)}
    assert sum(name.endswith("model.npz") for name in found) == PLAYS
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/reference/cluster"))
    options = parser.parse_args()
    length = ["--set", f"training.steps={options.steps}", "--set", f"run.checkpoint_steps={options.steps}"]
    rows, differing = [], 0
    with tempfile.TemporaryDirectory() as temporary, cluster() as address:
        for number in range(options.pairs):
            there, here = Path(temporary, f"there-{number}"), Path(temporary, f"here-{number}")
            there_s = played(there, *length, "--ray", address)
            here_s = played(here, *length, "--jobs", "2")
            theirs, ours = recorded(there), recorded(here)
            differing += sum(theirs.get(name) != ours[name] for name in ours)
            row = {"nodes": "cold" if number == 0 else "warm", "home_s": here_s, "cluster_s": there_s}
            rows.append({**row, "share": there_s / here_s - 1, "s_a_play": (there_s - here_s) / PLAYS})
            print(rows[-1], flush=True)
    frame = pd.DataFrame(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / "cluster.csv", index=False, float_format="%.4g")
    heads = [f"{PLAYS} plays of {options.steps} steps", "`--jobs 2` (s)", f"{NODES} nodes (s)", "more", "s a play"]
    cells = [
        [
            row["nodes"],
            f"{row['home_s']:.1f}",
            f"{row['cluster_s']:.1f}",
            f"{row['share']:.1%}",
            f"{row['s_a_play']:.2f}",
        ]
        for row in rows
    ]
    (options.out / "cluster.md").write_text(markdown_table(heads, cells) + "\n")
    print(f"{markdown_table(heads, cells)}\n{differing} files differ")
    warm = frame[frame["nodes"] == "warm"]
    late = (warm["share"] > MOST_SHARE).any() or (frame["s_a_play"] > MOST_S_A_PLAY).any()
    return 1 if differing or late else 0


if __name__ == "__main__":
    sys.exit(main())
