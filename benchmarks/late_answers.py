"""When copies whose averages arrive late come together, and when they swing apart (testbed/systems/protocols/rhythm).

    python benchmarks/late_answers.py [--momentum 0.9] [--out results/reference/late-answers]

Each copy makes steps of SGD with momentum on a parabola of its own curvature; every round brings them the mean that
they had when it began, `delay` steps later, and the next round begins `rest` steps after that. What a round makes of
their difference and of its velocity is a matrix of two rows: they come together where its eigenvalues are below 1.
Curvature is told as a part of the steepest that the rate is stable for by itself, 2 (1 + momentum) / rate. Of the mean
itself, where what a round tells is counted more than once (the outer rate), the same with the rest that the rule says.

Writes late-answers.md, the steepest below which all come together by delay and rest, outer-rates.md, the same of the
mean by delay and outer rate, and late-answers.png, the largest eigenvalue of the first.
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
OUTER_RATES = (1.0, 1.2, 1.4, 1.5, 1.6, 2.0)
ANSWER = np.array([[1.0, 0.0], [0.0, 0.0]])  # takes the difference away, and leaves its velocity


def radius(curvature: float, momentum: float, delay: int, rest: int) -> float:
    """By how much a round makes a difference larger, at most."""
    step = one_step(curvature, momentum)
    return largest(matrix_power(step, rest) @ (matrix_power(step, delay) - ANSWER))


def mean_radius(curvature: float, momentum: float, delay: int, rest: int, outer_rate: float) -> float:
    """By how much a round makes the mean's distance from its goal larger, at most.

    The third row is what the server has told: a round tells the mean as it is after `rest` less that, and brings the
    server and, `delay` steps later, the mean what the outer rate makes of it.
    """
    step = np.eye(3)
    step[:2, :2] = one_step(curvature, momentum)
    sent = matrix_power(step, rest)
    round_of = matrix_power(step, delay) @ sent
    tells = sent[0] - sent[2]
    round_of[0] += (outer_rate - 1) * tells
    round_of[2] += outer_rate * tells
    return largest(round_of)


def one_step(curvature: float, momentum: float) -> np.ndarray:
    """Of a distance, and of rate times its velocity."""
    pull = 2 * (1 + momentum) * curvature
    return np.array([[1 - pull, -momentum], [pull, momentum]])


def largest(matrix: np.ndarray) -> float:
    """Eigenvalue."""
    return float(max(abs(eigvals(matrix))))


def radii(momentum: float, rest: int) -> np.ndarray:
    """By delay and curvature."""
    return np.array([[radius(each, momentum, delay, rest) for each in CURVATURES] for delay in DELAYS])


def mean_radii(momentum: float, outer_rate: float) -> np.ndarray:
    """The same of the mean."""
    rest = steps_to_settle(momentum)
    return np.array([[mean_radius(each, momentum, delay, rest, outer_rate) for each in CURVATURES] for delay in DELAYS])


def steepest(row: np.ndarray) -> float:
    """Below which all come together."""
    apart = np.flatnonzero(row > 1)
    return float(CURVATURES[apart[0]]) if len(apart) else 1.0


def by_rest(momentum: float) -> dict[int, np.ndarray]:
    """`radii` for no rest, a quarter and half of what the rule says, and that."""
    settled = steps_to_settle(momentum)
    return {rest: radii(momentum, rest) for rest in (0, settled // 4, settled // 2, settled)}


def by_outer_rate(momentum: float) -> dict[float, np.ndarray]:
    """`mean_radii`."""
    return {outer_rate: mean_radii(momentum, outer_rate) for outer_rate in OUTER_RATES}


def table(found: dict[int, np.ndarray]) -> str:
    """`steepest` by delay and rest."""
    return _table({f"{rest} steps of rest" if rest else "no rest": values for rest, values in found.items()})


def outer_table(found: dict[float, np.ndarray]) -> str:
    """`steepest` by delay and outer rate."""
    return _table({f"outer rate {outer_rate:g}": values for outer_rate, values in found.items()})


def _table(found: dict[str, np.ndarray]) -> str:
    rows = [[str(late), *(f"{steepest(values[k]):.2g}" for values in found.values())] for k, late in enumerate(DELAYS)]
    return markdown_table(["steps late", *found], rows)


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
    found, outer = by_rest(options.momentum), by_outer_rate(options.momentum)
    options.out.mkdir(parents=True, exist_ok=True)
    write_whole(options.out / "late-answers.md", table(found) + "\n")
    save(draw(found), options.out / "late-answers.png")
    write_whole(options.out / "outer-rates.md", outer_table(outer) + "\n")
    print(table(found), outer_table(outer), sep="\n\n")


if __name__ == "__main__":
    main()
