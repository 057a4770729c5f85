"""Which fabric a run takes, and why."""

from __future__ import annotations

import importlib.util

from testbed.errors import InputError
from testbed.fabrics.emulation import sandbox

NEEDED = ("ray", "mininet", "zmq", "pyroute2")


def choose(wanted: str) -> tuple[str, str]:
    """The fabric to take for "auto", "mininet" or "virtual", and one line that says why ("" when it was asked for).

    Raises
    ------
    InputError
        Mininet was asked for and cannot run here.
    """
    if wanted == "virtual":
        return "virtual", ""
    why_not = _why_no_emulation()
    if wanted == "mininet":
        if why_not:
            raise InputError(f"the mininet fabric cannot run here: {why_not}")
        return "mininet", ""
    if why_not:
        return "virtual", f"fabric: virtual, because emulation cannot run here: {why_not}"
    return "mininet", "fabric: mininet (auto takes it wherever it can run)"


def _why_no_emulation() -> str | None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"Python packages missing: {', '.join(absent)}; install with pip install '.[emulation]'"
    return sandbox.available()
