"""A testbed for training one model across data centers joined by an emulated wide-area network.

`testbed.run("cifarnet")` runs an experiment and returns its records; `testbed.load(folder)` reads those of a run.
`testbed.System`, `testbed.CodecSystem`, `testbed.model`, `testbed.dataset` and others are for parts of one's own.
Everything is imported when it is first used.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.2.0"

# The one list of public names is the package's stub, which type checkers read, too.
_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: module for module, name in re.findall(r"^from (testbed\S*) import \w+ as (\w+)$", _STUB, re.MULTILINE)}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'testbed' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
