"""What a computation costs: the time this machine took, or the time a named device would take.

A device is described by sourced figures in `devices.toml`: the rate it reaches on training arithmetic, the rate at
which it moves memory, and the time to launch one computation; and where products of matrices by themselves are faster
than training, their rate. A plug-in adds one with `DEVICES.add("mine", Device(...), __name__)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from testbed.errors import InputError, nearest
from testbed.plugins import Registry

TABLE = Path(__file__).with_name("devices.toml")
AUTO = "auto"  # what suits the fabric: measured where time is real, `MODELLED` where it is virtual
MEASURED = "measured"
MODELLED = "m60"  # WeightGrad's own device (KDD 2020, 5.1)


@dataclass(frozen=True)
class Work:
    """How much a computation does, for a modelled device: floating-point operations and bytes of memory moved.

    `seconds` pass on any device: what the links between a worker's GPUs take (`testbed.roles.gpu_links`).
    `coding_nbytes` are moved by the coding and decoding of what travels (`testbed.codecs.costs`), which the records
    keep apart from the rest of a step's compute time. `gemm_flops` are those of products of whole matrices that are no
    part of a gradient: Muon's, low ranks'. Where there is nothing to do, nothing is charged.
    """

    flops: float = 0.0
    nbytes: float = 0.0
    coding_nbytes: float = 0.0
    seconds: float = 0.0
    gemm_flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.nbytes + other.nbytes,
            self.coding_nbytes + other.coding_nbytes,
            self.seconds + other.seconds,
            self.gemm_flops + other.gemm_flops,
        )

    @property
    def coding_share(self) -> float:
        """The part of the time that is coding's, by the memory moved; a computation with arithmetic has none."""
        moved = self.nbytes + self.coding_nbytes
        return self.coding_nbytes / moved if moved and not (self.flops or self.gemm_flops) else 0.0


NOTHING = Work()


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A modelled device; every rate is what training reaches, not the data sheet's peak.

    `gemm_gflops` is the rate of products of matrices by themselves; as training's, where it is not given.
    """

    gflops: float
    memory_gbyte_s: float
    launch_ms: float
    source: str
    gemm_gflops: float | None = None

    def seconds(self, work: Work) -> float:
        """Time for `work`."""
        if work == NOTHING:
            return 0.0
        arithmetic_s = (work.flops / self.gflops + work.gemm_flops / (self.gemm_gflops or self.gflops)) / 1e9
        memory_s = (work.nbytes + work.coding_nbytes) / (self.memory_gbyte_s * 1e9)
        return self.launch_ms / 1e3 + arithmetic_s + memory_s + work.seconds


DEVICES: Registry[Device] = Registry("device")
"""All modelled devices by name."""

for _name, _device in msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, Device]).items():
    DEVICES.add(_name, _device, __name__)


@dataclass(frozen=True)
class ComputeModel:
    """Where the time of `node.compute` comes from; `device` None means measured."""

    name: str
    device: Device | None


def compute_model(name: str) -> ComputeModel:
    """The model called `name`: "measured" (which "auto" is until a fabric is chosen) or a device.

    Raises
    ------
    InputError
        No such device.
    """
    if name in (AUTO, MEASURED):
        return ComputeModel(MEASURED, None)
    if name not in DEVICES:
        raise InputError(f"compute.device: no device '{name}'{nearest(name, [AUTO, MEASURED, *DEVICES])}")
    return ComputeModel(name, DEVICES[name])
