"""Thresholded gradients' figures 3 to 8: accuracy against what workers send, and the share of values sent by step.

    python benchmarks/threshold_figures.py [--steps 100] [--records build/threshold-figures]
                                           [--series results/reference/papers/threshold-nin]
                                           [--out results/reference/threshold-figures]

Figures 3, 5 and 7 are drawn from the kept series of `experiments/threshold-nin.toml`, a point for each row of the
paper's tables 1 to 3: accuracy and bytes are set against the baseline's of the same place. For figures 4, 6 and 8 that
experiment is played once more at the figures' thresholds, or what was recorded is read. A record says how long each
buffer of a worker's messages is; a value of `wgt` has three bytes in the last of them, one of `bgt` and `qgt` a bit
among the signs, so that up to seven values too many are counted there. The lines of the paper's figures are not in its
text: what stands beside ours is the mean share that follows from the bytes in its tables. Writes
threshold-figures.csv (by step), .md and .png.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.lines import Line2D

from testbed.experiment.sizes import Recorded
from testbed.interpreter import testbed as command
from testbed.record.info import RunInfo, read_info
from testbed.report.looks import look
from testbed.report.numbers.tables import markdown_table
from testbed.report.papers.stated import numbers
from testbed.report.pictures.parts import PLAIN, stroke
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, save
from testbed.roles.roles import kind_of

NAME, EXPERIMENT = "threshold-figures", "threshold-nin"
PAPER_GBYTE = 53_433.0368  # 3.1: 13,358,259,200,000 gradients of 32 bits


class Shown(NamedTuple):
    """A system's two figures in the paper: their numbers, T of the second, bits of a value in the paper's tables."""

    accuracy: int
    share: int
    threshold: float
    bits: int


SHOWN = {"wgt": Shown(3, 4, 5e-3, 32), "bgt": Shown(5, 6, 8.75e-3, 1), "qgt": Shown(7, 8, 8.75e-3, 8)}
SENT = re.compile(r"what all workers send, (\w+), threshold (\S+) \|.*\((\S+) % of the baseline's\) \|$", re.MULTILINE)
ENDS = 0.2  # of the steps: the first and the last fifth are compared


def kept_points(folder: Path) -> pd.DataFrame:
    """Of the kept series: system, threshold, `sent` (of the baseline's bytes), `above` (its accuracy, in points)."""
    sent = {
        (system.lower(), float(threshold)): float(percent) / 100
        for system, threshold, percent in SENT.findall((folder / "summary.md").read_text())
    }
    frame, rows = pd.read_csv(folder / "summary.csv"), []
    for point, here in frame.groupby("point", sort=False):
        accuracy = here.groupby("system")["final_accuracy"].mean()
        for system, threshold in re.findall(r"(\w+)\.threshold=([\d.e-]+?)(?=-\w+\.|$)", str(point)):
            above = 100 * (accuracy[system] - accuracy["baseline"])
            rows.append({"system": system, "threshold": float(threshold), "above": above})
    points = pd.DataFrame(rows)
    points["sent"] = [sent[row.system, row.threshold] for row in points.itertuples()]
    return points


def paper_points() -> pd.DataFrame:
    """The same of the paper's tables 1 to 3."""
    stated = [number for number in numbers() if number.source == "thresholds"]
    accuracy, gbyte = (
        {(one.system, threshold(one.point)): one.value for one in stated if one.quantity == quantity}
        for quantity in ("accuracy", "sent-gbyte")
    )
    rows = [
        {
            "system": system,
            "threshold": at,
            "above": 100 * (accuracy[system, at] - accuracy["baseline", None]),
            "sent": sent / PAPER_GBYTE,
        }
        for (system, at), sent in gbyte.items()
        if system in SHOWN
    ]
    return pd.DataFrame(rows)


def threshold(point: dict[str, float | str]) -> float | None:
    """T among the settings that a number of the paper is tied to."""
    found = [float(value) for key, value in point.items() if key.endswith("threshold")]
    return found[0] if found else None


def paper_share(system: str, points: pd.DataFrame) -> float:
    """The mean share of values sent that follows from the bytes in the paper's tables, at the figure's threshold."""
    shown = SHOWN[system]
    here = points[(points["system"] == system) & (points["threshold"] == shown.threshold)]
    return float(here["sent"].iloc[0]) * 32 / shown.bits


def count(system: str, buffers: Sequence[int]) -> int:
    """How many values are in a worker's message, by the bytes of its buffers."""
    return buffers[-1] // 3 if system == "wgt" else 8 * buffers[2]


def shares(system: str, sizes: dict[tuple[str, str], Any], elements: int) -> list[float]:
    """The share of a gradient's values that workers send, step by step, the mean over them."""
    senders = [steps for (sender, _), steps in sizes.items() if kind_of(sender) == "worker"]
    steps = range(1 + max(max(each) for each in senders))
    return [sum(count(system, each[step]) for each in senders) / (len(senders) * elements) for step in steps]


def recorded(records: Path, steps: int) -> pd.DataFrame:
    """Plays the three systems, or reads what was recorded: the share sent by step, a column for each."""
    found = sorted((records / EXPERIMENT).glob("*/run.json"))
    if found:
        subprocess.run(command("run", "--resume", str(found[-1].parent), "--quiet"), check=True)
    else:
        settings = {f"systems.{name}.threshold": shown.threshold for name, shown in SHOWN.items()}
        settings |= {"training.steps": steps, "run.checkpoint_steps": steps, "run.probe_steps": 0}
        sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value:g}")]
        played = ["run", EXPERIMENT, "--systems", ",".join(SHOWN), "--out", str(records), "--quiet", *sets]
        subprocess.run(command(*played), check=True)
    folder = sorted((records / EXPERIMENT).glob("*/run.json"))[-1].parent
    facts = read_info(folder, RunInfo)
    if facts.data.stand_in:
        raise SystemExit("CIFAR-10 is not in $TESTBED_DATA, and of other data there is no figure")
    columns = {}
    for system in SHOWN:
        record = Recorded.read(folder, system, facts.seeds[0], facts.parameters)
        assert record is not None
        columns[system] = shares(system, record.sizes, facts.parameters)
    return pd.DataFrame(columns).rename_axis("step")


