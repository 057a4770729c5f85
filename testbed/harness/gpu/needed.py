"""The time a GPU of known figures needs for what a step asks of it, and the table of it by system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from testbed.harness.gpu.counts import StepCounts

TABLE = Path(__file__).with_name("figures.toml")
HEADS = (
    "system",
    "started",
    "of them graphs",
    "operations in graphs",
    "waits",
    "to the device",
    "from it",
    "memory moved",
    "program",
    "device: operations",
    "memory",
    "arithmetic",
    "step",
)


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU; see the comments in `figures.toml`."""

    launch_us: float
    graph_us: float
    node_us: float
    wait_us: float
    memory_gbyte_s: float
    link_gbyte_s: float
    gflops: float
    source: str


FIGURES: dict[str, Figures] = msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, Figures])
"""By the name of the GPU."""


class Needed(msgspec.Struct, frozen=True):
    """Milliseconds of a step.

    Attributes
    ----------
    program : what it takes to start everything
    starting, memory, arithmetic : what the device then has to do: the least time of each operation, memory moved, and
        the gradients' products
    step : the longer of the two, since they overlap, and the waits, in which they do not
    """

    program: float
    starting: float
    memory: float
    arithmetic: float
    step: float


def needed(counts: StepCounts, gpu: Figures) -> Needed:
    """What a step takes a GPU, at most: nothing runs side by side, and all memory is beyond the caches."""
    program_us = (counts.launches - counts.graphs + counts.ups) * gpu.launch_us + counts.graphs * gpu.graph_us
    operations = counts.launches - counts.graphs + counts.captured
    starting_us = operations * gpu.node_us
    memory_us = counts.touched / gpu.memory_gbyte_s / 1e3 + (counts.up + counts.down) / gpu.link_gbyte_s / 1e3
    arithmetic_us = counts.flops / gpu.gflops / 1e3
    step_us = max(program_us, starting_us + memory_us + arithmetic_us) + counts.waits * gpu.wait_us
    return Needed(*(each / 1e3 for each in (program_us, starting_us, memory_us, arithmetic_us, step_us)))


def table(found: Mapping[str, StepCounts], gpu: Figures) -> tuple[list[str], list[list[str]]]:
    """Heads and cells, a row a system."""
    cells = []
    for system, counts in found.items():
        times = needed(counts, gpu)
        cells.append(
            [
                system,
                f"{counts.launches:.0f}",
                f"{counts.graphs:.1f}",
                f"{counts.captured:.0f}",
                f"{counts.waits:.2g}",
                _bytes(counts.up),
                _bytes(counts.down),
                _bytes(counts.touched),
                *(f"{each:.2f} ms" for each in msgspec.structs.astuple(times)),
            ]
        )
    return list(HEADS), cells


def records(found: Mapping[str, StepCounts]) -> list[dict[str, object]]:
    """The counts as plain data."""
    return [{"system": system, **msgspec.to_builtins(counts)} for system, counts in found.items()]


def read(rows: Sequence[dict[str, object]]) -> dict[str, StepCounts]:
    """The inverse of `records`."""
    return {
        str(row["system"]): StepCounts(**{key: value for key, value in row.items() if key != "system"})  # type: ignore[arg-type]
        for row in rows
    }


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
