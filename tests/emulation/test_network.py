"""The emulated network does what the plan says, and says so when it does not.

The machine may be busy, so times are bounded from both sides in different ways: no message may be faster than the
link allows, and the fastest of several must be near what the link allows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import emulation_scenarios as scenarios
import pytest
from emulation_runner import answer, scenario

from testbed.emulation import sandbox
from testbed.wan.profile import Link

pytestmark = pytest.mark.emulation

Probe = Callable[[str], dict[str, Any]]
EARLY_S, LATE_S, LATE = 0.001, 0.003, 0.03  # the LAN and the hosts take their time as well


def expected_s(link: Link, size_bytes: int) -> float:
    """Transmission and one round trip: the message and its short answer."""
    return size_bytes / link.bytes_per_s + link.rtt_ms / 1e3


def assert_time(seen_s: list[float], expected: float) -> None:
    assert min(seen_s) > expected - EARLY_S
    assert min(seen_s) < expected * (1 + LATE) + LATE_S


@pytest.fixture(scope="module")
def seen(emulation: None) -> dict[str, Any]:
    return answer(scenario("links"))


@pytest.fixture(scope="module")
def refused(emulation: None) -> dict[str, Any]:
    return answer(scenario("refused"))


@pytest.fixture(scope="module")
def capped(emulation: None) -> dict[str, Any]:
    return answer(scenario("caps"))


def test_the_mechanism_is_the_machines(seen: dict[str, Any]) -> None:
    assert seen["mechanism"] == seen["delay"]["mechanism"] == sandbox.delay_mechanism()


def test_the_round_trip_is_the_profiles(seen: dict[str, Any]) -> None:
    assert_time(seen["rtt_s"], scenarios.FORTH.rtt_ms / 1e3)


def test_messages_take_size_over_rate_and_delay(seen: dict[str, Any]) -> None:
    assert_time(seen["forth_s"], expected_s(scenarios.FORTH, scenarios.MESSAGE_BYTES))


def test_each_direction_has_its_own_rate(seen: dict[str, Any]) -> None:
    assert_time(seen["back_s"], expected_s(scenarios.BACK, scenarios.MESSAGE_BYTES))


def test_a_rate_can_be_changed_while_connections_stand(seen: dict[str, Any]) -> None:
    halved = Link(scenarios.FORTH.goodput_mbit / 2, scenarios.FORTH.rtt_ms)
    assert_time(seen["halved_s"], expected_s(halved, scenarios.MESSAGE_BYTES))


def test_a_delay_can_be_changed_while_connections_stand(seen: dict[str, Any]) -> None:
    assert_time(seen["far_rtt_s"], 1.5 * scenarios.FORTH.rtt_ms / 1e3)  # one way has doubled


def test_the_counters_are_payload_and_headers(seen: dict[str, Any]) -> None:
    payload = len(seen["forth_s"]) * scenarios.MESSAGE_BYTES
    for link in ("a/w0>a", "a>b", "b>b/w0"):
        assert seen["wire_bytes"][link] == pytest.approx(payload * 1514 / 1448, rel=0.03)
    for link in ("b/w0>b", "b>a", "a>a/w0"):  # acknowledgements only
        assert 0 < seen["wire_bytes"][link] < 0.1 * payload


def test_a_connection_alone_loses_nothing(seen: dict[str, Any]) -> None:
    assert seen["drops"] == 0 and seen["delay"]["drops"] == 0


def test_dilation_slows_everything_down(probe: Probe) -> None:
    slowed = probe("dilated")
    link = Link(scenarios.FORTH.goodput_mbit / 4, scenarios.FORTH.rtt_ms * 4)
    assert_time(slowed["rtt_s"], link.rtt_ms / 1e3)
    assert_time(slowed["forth_s"], expected_s(link, scenarios.MESSAGE_BYTES))


def test_what_is_not_as_asked_is_found_and_named(probe: Probe) -> None:
    said = probe("faults")
    assert said["nothing"] == "nothing"
    assert "a>b is not shaped" in said["unshaped"]
    assert "a>b has queues of 262144 + 1000000 bytes" in said["fifo"]
    assert "a>b has queues of" in said["acks"], "acknowledgements no longer go first"
    assert "a>b sorts packets with no filters, not 4" in said["filters"]
    assert "a>b is shaped to 6250000 bytes/s" in said["rate"]
    assert "a>b is delayed by 11 ms, not 10" in said["delay"]
    assert "a>b is carried at 1000000 bytes/s" in said["wire rate"]
    broken = {"delay-line": "the delay line is dead", "netem": "a>b is not delayed"}
    assert broken[sandbox.delay_mechanism()] in said["stage"]


def test_a_link_that_went_down_and_came_up_again_carries_again_and_is_named(probe: Probe) -> None:
    seen = probe("flap")
    assert len(seen["message_s"]) == 4
    names = ("a>b", "a/w0>a", "b/w0>b", "b>a")
    for said, name in zip(seen["said"], names, strict=True):
        assert f"{name} is down" in said
    assert set(seen["were_down"]) >= set(names)


def test_a_cut_link_stays_cut_when_its_interface_comes_up_again(probe: Probe) -> None:
    seen = probe("flap_of_a_cut_link")
    assert seen["cut"].startswith("blackhole")
    assert "dev wan1" in seen["healed"]


def test_an_interface_that_a_program_made_and_shaped_is_none_of_the_networks(probe: Probe) -> None:
    assert probe("own_interface")["counted"] == ["a/w0>a", "a>a/w0", "a>b", "b/w0>b", "b>a", "b>b/w0"]


def test_between_two_hosts_nothing_passes_and_all_others_go_on(probe: Probe) -> None:
    seen = probe("black_hole")
    assert seen["waiting"] and seen["cut off"] > 0.5
    assert all(seen[name] < 0.4 for name in ("other", "LAN", "again"))
    assert "blackhole" not in seen["rules"]


def test_a_delay_line_that_is_stopped_or_dead_is_noticed_at_once(probe: Probe) -> None:
    seen = probe("stalled")
    assert seen["alive"] == "nothing"
    assert all("is stopped; nothing crosses the WAN" in said for said in seen["SIGSTOP"])
    assert all("the delay line is dead" in said for said in seen["SIGKILL"])
    assert seen["took_s"] < 8, "less than a wait for an answer"


def test_a_change_that_cannot_be_is_refused(refused: dict[str, Any]) -> None:
    assert refused["no link"] == "NetworkError: no WAN link a>c in this network"
    assert refused["a host"] == "NetworkError: no WAN link a>a/w0 in this network"
    assert "must be at least 0.0002" in refused["no rate"]
    assert refused["too slow"].startswith(
        "InputError: profile test: at least 0.0002 Mbit/s can be shaped here, but a>b"
    )
    assert "must be between 0 and 60" in refused["no delay"]


def test_a_link_that_is_no_longer_counted_is_named(refused: dict[str, Any]) -> None:
    assert refused["no counter"].startswith("NetworkError: a>b is not shaped any more")


@pytest.mark.parametrize("way", ["out", "in"])
def test_a_regions_wan_links_share_what_it_may_send_and_receive(capped: dict[str, Any], way: str) -> None:
    together = [sum(pair) for pair in capped[way]]
    assert max(together) < scenarios.CAP_MBIT * 1.03
    assert max(together) > scenarios.CAP_MBIT * 0.97
    assert max(min(pair) for pair in capped[way]) > scenarios.CAP_MBIT / 2 * 0.95, "each gets its half"


def test_a_link_of_a_capped_region_alone_has_its_own_rate(capped: dict[str, Any]) -> None:
    assert max(capped["alone"]) == pytest.approx(scenarios.PAIR_MBIT, rel=0.03)


def test_a_cap_is_read_back_and_is_no_link_of_its_own(capped: dict[str, Any]) -> None:
    assert "a egress is not shaped" in capped["uncapped"]
    assert capped["one way"] == ["a egress"]
    assert len(capped["counted"]) == 6 + 2 * 4  # directed WAN links, and two directions of four hosts' links


def test_above_a_gigabit_links_are_shaped_and_what_cannot_be_is_refused(probe: Probe) -> None:
    seen = probe("fast")
    assert min(seen["message_s"]) > 20_000_000 * 8 / 2.5e9 + 0.010 - EARLY_S
    assert "rate 20911Mbit ceil 20911Mbit" in seen["tc"]  # 20,000 of goodput, as the kernel says it itself
    assert seen["change"].startswith("NetworkError: a>b: a rate of 40000 Mbit/s")
    assert seen["refused"].startswith("InputError: profile test: at most 30605 Mbit/s can be shaped")
    assert "a>b 40000" in seen["refused"]


def test_loss_and_jitter_are_refused_where_there_is_no_netem(probe: Probe) -> None:
    if sandbox.delay_mechanism() == "netem":
        pytest.skip("this kernel has netem")
    said = probe("impaired")["refused"]
    assert said.startswith("InputError: the profile asks for loss or jitter on a>b, which needs netem")
    assert "sch_netem" in said


def test_two_runs_at_the_same_time_do_not_meet(emulation: None) -> None:
    runs = [subprocess.Popen(scenario("refused"), stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait(timeout=60) for run in runs] == [0, 0]


def test_mininets_command_line_can_load_the_topology(probe: Probe) -> None:
    seen = probe("topology")
    hosts = ["r0gs", "r1lps", "r1w0", "r2lps", "r2w0"]
    assert seen["nodes"] == sorted(["r0", "r1", "r2", "wires", *hosts])
    assert seen["echo"].strip() == "hello"
    assert_time(seen["rtt_s"], 0.049)  # us-east-2 and us-west-1
