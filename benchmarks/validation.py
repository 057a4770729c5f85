"""Predictions held against what others measured: DiLoCo on four hosts whose links were shaped.

    python benchmarks/validation.py [--out results/reference/validation]

Nothing is fitted. What goes in is the number of parameters, the rate that `tc` was set to (which counts headers, so
that TCP delivers less), h, and the median time of a local step; what comes out is how long a synchronisation blocks,
and the share of the time that computes. The synchronisation is `local-sgd`'s, a ring all-reduce of as many float32
values. Predicted, not measured by anyone, are the rows of other rates and of local SGD, which sends the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from testbed.experiment.load import from_dict
from testbed.harness import plan
from testbed.message import PAYLOAD_PER_WIRE
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE

MEASURED = Path(__file__).parent / "measured" / "diloco.csv"
PARAMETERS, HOSTS = 30_846_720, 4
RTT_MS = 0.2  # "well under 1 ms": the profiles' LAN
ALSO_MBIT = (50, 1000)
HEADS = (
    "algorithm",
    "h",
    "Mbit/s",
    "sync (ms): measured",
    "predicted",
    "error",
    "computing: measured",
    "predicted",
    "error",
)


def predicted(rate_mbit: float, period: int, compute_ms: float) -> tuple[float, float]:
    """How long a synchronisation blocks, in ms, and the share of the time that computes."""
    data = {
        "topology": {
            "profile": "lan",
            "regions": ["us-east-1"],
            "server_region": "us-east-1",
            "workers_per_region": HOSTS,
            "lan_mbit": rate_mbit * PAYLOAD_PER_WIRE,
        },
        "model": {"name": "vector", "parameters": PARAMETERS},
        "training": {"steps": 1000, "batch_size": HOSTS},
        "compute": {"device": "l40s", "math": "none"},
        "systems": {"local-sgd": {"local_steps": max(period, 2)}},
        "run": {"fabric": "virtual", "link_interval_s": 1e9},
    }
    experiment = plan.step_device(from_dict(data, "validation"), compute_ms / 1e3)
    timed = plan.timed(experiment, "local-sgd")
    assert timed.local_s is not None
    sync_s = timed.sync_s - timed.local_s
    return 1e3 * sync_s, period * compute_ms / (period * compute_ms + 1e3 * sync_s)


def compared() -> pd.DataFrame:
    """A row for each algorithm, h and rate: measured (the median of the repeats) and predicted."""
    rows = pd.read_csv(MEASURED, comment="#")
    compute_ms = float(rows["compute_ms_median"].median())
    measured = rows.groupby(["algorithm", "h", "rate_mbit"])[["sync_ms_median", "compute_share"]].median()
    found = []
    for algorithm in ("diloco", "local SGD"):
        for period in sorted(rows["h"].unique()):
            for rate in sorted({*rows["rate_mbit"], *ALSO_MBIT}):
                sync_ms, share = predicted(rate, int(period), compute_ms)
                known = measured.loc[(algorithm, period, rate)] if (algorithm, period, rate) in measured.index else None
                found.append(
                    {
                        "algorithm": algorithm,
                        "h": period,
                        "rate_mbit": rate,
                        "sync_ms": None if known is None else known["sync_ms_median"],
                        "predicted_sync_ms": sync_ms,
                        "share": None if known is None else known["compute_share"],
                        "predicted_share": share,
                    }
                )
    frame = pd.DataFrame(found)
    for name in ("sync_ms", "share"):
        frame[f"{name}_error"] = frame[f"predicted_{name}"] / frame[name] - 1
    return frame


def summary(frame: pd.DataFrame) -> str:
    """Median and worst error, in words."""
    parts = []
    for name, words in (("sync_ms", "of the time of a synchronisation"), ("share", "of the share that computes")):
        errors = frame[f"{name}_error"].abs().dropna()
        parts.append(f"{words}: median {100 * errors.median():.1f} %, worst {100 * errors.max():.1f} %")
    return f"Errors {'; '.join(parts)}, of {len(errors)} rows."


def markdown(frame: pd.DataFrame) -> str:
    """The table, and what is to be said of it."""
    cells = [
        [
            row.algorithm,
            f"{row.h}",
            f"{row.rate_mbit:,}",
            NONE if pd.isna(row.sync_ms) else f"{row.sync_ms:,.0f}",
            f"{row.predicted_sync_ms:,.0f}",
            NONE if pd.isna(row.sync_ms_error) else f"{100 * row.sync_ms_error:+.1f} %",
            NONE if pd.isna(row.share) else f"{100 * row.share:.2f} %",
            f"{100 * row.predicted_share:.2f} %",
            NONE if pd.isna(row.share_error) else f"{100 * row.share_error:+.1f} %",
        ]
        for row in frame.itertuples()
    ]
    return f"{markdown_table(list(HEADS), cells)}\n\n{summary(frame)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write diloco.csv and diloco.md there")
    options = parser.parse_args()
    frame = compared()
    print(markdown(frame), end="")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        frame.to_csv(options.out / "diloco.csv", index=False, float_format="%.6g")
        (options.out / "diloco.md").write_text(markdown(frame))


if __name__ == "__main__":
    main()
