"""TernGrad's figure 2: histograms of gradients, clipped, ternary and averaged, over the steps of a training.

    python benchmarks/terngrad_histograms.py [--steps 200] [--out results/reference/terngrad-histograms]

Trains the network of `experiments/cifarnet-terngrad.toml` with two workers, by momentum SGD as the paper does when it
chooses its bound on gradients (3.3), and looks at a convolution and at the first fully connected layer every so many
steps. Gradients are clipped and coded by the codec that the system `terngrad` has, with scales shared, and averaged
as its server does: nothing is sent, since it is not about times. The paper's figure is AlexNet's on ImageNet. Writes
terngrad-histograms.csv, .md and .png; a line of the table says how far a gradient is from a Gaussian, what clipping
does to it (section 3.3), and how much of it becomes zero (figure 4c).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import acos, degrees, erf, exp, pi, sqrt
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from testbed.codecs.base import Key
from testbed.codecs.levels import LevelSum
from testbed.codecs.ternary import Ternary
from testbed.experiment.assembly import Assembly
from testbed.experiment.load import load
from testbed.layout import Layer
from testbed.report.looks import look
from testbed.report.numbers.tables import markdown_table
from testbed.report.numbers.wording import NONE, percent
from testbed.report.pictures.style import COLUMN, INK, Sheet, drawing, save
from testbed.systems.protocols.base import Task

NAME, EXPERIMENT = "terngrad-histograms", "cifarnet-terngrad"
LAYERS = {"conv2.weight": "second convolution", "local3.weight": "first fully connected"}
STAGES = {"original": "(a) original", "clipped": "(b) clipped", "ternary": "(c) ternary", "final": "(d) averaged"}
LEVELS = ("ternary", "final")  # of few values, which are drawn as such
CLIP = 2.5  # standard deviations, 3.3
TIMES = 8  # that a training is looked at, besides its first step
BINS = 121
WIDE = 4.5  # standard deviations, the largest of all steps, that a panel shows to either side of zero


@dataclass(frozen=True)
class Seen:
    """A layer's gradient in a step, at worker 0: each of `STAGES` by name, float32, `final` being the mean of all."""

    step: int
    layer: str
    stages: dict[str, np.ndarray]


def experiment_of(steps: int) -> Assembly:
    """The experiment with two workers, momentum SGD at a constant rate, and no more than that changed."""
    changes = {
        "topology.workers_per_region": 2,
        "training.batch_size": 128,
        "training.steps": steps,
        "training.schedule": {"kind": "constant", "rate": 0.01},
        "training.optimizer": {"kind": "sgd", "momentum": 0.9},
    }
    return Assembly(load(EXPERIMENT, changes, systems=["terngrad"])[0].experiment, on_notice=print)


def training(task: Task, steps: int, looked_at: range) -> Iterator[Seen]:
    """TernGrad's steps (Algorithm 1) with scales shared (eq. 4); yields what is looked at."""
    workers = range(len(task.roles.workers))
    codec = Ternary(task.layout, CLIP, float_last=False)
    total = LevelSum(codec, len(workers))
    layers = {layer.name: layer for layer in task.layout}
    weights, optimizer = task.initial.clone(), task.training.optimizer
    state = optimizer.start(weights)
    for step in range(steps):
        gradients = [task.learner(worker).gradient(weights, step)[1] for worker in workers]
        limits = [codec.limits(gradient) for gradient in gradients]
        scales = np.max([each.scales for each in limits], axis=0)
        coded = [
            codec.encode(gradient, Key(task.seed, worker, step), scales, limit)
            for worker, gradient, limit in zip(workers, gradients, limits, strict=True)
        ]
        mean = total.decode(total.encode(total.sum(coded)))
        if step in looked_at:
            trits = codec.decode(coded[0])
            for name in LAYERS:
                bound = float(limits[0].clip[position(codec, layers[name])])
                yield seen(step, layers[name], gradients[0], bound, trits, mean)
        optimizer.update(state, weights, mean, task.rate_at(step))


def position(codec: Ternary, layer: Layer) -> int:
    """Of a layer among those that are coded."""
    return [each.name for each in codec.ternary].index(layer.name)


def seen(
    step: int, layer: Layer, gradient: torch.Tensor, bound: float, trits: torch.Tensor, mean: torch.Tensor
) -> Seen:
    """What a layer of the vectors holds."""
    parts = {"original": gradient, "clipped": gradient.clamp(-bound, bound), "ternary": trits, "final": mean}
    return Seen(step, layer.name, {name: part[layer.slice].numpy().copy() for name, part in parts.items()})


def figures(it: Seen) -> dict[str, float | str | int]:
    """Of a layer's gradient in a step: what the paper says of clipping and of zeros, in numbers."""
    x, clipped = (it.stages[name].astype(np.float64) for name in ("original", "clipped"))
    deviation, length, after = x.std(), np.linalg.norm(x), np.linalg.norm(clipped)
    return {
        "layer": it.layer,
        "step": it.step,
        "deviation": float(deviation),
        "kurtosis": float(((x - x.mean()) ** 4).mean() / deviation**4 - 3),
        "beyond": float((np.abs(x) > CLIP * deviation).mean()),
        "scale_cut": float(np.abs(x).max() / np.abs(clipped).max()),
        "shorter": float(1 - after / length),
        "turned_degrees": degrees(acos(min(1.0, float(x @ clipped) / (length * after)))),
        "zeros": float((it.stages["ternary"] == 0).mean()),
        "zeros_unclipped": float(1 - np.abs(x).mean() / np.abs(x).max()),
        "levels": len(np.unique(it.stages["final"])),
        "zeros_final": float((it.stages["final"] == 0).mean()),
    }


