"""Which fabric a run takes, and why."""

from __future__ import annotations

import importlib.util

from testbed.errors import InputError
from testbed.fabrics.emulation import sandbox

NEEDED = ("ray", "mininet", "zmq", "pyroute2")


def choose(wanted: str, not_virtual: str = "", not_emulated: str = "") -> tuple[str, str]:
    """The fabric to take for "auto", "mininet" or "virtual", and one line that says why ("" when it was asked for).

    Parameters
    ----------
    not_virtual, not_emulated : why that fabric cannot run the experiment anywhere; "" where it can

    Raises
    ------
    InputError
        The fabric that was asked for, or none, can run it here.
    """
    if wanted == "virtual":
        _refuse("the virtual fabric", not_virtual)
        return "virtual", ""
    not_here = not_emulated or _why_no_emulation() or ""
    if wanted == "mininet":
        _refuse("the mininet fabric", not_here)
        return "mininet", ""
    if not_here:
        _refuse(f"emulation cannot run this here ({not_here}), and the virtual fabric", not_virtual)
        return "virtual", f"fabric: virtual, because emulation cannot run this here: {not_here}"
    return "mininet", "fabric: mininet (auto takes it wherever it can run)"


def _refuse(which: str, why_not: str) -> None:
    if why_not:
        raise InputError(f"{which} cannot run this here: {why_not}")


def _why_no_emulation() -> str | None:
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"Python packages missing: {', '.join(absent)}; install with pip install '.[emulation]'"
    return sandbox.available()
