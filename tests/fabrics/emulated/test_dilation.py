"""How far an emulation is slowed down for a device that is faster than this machine."""

from __future__ import annotations

import pytest
from small_runs import experiment

from testbed.errors import InputError
from testbed.experiment.assembly import Assembly
from testbed.fabrics.emulated.dilation import MOST, choose_dilation


def chosen(**compute: object) -> float:
    return choose_dilation(Assembly(experiment(compute=compute, model={"name": "cifarnet"})))


def test_math_that_is_measured_needs_none_and_what_is_asked_for_is_taken(small_data: None) -> None:
    assert chosen(device="measured") == 1
    assert chosen(device="h100", dilation=300.0) == 300


@pytest.mark.slow
def test_a_slow_device_needs_little_and_a_fast_one_too_much_to_be_meant(small_data: None) -> None:
    assert 1 <= chosen(device="k40") <= MOST
    with pytest.raises(
        InputError, match=r"play 4 of 'h100', this machine needs [\d,]+ seconds .* \(--fabric virtual\)"
    ):
        chosen(device="h100")


@pytest.mark.emulation
def test_a_system_that_codes_much_needs_more(small_data: None) -> None:
    """An entropy code takes this machine many times as long as it is charged, a sum of float32 hardly longer."""
    parts = {"compute": {"device": "k40"}, "model": {"name": "cifarnet"}}
    plain, coded = (
        choose_dilation(Assembly(experiment(**parts, systems={system: {}}, training={"batch_size": 64})))
        for system in ("baseline", "concord")
    )
    assert coded > 1.5 * plain
