"""The training systems by name; the modules of this package, which need torch, are imported when one is looked up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.plugins import Registry

if TYPE_CHECKING:
    from testbed.systems.protocols.base import System

SYSTEMS: Registry[type[System]] = Registry("system", "testbed.systems")
"""Every system by the name it has in an experiment file."""
