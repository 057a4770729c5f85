"""What coding costs, measured: the table that modelled devices charge codecs by (`testbed.codecs.costs`).

Each round times a copy of a float32 vector and every operation once, in turn, on one thread; medians over the rounds
are set in relation. A codec whose time depends on how much its message holds is timed with two settings, which tell
what the vector takes and what the message's bytes take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from rich.progress import track

from testbed import codecs
from testbed.codecs import Key, dct
from testbed.codecs.costs import COSTS, UNKNOWN, Cost, size_of
from testbed.codecs.factors import Dithered, FactorCodec, LloydMax
from testbed.codecs.lossless.planes import coded_levels
from testbed.codecs.memory import Residual, adder
from testbed.codecs.ternary import LOSS_AWARE
from testbed.errors import InputError
from testbed.experiment import assembly
from testbed.files import write_whole
from testbed.layout import Factors, Layer, Layout
from testbed.report.aside import Aside

WIDTH = 1000
LEAST = 2 * WIDTH  # elements: one sample's two factors
SUMMED = 4  # messages
MOMENTS = 20  # gradients of which an optimizer's second moments are the mean, with beta2 = 0.95
KEPT = ("float32", UNKNOWN)  # rows that are stated, not measured
OPERATIONS = ("encode", "decode", "add", "survey")

Operation = Callable[[], Any]


@dataclass
class Subject:
    """One setting of a codec: its operations on vectors of `elements`, and the bytes of its message."""

    row: str
    elements: int
    nbytes: int
    operations: dict[str, Operation]
    forget: Operation = lambda: None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def time(self) -> None:
        for name, operation in self.operations.items():
            self.forget()
            self.seconds.setdefault(name, []).append(_seconds(operation))

    def copies(self, name: str, copy_s: float, of: int) -> float:
        """An operation's time in copies of its own vector, where copying `of` elements takes `copy_s`."""
        return median(self.seconds[name]) / copy_s * of / self.elements if name in self.seconds else 0.0


