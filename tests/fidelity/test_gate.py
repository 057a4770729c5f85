"""The gate lets a sound network pass and names the links of one that is not what its profile says."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from testbed.emulation import sandbox
from testbed.errors import NetworkError
from testbed.fidelity import gate
from testbed.fidelity.values import Bound, Value

SCENARIOS = Path(__file__).with_name("gate_scenarios.py")
SUPERVISE = "import sys; from testbed.emulation import sandbox; sys.exit(sandbox.run(sys.argv[1:]))"


@cache
def broken(fault: str) -> dict[str, Any]:
    """What the gate says of a network with this fault."""
    if reason := sandbox.available():
        pytest.skip(reason)
    command = [sys.executable, "-c", SUPERVISE, sys.executable, str(SCENARIOS), fault]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.emulation
def test_a_sound_network_passes_with_every_link_probed() -> None:
    seen = broken("sound")
    assert seen["error"] == ""
    assert seen["probed"] == []
    named = {figure["name"] for figure in seen["report"]["figures"] if figure["section"] == "goodput"}
    assert named == {"a>b", "a>c", "b>a", "b>c", "c>a", "c>b", "a/w0>a/w1"}


@pytest.mark.emulation
def test_a_link_left_unshaped_is_named_by_what_is_read_back_and_by_its_speed() -> None:
    seen = broken("unshaped")
    assert "a>b is not shaped" in seen["error"]
    assert seen["probed"] == ["a>b"]
    assert "goodput" in seen["table"]


@pytest.mark.full
@pytest.mark.emulation
def test_a_link_that_only_the_delay_line_shapes_is_named() -> None:
    assert "a>b is not shaped" in broken("half_shaped")["error"]


@pytest.mark.full
@pytest.mark.emulation
def test_messages_over_a_slow_lan_are_no_earlier_than_its_rate_allows() -> None:
    assert broken("slow_lan")["error"] == ""


@pytest.mark.emulation
def test_a_link_whose_two_ways_are_not_as_long_is_as_fast_both_ways() -> None:
    assert broken("lopsided")["error"] == ""


@pytest.mark.emulation
def test_a_link_on_which_acknowledgements_wait_for_data_is_named() -> None:
    assert "a>b sorts packets with no filters" in broken("acks_last")["error"]


@pytest.mark.full
@pytest.mark.emulation
def test_a_capped_region_passes_and_one_whose_cap_is_gone_is_named() -> None:
    sound = broken("capped")
    assert sound["error"] == ""
    asked = {figure["name"]: figure["asked"] for figure in sound["report"]["figures"] if figure["section"] == "goodput"}
    assert (asked["a>b"], asked["b>a"]) == (5, 10), "the cap is less than the link"
    faulty = broken("uncapped")
    assert "a egress is not shaped" in faulty["error"]
    assert {"a>b", "a>c"} == set(faulty["probed"]), "twice as fast as the cap"


@pytest.mark.full
@pytest.mark.emulation
def test_a_wrong_delay_is_named_with_what_was_asked_and_measured() -> None:
    seen = broken("late")
    assert "a>b is delayed by 20 ms, not 5" in seen["error"]
    assert {"a<>b", "a>b"} <= set(seen["probed"]) <= {"a<>b", "a>b", "b>a"}
    assert "10 ms" in next(line for line in seen["table"].splitlines() if line.startswith("a<>b"))


@pytest.mark.full
@pytest.mark.emulation
def test_a_way_around_the_wan_is_named_though_every_link_reads_back_as_asked() -> None:
    seen = broken("around")
    assert {"a<>b", "a>b", "b>a"} == set(seen["probed"])
    assert "bytes counted" in seen["table"]
    assert "shaped" not in seen["error"]


@pytest.mark.full
@pytest.mark.emulation
def test_a_dead_delay_line_stops_the_run_and_every_link_is_named() -> None:
    seen = broken("dead")
    assert "delay line" in seen["error"]
    for link in ("a>b", "a>c", "b>a", "b>c", "c>a", "c>b"):
        assert link in seen["table"]
    assert "nothing" in seen["table"]
    assert "a/w0>a/w1" not in seen["table"], "the LAN does not cross the delay line"


def test_the_error_names_link_asked_and_measured_in_one_line_and_all_in_a_table() -> None:
    faults = [Value("goodput", f"a>{k}", "Mbit/s", 40.0, 90.0, Bound(relative=0.05)) for k in range(5)]
    faults.append(Value("goodput", "a>9", "Mbit/s", 40.0, None, Bound(relative=0.05)))
    error = gate.failure("wan", "a>0 is not shaped", faults)
    assert isinstance(error, NetworkError)
    assert str(error).startswith("a>0 is not shaped; 6 links do not do what profile wan says: a>0 goodput 40 Mbit/s")
    assert "90 measured" in str(error) and "and 3 more" in str(error)
    assert "\n" not in str(error)
    (table,) = error.__notes__
    assert [line.split()[0] for line in table.splitlines()] == ["link", *(f"a>{k}" for k in range(5)), "a>9"]
    assert table.splitlines()[-1].split()[4] == "nothing"


BAD, GOOD = ([Value("goodput", "a>b", "Mbit/s", 40.0, value, Bound(relative=0.05))] for value in (90.0, 40.0))


def test_what_fails_is_probed_again_after_a_pause_and_only_what_fails_every_time_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(gate, "sleep", pauses.append)
    monkeypatch.setattr(gate.Stolen, "share", 0.0)
    later = {"busy": iter([BAD, GOOD]), "wrong": iter([BAD] * 4)}
    again = gate._again({"sound": GOOD, "busy": BAD, "wrong": BAD}, lambda name: next(later[name]))
    assert again == {"busy": GOOD, "wrong": BAD}
    assert pauses == [gate.MOMENT_S * times for times in (1, 2, 3, 4)]


def test_a_figure_that_held_once_is_no_fault_whatever_another_one_of_its_link_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "sleep", lambda _: None)
    monkeypatch.setattr(gate.Stolen, "share", 0.0)
    late, early = (Value("message of 64 KB", "a>b", "ms", 20.0, value, Bound(relative=0.05)) for value in (90.0, 20.0))
    nothing = [Value("goodput", "a>b", "Mbit/s", 40.0, None, Bound(relative=0.05))]
    later = iter([[*BAD, early]])
    assert gate._again({"a>b": [*GOOD, late]}, lambda _: next(later)) == {"a>b": [*GOOD, early]}
    later = iter([nothing] * 4)
    assert gate._again({"a>b": [*GOOD, late]}, lambda _: next(later)) == {"a>b": [*GOOD, late]}


def test_a_probe_without_the_machines_time_does_not_count_until_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(gate, "sleep", lambda pause_s: clock.__setitem__(0, clock[0] + pause_s))
    monkeypatch.setattr(gate, "monotonic", lambda: clock[0])
    monkeypatch.setattr(gate.Stolen, "share", 0.1)
    later = iter([BAD] * 20 + [GOOD])
    assert gate._again({"a>b": BAD}, lambda _: next(later)) == {"a>b": GOOD}, "20 probes did not count"
    assert gate._again({"a>b": BAD}, lambda _: BAD) == {"a>b": BAD}
    assert clock[0] > 20 + gate.PATIENCE_S
