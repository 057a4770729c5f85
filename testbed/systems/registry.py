"""The training systems by name; the modules of this package, which need torch, are imported when one is looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.errors import InputError
from testbed.files import plain_name
from testbed.plugins import Registry

if TYPE_CHECKING:
    from testbed.systems.protocols.base import System

SYSTEMS: Registry[type[System]] = Registry("system", "testbed.systems")
"""Every system by the name it has in an experiment file."""


def check_name(name: object) -> None:
    """Raise InputError where a system cannot be called so: its records lie in a folder of that name."""
    if not isinstance(name, str):
        raise InputError(f"{name!r} is no name; a system's is a string of letters, digits and -_.+")
    if wrong := [c for c in name if not (c.isalnum() or c in "-_.+")]:
        raise InputError(f"{wrong[0]!r} in a name that records are kept under; letters, digits and -_.+ are fine")
    plain_name(name, "the name")
