"""`fidelity.json` and the printed table: what was measured of a profile's network, against what it says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

from testbed.fidelity.values import Value, number
from testbed.files import write_whole
from testbed.record.info import environment

if TYPE_CHECKING:  # Mininet, which a run on the virtual fabric does without
    from testbed.fidelity.measure import Result

JSON_NAME = "fidelity.json"
FORMAT = 1
PIPE_WIDTH = 160  # columns of a table that goes to a file or a pipe


def as_record(result: Result, facts: dict[str, Any]) -> dict[str, Any]:
    """The whole of `fidelity.json`; `facts` are those that only the caller knows."""
    missed = [figure for figure in result.figures if not figure.ok]
    return {
        "format": FORMAT,
        **facts,
        "ok": not missed,
        "missed": len(missed),
        "root": os.geteuid() == 0 and _own_user_namespace() is False,
        "delay_mechanism": result.mechanism,
        "delay_report": result.delay_report,
        "environment": msgspec.to_builtins(environment()),
        "figures": [figure.record() for figure in result.figures],
    }


def _own_user_namespace() -> bool:
    """Whether this process is root only in a user namespace of its own."""
    ranges = Path("/proc/self/uid_map").read_text().split()
    return ranges[1:] != ["0", "4294967295"]


def write(path: Path, record: dict[str, Any]) -> None:
    """Write the record, whole or not at all."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def show(figures: Sequence[Value], console: Console | None = None) -> None:
    """One line per section and the figure nearest to, or furthest beyond, its bound; then every miss."""
    console = console or Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    table = Table(title="asked and measured, the worst of each section", title_justify="left")
    for column in ("section", "figures", "worst", "asked", "measured", "bound", ""):
        table.add_column(column, justify="right" if column in ("figures", "asked", "measured") else "left")
    for section in dict.fromkeys(figure.section for figure in figures):
        there = [figure for figure in figures if figure.section == section]
        worst = max(there, key=lambda figure: figure.off)
        passed = sum(figure.ok for figure in there)
        verdict = "pass" if passed == len(there) else f"FAIL {len(there) - passed}"
        table.add_row(section, str(len(there)), *_cells(worst), verdict)
    console.print(table)
    missed = [figure for figure in figures if not figure.ok]
    if missed:
        table = Table(title=f"{len(missed)} of {len(figures)} miss their bound", title_justify="left")
        for column in ("section", "of", "asked", "measured", "bound"):
            table.add_column(column)
        for figure in missed:
            table.add_row(figure.section, *_cells(figure))
        console.print(table)


def _cells(figure: Value) -> tuple[str, str, str, str]:
    measured = "nothing" if figure.measured is None else f"{number(figure.measured)} {figure.unit}"
    return figure.name, f"{number(figure.asked)} {figure.unit}", measured, figure.bound.text(figure.unit)


def newest(folder: Path, profile: str, kernel: str) -> Path | None:
    """The newest `fidelity.json` below `folder` for a profile and kernel, None where there is none."""
    found = []
    for path in folder.rglob(JSON_NAME):
        try:
            record = msgspec.json.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        if record.get("profile") == profile and record.get("environment", {}).get("kernel") == kernel:
            found.append((record.get("date", ""), path))
    return max(found)[1] if found else None


def evidence(folder: Path, profile: str, kernel: str) -> dict[str, Any]:
    """What a run's report says of the newest fidelity record for its profile and kernel; empty without one.

    Returns
    -------
    `path` of the record, its `date`, how many `figures` it holds, and how many of them `missed` their bound.
    """
    path = newest(folder, profile, kernel)
    if path is None:
        return {}
    record = msgspec.json.decode(path.read_bytes())
    return {
        "path": str(path),
        "date": record.get("date", ""),
        "figures": len(record.get("figures", [])),
        "missed": record.get("missed", 0),
    }


def now() -> str:
    """ISO 8601 with offset."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
