"""TernGrad's figure 5: images a second of AlexNet, GoogLeNet and VGG-A on 4 to 512 GPUs of two clusters.

    python benchmarks/terngrad_scaling.py [--out results/reference/terngrad-scaling]

Plays `experiments/terngrad-scaling.toml` at each of its scales, timing-only. Beside it is how the paper models the
network: an all-reduce in which a gradient crosses log2(n) links one after the other between n machines. The paper's
text leaves the formula to its supplement; it is taken as others restate it, (latency + bytes / rate) log2(n) (the
scripts to Shi et al., gTop-k, ICDCS 2019). What a GPU and a machine's own links take, which the paper profiled and
does not state, is the testbed's figure in both. Writes terngrad-scaling.csv, .md and .png.
"""

from __future__ import annotations

import argparse
from math import log2
from pathlib import Path

import pandas as pd

from testbed.experiment.assembly import Assembly
from testbed.experiment.load import load
from testbed.experiment.schema import Experiment
from testbed.harness import plan
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, times
from testbed.report.pictures.parts import keys, stroke
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, save

NAME = "terngrad-scaling"
CLUSTERS = {
    "gtx1080": "(a) machines of 4 GTX 1080, PCIe, 1 Gbit/s Ethernet",
    "p100": "(b) machines of 4 P100, NVLink, 100 Gbit/s InfiniBand",
}
LINES = {  # of the figure: cluster and network by the file's scale
    "": ("gtx1080", "AlexNet"),
    "googlenet": ("gtx1080", "GoogLeNet"),
    "vgg-a": ("gtx1080", "VGG-A"),
    "infiniband": ("p100", "AlexNet"),
    "infiniband-googlenet": ("p100", "GoogLeNet"),
    "infiniband-vgg-a": ("p100", "VGG-A"),
}
STATED = {("gtx1080", "AlexNet", 8): 3.04, ("p100", "VGG-A", 512): 2.0}  # section 5: the only figures in its text
SYSTEMS = ("baseline", "terngrad")
HEADS = (
    "network",
    "GPUs",
    "Baseline (img/s)",
    "TernGrad",
    "speedup",
    "all-reduce model: Baseline",
    "TernGrad",
    "speedup",
    "paper",
)


def modelled_s(it: Experiment, system: str, gradient_s: float) -> float:
    """A step by the paper's model of the network, `gradient_s` being what a machine's gradient takes."""
    machines = len(it.roles.workers)
    layers = Assembly(it).task(0).layout
    coded = sum(layer.size for layer in layers if not layer.last)
    # A sum of trits of N GPUs takes log2(1 + 2N) bits (3.1); the last layer stays in float32 (4).
    bits = 32.0 if system == "baseline" else log2(1 + 2 * machines * it.compute.gpus)
    nbytes = coded * bits / 8 + 4 * (layers.size - coded)
    lan = it.plan.profile.lan
    return gradient_s + log2(machines) * (lan.rtt_ms / 2e3 + 8 * nbytes / (lan.goodput_mbit * 1e6))


def throughputs() -> pd.DataFrame:
    """A row for each point of the figure: images a second, played and modelled."""
    rows = []
    for scale, (cluster, network) in LINES.items():
        for point in load(NAME, scale=scale):
            it = point.experiment
            row: dict[str, str | float] = {"cluster": cluster, "network": network}
            row["gpus"] = len(it.roles.workers) * it.compute.gpus
            for system in SYSTEMS:
                timed = plan.timed(it, system)
                row[system] = it.training.batch_size / timed.sync_s
                row[f"{system}_model"] = it.training.batch_size / modelled_s(it, system, timed.gradient_s)
            rows.append(row)
    frame = pd.DataFrame(rows)
    frame["speedup"] = frame["terngrad"] / frame["baseline"]
    frame["speedup_model"] = frame["terngrad_model"] / frame["baseline_model"]
    frame["speedup_paper"] = [STATED.get((row.cluster, row.network, row.gpus)) for row in frame.itertuples()]
    return frame


def markdown(frame: pd.DataFrame) -> str:
    """A table for each cluster."""
    parts = []
    for cluster, rows in frame.groupby("cluster", sort=False):
        cells = [
            [
                row.network,
                f"{row.gpus}",
                f"{row.baseline:,.0f}",
                f"{row.terngrad:,.0f}",
                times(row.speedup),
                f"{row.baseline_model:,.0f}",
                f"{row.terngrad_model:,.0f}",
                times(row.speedup_model),
                NONE if pd.isna(row.speedup_paper) else f"{row.speedup_paper:g}×",
            ]
            for row in rows.itertuples()
        ]
        parts.append(f"{CLUSTERS[str(cluster)]}\n\n{markdown_table(list(HEADS), cells)}\n")
    return "\n".join(parts)


def draw(frame: pd.DataFrame) -> Sheet:
    """Images a second by GPUs: a row of panels for each cluster, a panel for each network."""
    with drawing(COLUMN):
        figure = Sheet(6.9, 4.3, COLUMN)
        grid = figure.subplots(2, 3, sharex=True, sharey="row")
        for axes, ((cluster, network), rows) in zip(
            grid.flat, frame.groupby(["cluster", "network"], sort=False), strict=True
        ):
            for system in SYSTEMS:
                axes.plot(rows["gpus"], rows[system], **stroke(system))
                axes.plot(rows["gpus"], rows[f"{system}_model"], **stroke(system, linestyle=":", marker=""))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(rows["gpus"], [f"{count}" for count in rows["gpus"]])
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.minorticks_off()
            axes.set_title(network)
            for (where, which, gpus), stated in STATED.items():
                if (where, which) == (cluster, network):
                    words = f"the paper: {stated:g}× on {gpus} GPUs"
                    axes.text(0.04, 0.95, words, transform=axes.transAxes, va="top", fontsize=6.5, color=INK.small)
        for axes, words in zip(grid[:, 0], CLUSTERS.values(), strict=True):
            axes.set_ylabel(f"{words[:3]} images a second")
        for axes in grid[-1]:
            axes.set_xlabel("GPUs")
        dotted = grid[0, 0].plot([], [], color=INK.text, ls=":", label="the paper's model of the network")
        figure.legend(handles=[*keys(SYSTEMS), *dotted], loc="outside lower left", ncols=3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/reference") / NAME)
    options = parser.parse_args()
    frame = throughputs()
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / f"{NAME}.csv", index=False, float_format="%.6g")
    (options.out / f"{NAME}.md").write_text(markdown(frame))
    save(draw(frame), options.out / f"{NAME}.png")
    print(markdown(frame), end="")


if __name__ == "__main__":
    main()
