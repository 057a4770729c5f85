"""The training systems, each in one file: a module of this package that defines a named `System` is one."""

import importlib
import pkgutil

from testbed.systems.base import SYSTEMS, Options, System, Task
from testbed.systems.node import Node, Work

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["SYSTEMS", "Node", "Options", "System", "Task", "Work"]
