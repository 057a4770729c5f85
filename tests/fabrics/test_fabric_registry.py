"""What only one fabric can do decides the fabric, or is refused in a line that says why."""

from __future__ import annotations

import pytest
from small_runs import experiment

from testbed.errors import InputError
from testbed.fabrics.registry import FABRICS, choose

MODELLED_TCP = experiment(network={"slow_start": True, "tcp_window_kb": 64})


@pytest.fixture(autouse=True)
def emulation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FABRICS["mininet"], "cannot_run_here", lambda: "")


def test_a_modelled_tcp_takes_the_virtual_fabric() -> None:
    kind, why = choose("auto", [MODELLED_TCP])
    assert kind.name == "virtual"
    assert "because mininet cannot run this here: it has a TCP of its own, and no network.tcp_window_kb" in why
    with pytest.raises(InputError, match=r"the mininet fabric cannot run this here: .*network\.tcp_window_kb"):
        choose("mininet", [MODELLED_TCP])


def test_a_plain_experiment_runs_on_both() -> None:
    for fabric in ("mininet", "virtual"):
        assert choose(fabric, [experiment()]) == (FABRICS[fabric], "")
    assert choose("auto", [experiment()])[0].name == "mininet"


def test_an_unknown_fabric_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown fabric 'mininett'; did you mean 'mininet'\?"):
        choose("mininett", [experiment()])


def test_lost_packets_are_refused_on_the_virtual_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FABRICS["virtual"], "cannot_play", lambda experiment: "no packets")
    with pytest.raises(InputError, match="the virtual fabric cannot run this here: no packets"):
        choose("virtual", [experiment()])
    monkeypatch.setattr(FABRICS["mininet"], "cannot_run_here", lambda: "no netem")
    with pytest.raises(InputError, match=r"no fabric can run this here: mininet: no netem; virtual: no packets"):
        choose("auto", [experiment()])


def test_only_a_virtual_clock_with_a_modelled_device_plays_several_at_once() -> None:
    assert not FABRICS["virtual"].one_at_a_time(experiment())
    assert "set compute.device" in FABRICS["virtual"].one_at_a_time(experiment(compute={"device": "measured"}))
    assert "one after the other" in FABRICS["mininet"].one_at_a_time(experiment())
