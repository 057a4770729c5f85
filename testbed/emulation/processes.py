"""What /proc says of a process that others depend on: whether it can run, and how long it has."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DEAD, STOPPED = "ZX", "Tt"  # states; a dead process has its entry until it is waited for


def ailment(pid: int) -> str:
    """Why a process cannot run: "died" or "is stopped"; "" where it can."""
    fields = _fields(pid)
    if not fields or fields[0] in DEAD:
        return "died"
    return "is stopped" if fields[0] in STOPPED else ""


def worked_s(pid: int) -> float:
    """Processor time of a process so far, all its threads together; 0 for one that is gone."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S if fields else 0.0


def children(pid: int) -> dict[str, int]:
    """Process ids of the children of a process, by the kernel's name for what they run."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(path.name))
        if fields and int(fields[1]) == pid:
            found[_name(int(path.name))] = int(path.name)
    return found


def _fields(pid: int) -> list[str]:
    """`/proc/PID/stat` behind the name, which may hold anything: state, parent, ...; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
