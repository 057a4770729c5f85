"""When copies whose averages arrive late come together, and when they swing apart (testbed/systems/protocols/rhythm).

    python benchmarks/late_answers.py [--momentum 0.9] [--out results/reference/late-answers]

Each copy makes steps of SGD with momentum on a parabola of its own curvature; every round brings them the mean that
they had when it began, `delay` steps later, and the next round begins `rest` steps after that. What a round makes of
their difference and of its velocity is a matrix of two rows: they come together where its eigenvalues are below 1.
Curvature is told as a part of the steepest that the rate is stable for by itself, 2 (1 + momentum) / rate.

Writes late-answers.md, the steepest below which all come together by delay and rest, and late-answers.png, the largest
eigenvalue.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from numpy.linalg import eigvals, matrix_power

from testbed.files import write_whole
from testbed.report.numbers.tables import markdown_table
from testbed.report.pictures.style import COLUMN, Sheet, drawing, save
from testbed.systems.protocols.rhythm import steps_to_settle

DELAYS = (1, 2, 3, 5, 9, 13, 20, 40, 70)
CURVATURES = np.geomspace(3e-4, 0.97, 240)  # parts of the steepest
ANSWER = np.array([[1.0, 0.0], [0.0, 0.0]])  # takes the difference away, and leaves its velocity


def radius(curvature: float, momentum: float, delay: int, rest: int) -> float:
    """By how much a round makes a difference larger, at most."""
    pull = 2 * (1 + momentum) * curvature
    step = np.array([[1 - pull, -momentum], [pull, momentum]])  # of the difference, and of rate times its velocity
    return float(max(abs(eigvals(matrix_power(step, rest) @ (matrix_power(step, delay) - ANSWER)))))


def radii(momentum: float, rest: int) -> np.ndarray:
    """By delay and curvature."""
    return np.array([[radius(each, momentum, delay, rest) for each in CURVATURES] for delay in DELAYS])


def steepest(row: np.ndarray) -> float:
    """Below which all come together."""
    apart = np.flatnonzero(row > 1)
    return float(CURVATURES[apart[0]]) if len(apart) else 1.0


def by_rest(momentum: float) -> dict[int, np.ndarray]:
    """`radii` for no rest, a quarter and half of what the rule says, and that."""
    settled = steps_to_settle(momentum)
    return {rest: radii(momentum, rest) for rest in (0, settled // 4, settled // 2, settled)}


def table(found: dict[int, np.ndarray]) -> str:
    """`steepest` by delay and rest."""
    rows = [[str(late), *(f"{steepest(values[k]):.2g}" for values in found.values())] for k, late in enumerate(DELAYS)]
    return markdown_table(["steps late", *(f"{rest} steps of rest" if rest else "no rest" for rest in found)], rows)


def draw(found: dict[int, np.ndarray]) -> Sheet:
    """A panel for each rest."""
    with drawing(COLUMN):
        figure = Sheet(1.75 * len(found) + 0.5, 2.4, COLUMN)
        panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
        for axes, (rest, values) in zip(panels, found.items(), strict=True):
            _panel(axes, values)
            axes.set_title(f"{rest} steps of rest" if rest else "no rest")
        panels[0].set_ylabel("curvature, of the steepest stable")
        figure.supxlabel("steps that an answer is late")
        figure.suptitle("Where copies come together (violet) and swing apart (orange)", x=0.01, ha="left")
    return figure


def _panel(axes: Axes, values: np.ndarray) -> None:
    norm = TwoSlopeNorm(0.0, -2.0, 2.0)
    axes.pcolormesh(np.arange(len(DELAYS)), CURVATURES, np.log2(values.T), cmap="PuOr_r", norm=norm, shading="nearest")
    axes.set_yscale("log")
    axes.set_xticks(range(0, len(DELAYS), 2), [str(delay) for delay in DELAYS[::2]])
    axes.grid(visible=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--out", type=Path, default=Path("results/reference/late-answers"))
    options = parser.parse_args()
    found = by_rest(options.momentum)
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "late-answers.md", table(found) + "\n")
    save(draw(found), options.out / "late-answers.png")
    print(table(found))


if __name__ == "__main__":
    main()