def measure(elements: int, rounds: int) -> dict[str, Cost]:
    """Time all codecs on Gaussian vectors of so many elements, with progress on standard error.

    Raises
    ------
    InputError
        They are fewer than `LEAST`.
    """
    if elements < LEAST:
        raise InputError(f"--size {elements}: the costs are timed on vectors of at least {LEAST:,} elements, e.g. 1M")
    vector = torch.randn(-(-elements // WIDTH) * WIDTH, generator=torch.Generator().manual_seed(0))
    with assembly.threads(1):
        subjects = [*_codecs(vector), _transform(vector), *_sums(vector), *_factors(vector)]
        copy, copies_s = torch.empty_like(vector), []
        for _ in track(range(rounds), "costs of coding", transient=True, console=Aside()):
            copies_s.append(_seconds(lambda: copy.copy_(vector)))
            for subject in subjects:
                subject.time()
    copy_s = median(copies_s)
    rows: dict[str, list[Subject]] = {}
    for subject in subjects:
        rows.setdefault(subject.row, []).append(subject)
    found = {name: _cost(settings, copy_s, len(vector)) for name, settings in rows.items()}
    return {name: COSTS[name] for name in KEPT} | _without_entropy(found, rows)


def _cost(settings: Sequence[Subject], copy_s: float, of: int) -> Cost:
    """The row of one codec, from one setting or two."""
    figures: dict[str, float] = {}
    for name in OPERATIONS:
        first, last = (each.copies(name, copy_s, of) for each in (settings[0], settings[-1]))
        sizes = [each.nbytes / 4 / each.elements for each in (settings[0], settings[-1])]
        slope = (last - first) / (sizes[1] - sizes[0]) if sizes[0] != sizes[1] and name != "survey" else 0.0
        rest = first - slope * sizes[0]
        if slope > 0:
            figures |= {name: rest, f"{name}_message": slope} if rest > 0 else {f"{name}_message": last / sizes[1]}
        else:
            figures[name] = (first + last) / 2
    return Cost(**{"encode": 0.0, "decode": 0.0, "add": 0.0} | {name: round(f, 3) for name, f in figures.items()})


def _without_entropy(found: dict[str, Cost], rows: dict[str, list[Subject]]) -> dict[str, Cost]:
    """The row of levels that become symbols without the entropy coder's part, which is a row of its own."""
    name, coder = "bit planes to symbols", found["entropy coder"]
    subject = rows[name][0]
    symbols = subject.nbytes / subject.elements  # `nbytes` counts them here
    whole = found[name]
    encode, decode = (max(whole.encode - coder.survey * symbols, 0.0), max(whole.decode - coder.decode * symbols, 0.0))
    return found | {name: Cost(encode=round(encode, 3), decode=round(decode, 3), add=round(decode, 3))}


def _codecs(vector: torch.Tensor) -> list[Subject]:
    layout = _layout(len(vector))
    plain: dict[str, Sequence[Any]] = {
        "float16": [codecs.Half(layout)],
        "ternary": [codecs.Ternary(layout)],
        "threshold ternary": [codecs.ThresholdTernary(layout)],
        "ternary, blockwise": [codecs.BlockTernary(layout)],
        "threshold ternary, blockwise": [codecs.BlockThresholdTernary(layout)],
        "1-bit": [codecs.OneBit(layout)],
        "uniform": [codecs.Uniform(layout, bits, "random") for bits in (2, 8)],
        "E3M0": [codecs.E3M0(layout)],
        "QSGD, fixed": [codecs.QSGD(layout, levels) for levels in (1, 127)],
        "QSGD, elias": [codecs.QSGD(layout, levels, coding="elias") for levels in (1, 7)],
        "adaptive": [codecs.Adaptive(layout, error) for error in (0.2, 0.01)],
        "top-k": [codecs.TopK(layout, kept) for kept in (0.001, 0.05)],
        "chunked top-k": [codecs.ChunkedTopK(layout, kept) for kept in (1 / 256, 1 / 16)],
        "statistical": [codecs.Statistical(layout)],
        "thresholded": [codecs.Thresholded(layout, threshold) for threshold in (3.3, 2.0)],
        "dgc": [codecs.DGC(layout, 1, sparsity=sparsity, warmup_epochs=0) for sparsity in (0.999, 0.75)],
    }
    random = torch.Generator().manual_seed(1)
    squares = [torch.randn(len(vector), generator=random).square() for _ in range(MOMENTS)]
    importance = torch.stack(squares).mean(0).sqrt()
    aware = codecs.ThresholdTernary(layout)
    fed_back = ("threshold ternary, blockwise", "1-bit", "uniform", "adaptive", "thresholded")
    subjects = [_subject(row, codec, vector) for row, settings in plain.items() for codec in settings]
    for row in fed_back:
        subjects += [_subject(f"{row} with feedback", codecs.ErrorFeedback(codec), vector) for codec in plain[row]]
    subjects.append(_subject(LOSS_AWARE, aware, vector, partial(aware.encode, vector, importance=importance)))
    for quantile in (3.3, 2.0):
        kept = torch.where(vector.abs() > quantile, vector, 0.0)
        subjects.append(_subject("sparse", codecs.Sparse(layout), kept))
    return subjects


def _subject(row: str, codec: Any, vector: torch.Tensor, own: Callable[[], Any] | None = None) -> Subject:
    """A codec of whole vectors, `own` its way to encode where that is not plain; its first messages are a warm-up."""
    remembering = codecs.remembering(codec)
    memory, out, total = remembering.start(), torch.empty_like(vector), torch.zeros_like(vector)
    steps = iter(range(1 << 30))

    def encode() -> list[np.ndarray]:
        if own is not None:
            return own()
        return remembering.encode(vector, Key(0, 0, next(steps)), memory)

    add = adder(remembering)
    for _ in range(3):
        if isinstance(memory, Residual):  # what is fed back would make each message hold more than the one before
            memory.residual.zero_()
        buffers = encode()
        remembering.decode(buffers, out)
        add(buffers, total)
    operations: dict[str, Operation] = {
        "encode": encode,
        "decode": lambda: remembering.decode(buffers, out),
        "add": lambda: add(buffers, total),
    }
    if isinstance(codec, codecs.Ternary):
        operations["survey"] = lambda: codec.limits(vector)
    forget = memory.residual.zero_ if isinstance(memory, Residual) else lambda: None
    return Subject(row, len(vector), size_of(buffers), operations, forget)


def _transform(vector: torch.Tensor) -> Subject:
    """DeMo's, there and back."""
    blocks = dct.Blocks(_layout(len(vector)), 64)
    coefficients = blocks.forward(vector)
    operations = {"encode": lambda: blocks.forward(vector), "decode": lambda: blocks.inverse(coefficients)}
    return Subject(dct.ROW, len(vector), 4 * len(vector), operations)


def _sums(vector: torch.Tensor) -> list[Subject]:
    """Sums of ternary messages on one scale, and their entropy coding."""
    ternary = codecs.Ternary(_layout(len(vector)))
    scales = ternary.limits(vector).scales
    messages = [ternary.encode(vector, Key(0, worker, 0), scales) for worker in range(SUMMED)]
    sums = codecs.LevelSum(ternary, SUMMED)
    half, whole = codecs.LevelSum(ternary, SUMMED // 2), sums.sum(messages)
    packed, halves = sums.encode(whole), [half.encode(half.sum(messages[k : k + 2])) for k in (0, 2)]
    out = torch.empty_like(vector)

    def sum_of(count: int) -> Operation:
        return lambda: sums.sum(messages[:count])

    coder, planes = codecs.EntropyCoded(ternary), coded_levels(sums, ternary)
    coded, coded_planes = coder.pack(messages[0]), planes.pack(packed)
    symbols, levels = coder.runs.symbols, planes.runs.levels
    return [
        Subject(
            "sum of levels",
            len(vector),
            size_of(packed),
            {
                "encode": lambda: sums.encode(whole),
                "decode": lambda: sums.decode(packed, out),
                "add": lambda: sums.add(half.unpack(each) for each in halves[:1]),
            },
        ),
        Subject("trits summed as levels", len(vector), size_of(messages[0]), {"decode": sum_of(1), "add": sum_of(1)}),
        Subject(
            "entropy coder",
            symbols,
            size_of(coded),
            {
                "encode": lambda: coder.pack(messages[0]),
                "decode": lambda: coder.unpack(coded),
                "add": lambda: coder.unpack(coded),
                "survey": lambda: coder.survey(messages[0]),
            },
        ),
        Subject(
            "bit planes to symbols",
            levels,
            planes.runs.symbols,
            {"encode": lambda: planes.survey(packed), "decode": lambda: planes.unpack(coded_planes)},
        ),
    ]


def _factors(vector: torch.Tensor) -> list[Subject]:
    """Factors of a linear layer, as many elements in all as the vector has, or a little less."""
    samples = len(vector) // (2 * WIDTH)
    layout = Layout((Layer("layer.weight", (WIDTH, WIDTH), 0, last=False),))
    pair = vector[: samples * WIDTH].view(samples, WIDTH), vector[-samples * WIDTH :].view(samples, WIDTH)
    return [
        _factor_subject("factors, nearest point", LloydMax(layout, samples), pair),
        _factor_subject("factors, dithered", Dithered(layout, samples), pair),
    ]


def _factor_subject(row: str, codec: FactorCodec, pair: Factors) -> Subject:
    key = Key(0, 0, 0)
    buffers = codec.encode([pair], key)

    def decode() -> None:
        codec.decode(buffers, key)

    operations: dict[str, Operation] = {"encode": lambda: codec.encode([pair], key), "decode": decode, "add": decode}
    return Subject(row, codec.elements, size_of(buffers), operations)


def _layout(size: int) -> Layout:
    return Layout((Layer("layer.weight", (size // WIDTH, WIDTH), 0, last=False),))


def _seconds(work: Operation) -> float:
    began_s = perf_counter()
    work()
    return perf_counter() - began_s


def write(path: Path, table: dict[str, Cost], note: str) -> None:
    """The table as `testbed.codecs.costs` reads it, with a note of what it was measured on."""
    lines = [f"# Written by `testbed bench costs`; see testbed/codecs/costs.py. {note}"]
    for name, row in table.items():
        figures = {key: getattr(row, key) for key in row.__struct_fields__}
        needed = ("encode", "decode", "add")
        lines += [
            "",
            f'["{name}"]',
            *(f"{key} = {value!r}" for key, value in figures.items() if value or key in needed),
        ]
    write_whole(path, "\n".join(lines) + "\n")