def markdown(by_step: pd.DataFrame, kept: pd.DataFrame, paper: pd.DataFrame) -> str:
    """One table for the points of figures 3, 5 and 7, and one for the lines of figures 4, 6 and 8."""
    beside = kept.merge(paper, on=["system", "threshold"], suffixes=("", "_paper"))
    points = [
        [
            f"{SHOWN[row.system].accuracy}",
            look(row.system).label,
            f"{row.threshold:g}",
            _percent(row.sent_paper),
            _percent(row.sent),
            _points(row.above_paper),
            _points(row.above),
        ]
        for name in SHOWN
        for row in beside[beside["system"] == name].itertuples()
    ]
    heads = ["figure", "system", "T", "sent, paper", "here", "accuracy above the baseline's, paper", "here"]
    some = max(1, round(ENDS * len(by_step)))
    lines = []
    for name, shown in SHOWN.items():
        line = by_step[name]
        lines.append(
            [
                f"{shown.share}",
                look(name).label,
                f"{shown.threshold:g}",
                _percent(paper_share(name, paper)),
                _percent(line.mean()),
                _percent(line.head(some).mean()),
                _percent(line.tail(some).mean()),
            ]
        )
    ends = [f"in the first {some} steps", f"in the last {some}"]
    steps = ["figure", "system", "T", "share of values sent, paper", "here", *ends]
    return f"{markdown_table(heads, points)}\n\n{markdown_table(steps, lines)}\n"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _points(points: float) -> str:
    return f"{points:+.1f} points".replace("-", "−")


def draw(by_step: pd.DataFrame, kept: pd.DataFrame, paper: pd.DataFrame) -> Sheet:
    """A column for each system: accuracy over what is sent, and the share of values sent over steps."""
    with drawing(COLUMN):
        figure = Sheet(6.9, 4.2, COLUMN)
        grid = figure.subplots(2, len(SHOWN), sharey="row")
        for (above, below), (name, shown) in zip(grid.T, SHOWN.items(), strict=True):
            for points, changes in ((paper, {"color": INK.text, "linestyle": ":"}), (kept, {"linestyle": "-"})):
                here = points[points["system"] == name].sort_values("sent")
                above.plot(100 * here["sent"], here["above"], **stroke(name, **changes))
            above.axhline(0, color=INK.rule, lw=0.8, zorder=0)
            above.set_xscale("log")
            above.xaxis.set_major_formatter(PLAIN)
            above.set_title(f"{look(name).label}, figures {shown.accuracy} and {shown.share}")
            above.set_xlabel("sent, % of the baseline's bytes")
            below.plot(by_step.index + 1, 100 * by_step[name], **stroke(name, linestyle="-", marker=""))
            below.axhline(100 * paper_share(name, paper), color=INK.text, ls=":", lw=1.3)
            below.set(xlabel=f"step, T = {shown.threshold:g}", xlim=(0, len(by_step)))
            below.set_ylim(bottom=0)
        grid[0, 0].set_ylabel("accuracy above\nthe baseline's (points)")
        grid[1, 0].set_ylabel("share of values sent (%)")
        words = "the paper: above its points, below its mean over 220,000 steps"
        handles = [
            Line2D([], [], color=INK.muted, ls="-", label="here"),
            Line2D([], [], color=INK.text, ls=":", label=words),
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=2)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--records", type=Path, default=Path("build") / NAME)
    parser.add_argument("--series", type=Path, default=Path("results/reference/papers") / EXPERIMENT)
    parser.add_argument("--out", type=Path, default=Path("results/reference") / NAME)
    options = parser.parse_args()
    kept, paper = kept_points(options.series), paper_points()
    by_step = recorded(options.records, options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    by_step.to_csv(options.out / f"{NAME}.csv", float_format="%.6g")
    (options.out / f"{NAME}.md").write_text(markdown(by_step, kept, paper))
    save(draw(by_step, kept, paper), options.out / f"{NAME}.png")
    print(markdown(by_step, kept, paper), end="")


if __name__ == "__main__":
    main()
