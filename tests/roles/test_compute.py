"""What a computation is charged."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.roles.compute import DEVICES, MEASURED, compute_model
from testbed.systems import Work


def test_a_modelled_device_adds_launch_arithmetic_and_memory() -> None:
    device = DEVICES["m60"]
    work = Work(flops=2 * device.gflops * 1e9, nbytes=3 * device.memory_gbyte_s * 1e9)
    assert device.seconds(work) == pytest.approx(device.launch_ms / 1e3 + 5)
    assert device.seconds(Work()) == device.launch_ms / 1e3


def test_every_device_has_a_source() -> None:
    assert DEVICES
    for name, device in DEVICES.items():
        assert device.source, name
        assert min(device.gflops, device.memory_gbyte_s) > 0, name


def test_measured_has_no_device() -> None:
    assert compute_model(MEASURED).device is None


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(InputError, match=r"compute\.device: no device 'M60'; did you mean 'm60'\?"):
        compute_model("M60")