def gaussian(bound: float) -> dict[str, float]:
    """The same of a Gaussian that is clipped at so many of its standard deviations, where that is one number."""
    density, beyond = exp(-(bound**2) / 2) / sqrt(2 * pi), 1 - erf(bound / sqrt(2))
    within = 1 - beyond - 2 * bound * density  # of the squared length, from what is not clipped
    length, product = sqrt(within + bound**2 * beyond), within + 2 * bound * density
    magnitude = sqrt(2 / pi) - 2 * density + bound * beyond
    return {
        "kurtosis": 0.0,
        "beyond": beyond,
        "shorter": 1 - length,
        "turned_degrees": degrees(acos(product / length)),
        "zeros": 1 - magnitude / bound,
    }


def markdown(frame: pd.DataFrame) -> str:
    """A row for each layer and step, and one for a Gaussian."""
    heads = [
        "layer",
        "step",
        "kurtosis above a Gaussian's",
        "beyond 2.5 σ",
        "scale divided by",
        "shorter by",
        "turned by",
        "zeros among trits",
        "without clipping",
        "levels of the mean",
    ]
    rows = [
        [
            LAYERS[row.layer],
            f"{row.step + 1}",
            f"{row.kurtosis:.1f}",
            percent(row.beyond),
            f"{row.scale_cut:.1f}",
            percent(row.shorter),
            f"{row.turned_degrees:.1f}°",
            percent(row.zeros),
            percent(row.zeros_unclipped),
            f"{row.levels}",
        ]
        for row in frame.sort_values(["layer", "step"]).itertuples()
    ]
    ideal = gaussian(CLIP)
    shares = {key: percent(ideal[key]) for key in ("beyond", "shorter", "zeros")}
    turned = f"{ideal['turned_degrees']:.1f}°"
    rows.append(
        ["a Gaussian", NONE, "0.0", shares["beyond"], NONE, shares["shorter"], turned, shares["zeros"], NONE, NONE]
    )
    return markdown_table(heads, rows) + "\n"


def draw(found: list[Seen]) -> Sheet:
    """A row of panels for each layer, a panel for each stage, and in it a histogram for each step, the first on top."""
    steps = sorted({it.step for it in found})
    with drawing(COLUMN):
        figure = Sheet(6.9, 4.6, COLUMN)
        grid = figure.subplots(len(LAYERS), len(STAGES), sharex="row", sharey=True)
        for row, (layer, words) in zip(grid, LAYERS.items(), strict=True):
            here = [it for it in found if it.layer == layer]
            reach = WIDE * max(float(it.stages["original"].std()) for it in here)
            power = int(np.floor(np.log10(reach)))
            for axes, (stage, title) in zip(row, STAGES.items(), strict=True):
                for it in here:
                    ridge(axes, it.stages[stage] / 10.0**power, reach / 10.0**power, -steps.index(it.step), stage)
                axes.set_title(title if axes in grid[0] else "")
                axes.set_yticks(range(-len(steps) + 1, 1), [f"{step + 1}" for step in reversed(steps)])
                axes.tick_params(axis="y", length=0)
                axes.spines["left"].set_visible(False)
                axes.set_xlim(-reach / 10.0**power, reach / 10.0**power)
                axes.set_xlabel(f"gradient, 10{superscript(power)}")
            row[0].set_ylabel(f"{words}\nstep")
    return figure


def ridge(axes: Axes, values: np.ndarray, reach: float, base: float, stage: str) -> None:
    """The histogram of some values on a base line; its highest bin, or commonest value, is as high for all."""
    color = look("terngrad").color if stage in LEVELS else look("baseline").color
    axes.axhline(base, color=INK.rule, lw=0.4, zorder=1)
    if stage in LEVELS:
        at, counts = np.unique(values, return_counts=True)
        axes.vlines(at, base, base + 0.85 * counts / counts.max(), color=color, lw=1.8, zorder=2)
        return
    counts, edges = np.histogram(values, bins=BINS, range=(-reach, reach))
    heights = 0.85 * counts / counts.max()
    axes.stairs(base + heights, edges, baseline=base, fill=True, color=color, alpha=0.85, lw=0, zorder=2)


def superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("results/reference") / NAME)
    options = parser.parse_args()
    looked_at = range(0, options.steps + 1, max(1, options.steps // TIMES))
    it = experiment_of(options.steps + 1)
    if not it.workload.dataset.real:
        parser.error("CIFAR-10 is not in $TESTBED_DATA, and of other data there is no figure")
    found = list(training(it.task(0), options.steps + 1, looked_at))
    frame = pd.DataFrame([figures(it) for it in found])
    options.out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(options.out / f"{NAME}.csv", index=False, float_format="%.6g")
    (options.out / f"{NAME}.md").write_text(markdown(frame))
    save(draw(found), options.out / f"{NAME}.png")
    print(markdown(frame), end="")


if __name__ == "__main__":
    main()
