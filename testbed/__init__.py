"""A testbed for training one model across data centers joined by an emulated wide-area network.

`testbed.run("cifarnet")` runs an experiment and returns its records; `testbed.load(folder)` reads those of a run.
`testbed.System`, `testbed.CodecSystem`, `testbed.model`, `testbed.dataset` and others are for parts of one's own.
Everything is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOME = {
    "Codec": "codecs.base",
    "CodecSystem": "systems.protocols.codec_system",
    "DEVICES": "roles.compute",
    "Device": "roles.compute",
    "Experiment": "experiment.schema",
    "InputError": "errors",
    "Link": "wan.profile",
    "Options": "systems.protocols.base",
    "PROFILES": "wan.profile",
    "Profile": "wan.profile",
    "Run": "api",
    "RunError": "errors",
    "Series": "api",
    "System": "systems.protocols.base",
    "TestbedError": "errors",
    "compare": "api",
    "load": "api",
    "run": "api",
}

if TYPE_CHECKING:
    from testbed.api import Run as Run
    from testbed.api import Series as Series
    from testbed.api import compare as compare
    from testbed.api import load as load
    from testbed.api import run as run
    from testbed.codecs.base import Codec as Codec
    from testbed.errors import InputError as InputError
    from testbed.errors import RunError as RunError
    from testbed.errors import TestbedError as TestbedError
    from testbed.experiment.schema import Experiment as Experiment
    from testbed.roles.compute import DEVICES as DEVICES
    from testbed.roles.compute import Device as Device
    from testbed.systems.protocols.base import Options as Options
    from testbed.systems.protocols.base import System as System
    from testbed.systems.protocols.codec_system import CodecSystem as CodecSystem
    from testbed.wan.profile import PROFILES as PROFILES
    from testbed.wan.profile import Link as Link
    from testbed.wan.profile import Profile as Profile


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'testbed' has no attribute '{name}'")
    return getattr(importlib.import_module(f"testbed.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
