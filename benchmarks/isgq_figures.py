"""ISGQ's figures 1 to 4: its fully connected network on MNIST, and the quantizers at its second hidden layer.

    python benchmarks/isgq_figures.py [--steps 300] [--final-steps 50] [--seeds 0,1,2] [--records build/isgq-figures]
                                      [--only steps,quantizers,workers] [--out results/reference/isgq-figures]

1. Accuracy by step, one worker: without quantization and with one bit (`played`).
2. Of the second hidden layer's input X, derivative Delta and gradient G: (a) the share of exact zeros as training goes
   on; at 40 % accuracy (b) the normalized squared error and (c) the entropy of the best quantizer of each by itself.
3. At the same weights the error of the gradient that ISGQ's messages bring, beside the best quantizer of G itself.
4. Accuracy at the end by the number of workers.

Figures 1 and 4 are simulated runs; those in `--records` are gone on with and not played again. Figures 2 and 3 code
further batches of the training images, with the codecs of the systems. Writes isgq-figures.csv, a row for each point
with its mean and standard deviation, and from it isgq-figures.md and .png; with `--only` other points stay.
"""

from __future__ import annotations

import argparse
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

import testbed
from testbed.codecs.base import Key
from testbed.codecs.factors import Dithered, FactorCodec, LloydMax, MinimumError, multiply
from testbed.experiment.assembly import threads
from testbed.interpreter import testbed as command
from testbed.layout import Factors, Layout
from testbed.report.looks import look
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, percent
from testbed.report.pictures.parts import band, stroke
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, save
from testbed.workloads import Model, Workload
from testbed.workloads.config import Training
from testbed.workloads.data.base import load

NAME = "isgq-figures"
BATCH, RATE = 128, 0.01  # images a worker; both are the paper's
LAYER = 1  # of the linear ones: 1000-300, between the first hidden layer and the second
STAGES = (0.0, 0.4, 0.6, 0.8)  # accuracies at which signals are looked at; 0: before training
STAGE, STAGE_IMAGES, MOST_STEPS = 0.4, 1000, 2000  # figures 2b, 2c and 3; test images that tell a stage; patience
BATCHES, FURTHER = 10, 1_000_000  # a seed's batches that a figure is the mean of; the number of the first
LEVELS = (2, 3, 4, 6, 8, 12, 16)
FACTOR_LEVELS, DITHER_LEVELS = (2, 4, 8, 16), (1, 2, 4, 8)
CELLS, ROUNDS = 512, 100  # of a signal's range, from which the search for its best quantizer starts; rounds that end it
WORKERS = (1, 2, 4, 8)
TESTS = 15  # of a run of figure 1
ONE_BIT = ("baseline", "isgq-naive", "isgq-mse", "isgq-dithered")
SYSTEMS: dict[str, dict[str, Any]] = {  # the server sends the mean, with the bits that workers would make of factors
    "baseline": {},
    "isgq-naive": {"answer": "float32"},
    "isgq-mse": {"answer": "float32", "rounds": 1},
    "isgq-mse-2": {"of": "isgq-mse", "answer": "float32", "rounds": 1, "bits": 2},
    "isgq-dithered": {"answer": "float32"},
    "isgq-dithered-2": {"of": "isgq-dithered", "answer": "float32", "levels": 2},
}
FINAL = tuple(name for name in SYSTEMS if name != "isgq-naive")
LABELS = {"isgq-mse-2": "ISGQ MSE, 2 bits", "isgq-dithered-2": "ISGQ dithered, K = 2", "direct": "best quantizer of G"}
SIGNALS = {"X": ("#0072B2", "s"), "Delta": ("#E69F00", "^"), "G": ("#222222", "o")}
POINTS = ["figure", "series", "x", "mean", "deviation", "count"]
Found = defaultdict[tuple[str, str, float], list[float]]


@dataclass(frozen=True)
class Plan:
    """What is asked for; `records` is the folder of all runs."""

    steps: int
    final_steps: int
    seeds: tuple[int, ...]
    records: Path


