"""What a computation is charged."""

from __future__ import annotations

import pytest

from testbed.errors import InputError
from testbed.roles.compute import DEVICES, MEASURED, compute_model
from testbed.systems import Work


def test_a_modelled_device_adds_launch_arithmetic_and_memory() -> None:
    device = DEVICES["m60"]
    arithmetic, memory = device.gflops * 1e9, device.memory_gbyte_s * 1e9
    work = Work(flops=2 * arithmetic, nbytes=3 * memory, coding_nbytes=memory)
    assert device.seconds(work) == pytest.approx(device.launch_ms / 1e3 + 6)
    assert device.seconds(Work()) == 0, "nothing was started"


def test_products_of_matrices_have_a_rate_of_their_own_where_one_is_known() -> None:
    products = Work(gemm_flops=2e12)
    assert DEVICES["m60"].seconds(products) == DEVICES["m60"].seconds(Work(flops=2e12))
    faster = DEVICES["m60-gemm"]
    assert faster.seconds(products) == pytest.approx(faster.launch_ms / 1e3 + 2e3 / faster.gemm_gflops)  # type: ignore[operator]
    assert faster.seconds(Work(flops=2e12)) == DEVICES["m60"].seconds(products)
    assert (products + products).gemm_flops == 4e12


def test_of_one_computation_the_records_know_what_was_coding() -> None:
    both = Work(nbytes=3.0) + Work(coding_nbytes=1.0)
    assert both == Work(nbytes=3.0, coding_nbytes=1.0) and both.coding_share == 0.25
    assert Work(coding_nbytes=2.0).coding_share == 1
    assert Work().coding_share == Work(flops=1.0, coding_nbytes=1.0).coding_share == 0
    assert Work(gemm_flops=1.0, coding_nbytes=1.0).coding_share == 0


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
