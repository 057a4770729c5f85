"""What only one fabric can do decides the fabric, or is refused in a line that says why."""

from __future__ import annotations

import pytest
from harness import experiment

from testbed.errors import InputError
from testbed.fabrics import choice


@pytest.fixture(autouse=True)
def emulation_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_why_no_emulation", lambda: None)


def test_a_modelled_tcp_takes_the_virtual_fabric() -> None:
    it = experiment(network={"slow_start": True, "tcp_window_kb": 64})
    assert choice.choose("auto", it.not_virtual, it.not_emulated)[0] == "virtual"
    assert "no network.tcp_window_kb" in choice.choose("auto", it.not_virtual, it.not_emulated)[1]
    with pytest.raises(InputError, match=r"the mininet fabric cannot run this here: .*network\.tcp_window_kb"):
        choice.choose("mininet", it.not_virtual, it.not_emulated)


def test_a_plain_experiment_runs_on_both() -> None:
    it = experiment()
    for fabric in ("mininet", "virtual"):
        assert choice.choose(fabric, it.not_virtual, it.not_emulated) == (fabric, "")
    assert choice.choose("auto", it.not_virtual, it.not_emulated)[0] == "mininet"


def test_lost_packets_are_refused_on_the_virtual_fabric() -> None:
    with pytest.raises(InputError, match="the virtual fabric cannot run this here: no packets"):
        choice.choose("virtual", "no packets")
    with pytest.raises(InputError, match=r"emulation cannot run this here \(no netem\), and the virtual fabric"):
        choice.choose("auto", "no packets", "no netem")