# Figures 1 and 4: runs


def experiment(plan: Plan, workers: int, steps: int, optimizer: str, tests: int, systems: Sequence[str]) -> Any:
    """What an experiment file would hold: workers and one server, the paper's rate and batch."""
    return {
        "title": f"ISGQ's network on MNIST, {workers} workers",
        "topology": {
            "profile": "cluster-80mbit",
            "regions": ["rack-1"],
            "kind": "flat",
            "workers_per_region": workers,
            "server_region": "rack-1",
        },
        "model": {"name": "fc"},
        "data": {"dataset": "mnist"},
        "training": {
            "steps": steps,
            "batch_size": BATCH * workers,
            "schedule": {"kind": "exponential", "rate": RATE, "factor": 0.98},
            "optimizer": {"kind": optimizer},
            "augment": False,
        },
        "compute": {"device": "m60"},
        "run": {"seeds": list(plan.seeds), "checkpoint_steps": max(1, steps // tests), "probe_steps": 0},
        "systems": {name: SYSTEMS[name] for name in systems},
    }


def played(plan: Plan, name: str, what: Mapping[str, Any]) -> pd.DataFrame:
    """The tests of a run, begun or gone on with where it is not done."""
    kept = sorted((plan.records / name).glob("*/run.json"))
    if kept:
        subprocess.run(command("run", "--resume", str(kept[-1].parent), "--quiet"), check=True)
        run = testbed.load(kept[-1].parent)
    else:
        run = testbed.run(dict(what), fabric="virtual", out=plan.records, name=name)
    assert isinstance(run, testbed.Run)
    return run.evaluations


def by_step(plan: Plan) -> Found:
    """Figure 1."""
    found: Found = defaultdict(list)
    tests = played(plan, f"steps-{plan.steps}", experiment(plan, 1, plan.steps, "sgd", TESTS, ONE_BIT))
    for row in tests.itertuples():
        found["1", row.system, row.step].append(row.accuracy)
    return found


def by_workers(plan: Plan) -> Found:
    """Figure 4."""
    found: Found = defaultdict(list)
    for workers in WORKERS:
        what = experiment(plan, workers, plan.final_steps, "adam", 1, FINAL)
        tests = played(plan, f"workers-{workers}-steps-{plan.final_steps}", what)
        for row in tests[tests["step"] == plan.final_steps].itertuples():
            found["4", row.system, workers].append(row.accuracy)
    return found


# Figures 2 and 3: quantizers


def stages(workload: Workload, seed: int) -> Iterator[tuple[float, torch.Tensor]]:
    """The weights at each of `STAGES`: one worker, SGD without quantization."""
    weights = workload.initial_weights(seed)
    worker = workload.learner(np.arange(workload.dataset.train_examples), 0, BATCH, seed, Training(augment=False))
    step = 0
    for stage in STAGES:
        while stage and workload.evaluate(weights, STAGE_IMAGES).metrics["accuracy"] < stage:
            if step == MOST_STEPS:
                raise SystemExit(f"seed {seed}: not at {stage:.0%} after {step} steps")
            weights.add_(worker.gradient(weights, step)[1], alpha=-RATE)
            step += 1
        yield stage, weights.clone()


def further(workload: Workload, weights: torch.Tensor, seed: int) -> Iterator[Factors]:
    """X and Delta of the layer, batch by batch."""
    worker = workload.learner(np.arange(workload.dataset.train_examples), 0, BATCH, seed, Training(augment=False))
    for number in range(BATCHES):
        yield worker.factors(weights, FURTHER + number)[2][LAYER]


def zeros(values: np.ndarray) -> float:
    """The share of exact zeros."""
    return float((values == 0).mean())


def optimum(values: np.ndarray, levels: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Of the best quantizer with so many levels: ||v - v~||^2 / ||v||^2, and the entropy of its symbols in bits.

    Dynamic programming over `CELLS` equal parts of the values' range finds the best thresholds among their bounds;
    Lloyd's alternation goes on from there with the values themselves (Lloyd 1982, Max 1960). Zeros are values as all
    others.
    """
    ordered = np.sort(values.reshape(-1).astype(np.float64))
    sums, squares = (np.append(0.0, np.cumsum(part)) for part in (ordered, ordered**2))
    inner = np.searchsorted(ordered, np.linspace(ordered[0], ordered[-1], CELLS + 1)[1:-1])
    bounds = np.unique(np.concatenate([[0], inner, [len(ordered)]]))

    def error(start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Squared error of the values between two places, with their mean as their level."""
        within = squares[end] - squares[start] - (sums[end] - sums[start]) ** 2 / np.maximum(end - start, 1)
        return np.maximum(within, 0.0)

    found = {}
    for count, cuts in _best_cuts(np.where(bounds[:, None] <= bounds, error(bounds[:, None], bounds), np.inf), levels):
        ends = _settled(ordered, sums, bounds[cuts])
        shares = np.diff(ends) / len(ordered)
        nmse = float(error(ends[:-1], ends[1:]).sum() / squares[-1])
        found[count] = nmse, float(-(shares * np.log2(shares)).sum())
    return found


def _best_cuts(cost: np.ndarray, levels: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """For each count of levels the bounds, first and last included, between which the costs add up to the least."""
    best, choices = cost[0], []
    for count in range(1, max(levels) + 1):
        if count > 1:
            total = best[:, None] + cost
            choices.append(total.argmin(0))
            best = total.min(0)
        if count in levels:
            cuts = [len(cost) - 1]
            for choice in reversed(choices):
                cuts.append(int(choice[cuts[-1]]))
            yield count, np.array([0, *reversed(cuts)])


def _settled(ordered: np.ndarray, sums: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Where bins end when each threshold is in the middle between two bins' means."""
    for _ in range(ROUNDS):
        before, ends = ends, np.unique(ends)
        means = np.diff(sums[ends]) / np.diff(ends)
        ends = np.array([0, *np.searchsorted(ordered, (means[1:] + means[:-1]) / 2), len(ordered)])
        if np.array_equal(before, ends):
            break
    return np.unique(ends)


def codecs(layout: Layout) -> Iterator[tuple[str, int, FactorCodec]]:
    """Of each form of ISGQ at each precision: its name, the values that an element of a signal may take, its codec."""
    for levels in FACTOR_LEVELS:
        yield "isgq-naive", levels, LloydMax(layout, BATCH, levels)
        yield "isgq-mse", levels, MinimumError(layout, BATCH, levels, rounds=1)
    for levels in DITHER_LEVELS:
        yield "isgq-dithered", 2 * levels + 1, Dithered(layout, BATCH, levels)


def brought(layout: Layout, codec: FactorCodec, pair: Factors, key: Key) -> tuple[torch.Tensor, float]:
    """The gradient of the layer's weights as received, and the bits of the message for each of them."""
    buffers = codec.encode([pair], key)
    nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
    out = torch.zeros(layout.size)
    multiply(layout, [codec.decode(buffers, key)], out)
    weight = layout.linear[0].weight
    return out[weight.slice].view(weight.shape), 8 * nbytes / weight.size


def quantizers(plan: Plan) -> Found:
    """Figures 2 and 3, and the bits of a message beside the latter ("bits")."""
    found: Found = defaultdict(list)
    workload = Workload(Model(name="fc"), load("mnist", allow_download=False, on_notice=print))
    layer = workload.layout.linear[LAYER]
    layout = Layout.of([(f"{layer.name}.weight", layer.weight.shape), (f"{layer.name}.bias", (layer.outputs,))])
    coders = list(codecs(layout))
    with threads(1):
        for seed in plan.seeds:
            for stage, weights in stages(workload, seed):
                for number, (x, delta) in enumerate(further(workload, weights, seed)):
                    gradient = delta.T @ x / BATCH
                    for name, signal in zip(SIGNALS, (x, delta, gradient), strict=True):
                        found["2a", name, stage].append(zeros(signal.numpy()))
                        if stage == STAGE:
                            for levels, (nmse, entropy) in optimum(signal.numpy(), LEVELS).items():
                                found["2b", name, levels].append(nmse)
                                found["2c", name, levels].append(entropy)
                    for name, levels, codec in coders if stage == STAGE else ():
                        received, bits = brought(layout, codec, (x, delta), Key(seed, 0, number))
                        error = (received - gradient).square().sum() / gradient.square().sum()
                        found["3", name, levels].append(float(error))
                        found["bits", name, levels].append(bits)
    for levels in LEVELS:
        found["3", "direct", levels] = found["2b", "G", levels]
        found["bits", "direct", levels] = found["2c", "G", levels]
    return found


PARTS = {  # what makes which figures
    "steps": (by_step, ("1",)),
    "quantizers": (quantizers, ("2a", "2b", "2c", "3", "bits")),
    "workers": (by_workers, ("4",)),
}


def renewed(kept: pd.DataFrame, plan: Plan, only: Sequence[str]) -> pd.DataFrame:
    """All points, those of some parts made anew."""
    frames = []
    for part, (make, figures) in PARTS.items():
        frames.append(points(make(plan)) if part in only else kept[kept["figure"].isin(figures)])
    return pd.concat([frame for frame in frames if len(frame)], ignore_index=True)


# Tables and the picture


def points(found: Mapping[tuple[str, str, float], Sequence[float]]) -> pd.DataFrame:
    """A row for each point of a figure."""
    rows = [
        (*where, np.mean(values), np.std(values, ddof=1) if len(values) > 1 else np.nan, len(values))
        for where, values in found.items()
    ]
    return pd.DataFrame(rows, columns=POINTS)


def read(file: Path) -> pd.DataFrame:
    """The points of a file, as tables and the picture are made of them."""
    return pd.read_csv(file, dtype={"figure": str})


def label(series: str) -> str:
    return LABELS.get(series) or (series if series in SIGNALS else look(series).label)


def written(mean: float, deviation: float, figure: str) -> str:
    """A mean with its standard deviation."""
    if pd.isna(mean):
        return NONE
    spread = 0.0 if pd.isna(deviation) else deviation
    if figure in ("1", "2a", "4"):
        return f"{100 * mean:.1f} % ± {100 * spread:.1f}"
    return f"{mean:.3f} ± {spread:.3f}"


def table(frame: pd.DataFrame, figure: str, head: str, places: Sequence[float] = ()) -> str:
    """A row for each place on a figure's axis, a column for each of its lines."""
    rows = frame[frame["figure"] == figure]
    means, deviations = (rows.pivot(index="x", columns="series", values=part) for part in ("mean", "deviation"))
    series = list(dict.fromkeys(rows["series"]))
    cells = []
    for x in places or list(means.index):
        place = f"{x:g}" if figure != "2a" else percent(x) if x else "before training"
        cells.append([place, *(written(means.loc[x, one], deviations.loc[x, one], figure) for one in series)])
    return markdown_table([head, *map(label, series)], cells)


def markdown(frame: pd.DataFrame) -> str:
    """The tables of all figures that there are."""
    steps = sorted(set(frame[frame["figure"] == "1"]["x"]))
    every = max(1, len(steps) // 5)
    sections = {
        "1": ("Figure 1: accuracy by step, one worker, one bit", "step", steps[every - 1 :: every]),
        "2a": ("Figure 2a: share of zeros", "accuracy", ()),
        "2b": ("Figure 2b: normalized squared error of the best quantizer, at 40 %", "levels", ()),
        "2c": ("Figure 2c: its entropy, bits an element", "levels", ()),
        "3": ("Figure 3: normalized squared error of the gradient, at 40 %", "levels", ()),
        "bits": ("Beside figure 3: bits a weight", "levels", ()),
        "4": ("Figure 4: accuracy at the end", "workers", ()),
    }
    there = set(frame["figure"])
    return "\n".join(
        f"## {title}\n\n{table(frame, figure, head, places)}\n"
        for figure, (title, head, places) in sections.items()
        if figure in there
    )


def line(series: str) -> dict[str, Any]:
    """How a series is drawn."""
    signal = "G" if series == "direct" else series
    if signal in SIGNALS:
        color, marker = SIGNALS[signal]
        return {"color": color, "marker": marker, "label": signal}
    changes = {"linestyle": (0, (1, 1)), "markerfacecolor": "white"} if series.endswith("-2") else {}
    return stroke(series.removesuffix("-2"), label=label(series), **changes)


def panel(axes: Axes, frame: pd.DataFrame, figure: str, title: str, head: str, scale: float = 1.0) -> None:
    """One figure's lines, each with a standard deviation on either side."""
    axes.set_visible(figure in set(frame["figure"]))
    for series, rows in frame[frame["figure"] == figure].groupby("series", sort=False):
        look_of = line(str(series))
        every = max(1, len(rows) // 5) if figure == "1" else 1
        mean, deviation = scale * rows["mean"], scale * rows["deviation"].fillna(0.0)
        axes.plot(rows["x"], mean, **look_of, markevery=every)
        band(axes, rows["x"], mean, deviation, look_of["color"], int(rows["count"].min()))
    axes.set_title(title)
    axes.set_xlabel(head)


def _by_levels(axes: Axes, ticks: Sequence[int], logarithmic: bool = False) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()


def draw(frame: pd.DataFrame) -> Sheet:
    """Figures 1, 3 and 4 above, the three parts of figure 2 below."""
    with drawing(COLUMN):
        figure = Sheet(6.9, 4.6, COLUMN)
        (first, third, fourth), (zero, nmse, entropy) = figure.subplots(2, 3)
        panel(first, frame, "1", "1: accuracy, one bit (%)", "step", 100)
        panel(third, frame, "3", "3: error of the gradient", "levels")
        panel(fourth, frame, "4", "4: accuracy at the end (%)", "workers", 100)
        panel(zero, frame, "2a", "2a: zeros (%)", "accuracy (%)", 100)
        panel(nmse, frame, "2b", "2b: error of the best quantizer", "levels")
        panel(entropy, frame, "2c", "2c: its entropy (bits)", "levels")
        _by_levels(third, FACTOR_LEVELS, logarithmic=True)
        _by_levels(nmse, FACTOR_LEVELS, logarithmic=True)
        _by_levels(entropy, FACTOR_LEVELS)
        _by_levels(fourth, WORKERS)
        zero.set_xticks(STAGES, ["before", *(f"{100 * stage:.0f}" for stage in STAGES[1:])])
        zero.set_ylim(bottom=0)
        entropy.set_ylim(bottom=0)
        third.axhline(1, color=INK.rule, lw=0.8, zorder=0)
        systems = [name for name in SYSTEMS if name in set(frame["series"])]
        handles = [axes for name in (*systems, *SIGNALS) for axes in first.plot([], [], **line(name))]
        figure.legend(handles=handles, loc="outside lower left", ncols=5)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of figure 1")
    parser.add_argument("--final-steps", type=int, default=50, help="of figure 4")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to make anew, the rest as kept; '' draws again")
    parser.add_argument("--records", type=Path, default=Path("build") / NAME)
    parser.add_argument("--out", type=Path, default=Path("results/reference") / NAME)
    options = parser.parse_args()
    seeds = tuple(int(seed) for seed in options.seeds.split(","))
    plan, file = Plan(options.steps, options.final_steps, seeds, options.records), options.out / f"{NAME}.csv"
    kept = read(file) if file.is_file() else pd.DataFrame(columns=POINTS)
    frame = renewed(kept, plan, [part for part in options.only.split(",") if part])
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(file, index=False, float_format="%.6g")
    frame = read(file)
    (options.out / f"{NAME}.md").write_text(markdown(frame))
    save(draw(frame), options.out / f"{NAME}.png")
    print(markdown(frame), end="")


if __name__ == "__main__":
    main()
