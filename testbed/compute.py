"""What a computation costs: the time this machine took, or the time a named device would take.

A device is described by three sourced figures in `devices.toml`: the rate it reaches on training arithmetic,
the rate at which it moves memory, and the time to launch one computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed.errors import InputError, nearest
from testbed.systems.node import Work

TABLE = Path(__file__).with_name("devices.toml")
MEASURED = "measured"


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A modelled device; every rate is what training reaches, not the data sheet's peak."""

    gflops: float
    memory_gbyte_s: float
    launch_ms: float
    source: str

    def seconds(self, work: Work) -> float:
        """Time for `work`."""
        arithmetic_s = work.flops / (self.gflops * 1e9)
        memory_s = work.nbytes / (self.memory_gbyte_s * 1e9)
        return self.launch_ms / 1e3 + arithmetic_s + memory_s


@dataclass(frozen=True)
class ComputeModel:
    """Where the time of `node.compute` comes from; `device` None means measured."""

    name: str
    device: Device | None


def devices() -> dict[str, Device]:
    """All modelled devices by name."""
    return msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, Device])


def compute_model(name: str) -> ComputeModel:
    """The model called `name`: "measured" or a device.

    Raises
    ------
    InputError
        No such device.
    """
    if name == MEASURED:
        return ComputeModel(name, None)
    table = devices()
    if name not in table:
        raise InputError(f"compute.device: no device '{name}'{nearest(name, [MEASURED, *table])}")
    return ComputeModel(name, table[name])
