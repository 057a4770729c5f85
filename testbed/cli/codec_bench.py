"""How fast the codecs are, against a copy of the same array in the same run.

Ratios, not absolutes: memory's speed differs from machine to machine and, on a shared one, from minute to minute.
So each round times a copy and every codec once, in turn, and medians over the rounds are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawing
from rich.progress import track

from testbed.codecs import CODECS
from testbed.codecs.base import Key
from testbed.codecs.memory import remembering
from testbed.errors import InputError, nearest
from testbed.experiment import assembly
from testbed.files import write_whole
from testbed.layout import Layer, Layout
from testbed.report.aside import Aside
from testbed.report.pictures.style import save

DISTRIBUTIONS = ("gaussian", "laplace")
ROUNDS = 9


@dataclass(frozen=True)
class Speed:
    """One codec at one size.

    Attributes
    ----------
    encode_gbyte_s, decode_gbyte_s : float32 coded per second, 10^9 bytes
    encode_of_copy, decode_of_copy : the time of a copy / the time of the codec
    bytes_per_element : of the message
    nmse : squared error / squared norm, of one message
    """

    codec: str
    elements: int
    distribution: str
    threads: int
    encode_gbyte_s: float
    decode_gbyte_s: float
    encode_of_copy: float
    decode_of_copy: float
    bytes_per_element: float
    nmse: float


def codecs_named(names: Sequence[str]) -> dict[str, Callable[[Layout], Any]]:
    """The codecs of these names, all for none; InputError on a name that no codec has."""
    return {name: CODECS.find(name) for name in names or CODECS}


def measure(
    codecs: dict[str, Callable[[Layout], Any]],
    sizes: Sequence[int],
    threads: Sequence[int] = (1, 2),
    rounds: int = ROUNDS,
    distributions: Sequence[str] = DISTRIBUTIONS,
) -> list[Speed]:
    """Time all codecs at all sizes (elements), in `rounds` interleaved rounds each, with progress on standard error."""
    cases = [(size, name, count) for size in sizes for name in distributions for count in threads]
    figures: list[Speed] = []
    for size, distribution, count in track(cases, "codecs", transient=True, console=Aside()):
        with assembly.threads(count):
            figures += _case(codecs, size, distribution, count, rounds)
    return figures


def _case(
    codecs: dict[str, Callable[[Layout], Any]], size: int, distribution: str, threads: int, rounds: int
) -> list[Speed]:
    layout = Layout((Layer("layer.weight", (-(-size // 1000), 1000), 0, last=False),))
    vector = draw(distribution, layout.size)
    subjects = {name: _Subject(make(layout), vector) for name, make in codecs.items()}
    copy, copies_s = torch.empty_like(vector), []
    for step in range(rounds):
        copies_s.append(_seconds(lambda: copy.copy_(vector)))
        for subject in subjects.values():
            subject.time(step)
    copy_s = median(copies_s)
    return [
        Speed(
            codec=name,
            elements=layout.size,
            distribution=distribution,
            threads=threads,
            encode_gbyte_s=4e-9 * layout.size / (encode_s := median(subject.encodes_s)),
            decode_gbyte_s=4e-9 * layout.size / (decode_s := median(subject.decodes_s)),
            encode_of_copy=copy_s / encode_s,
            decode_of_copy=copy_s / decode_s,
            bytes_per_element=subject.nbytes / layout.size,
            nmse=subject.nmse,
        )
        for name, subject in subjects.items()
    ]


class _Subject:
    """A codec under test: its first message is a warm-up, and what NMSE and bytes are taken of."""

    def __init__(self, codec: Any, vector: torch.Tensor) -> None:
        self._codec, self._vector = remembering(codec), vector
        self._out = torch.empty_like(vector)
        self.encodes_s: list[float] = []
        self.decodes_s: list[float] = []
        memory = self._codec.start()
        buffers = self._codec.encode(vector, Key(0, 0, 0), memory)
        self.nbytes = sum(buffer.nbytes for buffer in buffers)
        error = self._codec.decode(buffers, self._out).sub(vector)
        self.nmse = float(error.double().square().sum() / vector.double().square().sum())
        self._memory = memory

    def time(self, step: int) -> None:
        """One message, coded and decoded."""
        key = Key(0, 0, step + 1)
        began_s = perf_counter()
        buffers = self._codec.encode(self._vector, key, self._memory)
        self.encodes_s.append(perf_counter() - began_s)
        self.decodes_s.append(_seconds(lambda: self._codec.decode(buffers, self._out)))


def draw(distribution: str, size: int) -> torch.Tensor:
    """A vector of a distribution of variance 1; InputError on another name."""
    generator = torch.Generator().manual_seed(0)
    if distribution == "gaussian":
        return torch.randn(size, generator=generator)
    if distribution == "laplace":
        uniform = torch.rand(size, generator=generator).sub_(0.5)
        return uniform.sign() * uniform.abs().mul_(-2).log1p_().clamp_(min=-80).mul_(-(0.5**0.5))
    raise InputError(f"no distribution '{distribution}'{nearest(distribution, DISTRIBUTIONS)}")


def _seconds(work: Callable[[], Any]) -> float:
    began_s = perf_counter()
    work()
    return perf_counter() - began_s


def write_json(path: Path, figures: Sequence[Speed], machine: msgspec.Struct) -> None:
    """The figures as JSON: what they were measured on, and one object each."""
    content = {"machine": msgspec.to_builtins(machine), "figures": [asdict(figure) for figure in figures]}
    write_whole(path, json.dumps(content, indent=1) + "\n")


def draw_figures(path: Path, figures: Sequence[Speed]) -> None:
    """Bars of both directions against a copy, for the largest size, one thread, the first distribution."""
    largest = max(figure.elements for figure in figures)
    first = figures[0]
    shown = [
        figure
        for figure in figures
        if (figure.elements, figure.threads, figure.distribution) == (largest, first.threads, first.distribution)
    ]
    drawing = Drawing(figsize=(8.0, 1.2 + 0.42 * len(shown)), dpi=150, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.subplots()
    place = range(len(shown))
    encoded, decoded = zip(*((figure.encode_of_copy, figure.decode_of_copy) for figure in shown), strict=True)
    axes.barh([y - 0.2 for y in place], encoded, 0.38, label="encode", color="#0072B2")
    axes.barh([y + 0.2 for y in place], decoded, 0.38, label="decode", color="#E69F00")
    axes.axvline(1.0, color="#555555", lw=1, ls="--")
    axes.set_yticks(place, [f"{figure.codec} ({8 * figure.bytes_per_element:.3g} bit)" for figure in shown])
    axes.invert_yaxis()
    axes.set_xlabel("speed against a copy of the same float32 array")
    axes.margins(y=0.02)
    axes.spines[["top", "right"]].set_visible(False)
    count = "1 thread" if first.threads == 1 else f"{first.threads} threads"
    axes.set_title(f"{largest / 1e6:g}M elements, {first.distribution}, {count}", loc="left", fontweight="bold")
    axes.legend(frameon=False)
    save(drawing, path)


def table(figures: Sequence[Speed]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table, one row a figure."""
    heads = ["codec", "elements", "distribution", "threads", "encode GB/s", "of a copy", "decode GB/s", "of a copy"]
    cells = [
        [
            figure.codec,
            f"{figure.elements / 1e6:g}M",
            figure.distribution,
            str(figure.threads),
            f"{figure.encode_gbyte_s:.2f}",
            f"{figure.encode_of_copy:.2f}",
            f"{figure.decode_gbyte_s:.2f}",
            f"{figure.decode_of_copy:.2f}",
            f"{figure.bytes_per_element:.4g}",
            f"{figure.nmse:.4g}",
        ]
        for figure in figures
    ]
    return [*heads, "bytes/element", "NMSE"], cells
