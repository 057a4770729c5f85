"""The names of a series' runs, "workers=2-batch=60": keys that were swept, and their values."""

from __future__ import annotations

import re

POINT = "point"


def swept(label: str) -> list[tuple[str, str]]:
    """Keys and values of a label; values may hold a "-" (5e-06), and so may keys (isgq-mse.bits)."""
    return re.findall(r"(?:^|-)([a-z][^=]*)=(.*?)(?=-[a-z][^=]*=|$)", label)


def short(label: str) -> str:
    """The values of a label: "workers=2-batch=60" is "2 / 60"."""
    return " / ".join(value for _, value in swept(label)) or label


def key(label: str) -> str:
    """The swept keys of a label: "workers / batch"."""
    return " / ".join(key.replace("_", " ") for key, _ in swept(label)) or POINT
