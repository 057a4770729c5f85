"""The training systems, one file each: a module of this package, or of a plug-in, that defines a named `System` is one.

What several of them share is in `protocols`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from testbed.roles import Node, Work
from testbed.systems.registry import SYSTEMS

if TYPE_CHECKING:
    from testbed.systems.protocols.base import Options, System, Task

__all__ = ["SYSTEMS", "Node", "Options", "System", "Task", "Work"]


def __getattr__(name: str) -> Any:  # of what needs torch, which reading an experiment file does not
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("testbed.systems.protocols.base"), name)
