"""The pure parts of measuring: arrivals, echoes, iperf3's answer, and which links are probed together."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import NetworkError
from testbed.fidelity import gate
from testbed.fidelity.iperf import received_mbit
from testbed.fidelity.probes import Arrivals, Echoes, checksum, echo_number, echo_request, message_s
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Cap, Link, Profile


def test_a_message_takes_its_size_over_the_rate_and_the_delay() -> None:
    assert message_s(Link(goodput_mbit=80, rtt_ms=60), 1_000_000) == pytest.approx(0.1 + 0.03)


def test_arrivals_tell_when_a_byte_came_and_how_fast() -> None:
    seen = Arrivals()
    for time_s, total in ((10.0, 0), (11.0, 1_000_000), (12.0, 1_500_000)):
        seen.note(time_s, total)
    assert seen.reached_s(1_000_000) == 11.0
    assert seen.reached_s(1_000_001) == 12.0
    assert seen.by(9.0) == 0
    assert seen.by(10.5) == 500_000
    assert seen.by(13.0) == 1_500_000
    assert seen.mbit(10.5, 11.5) == pytest.approx(0.75 * 8)


def test_bytes_are_waited_for_while_another_thread_notes_them() -> None:
    seen, size, messages = Arrivals(), 3, 2000

    def receive() -> None:
        for total in range(1, size * messages + 1):
            seen.note(float(total), total)

    receiver = threading.Thread(target=receive)
    receiver.start()
    for number in range(1, messages + 1):  # the receiver is now behind, now ahead
        assert seen.wait(number * size, patience_s=10)
        assert seen.reached_s(number * size) == number * size
    receiver.join()
    assert not seen.wait(size * messages + 1, patience_s=0.01)


def test_a_lost_echo_counts_as_longer_than_any() -> None:
    echoes = Echoes((4.0, 1.0, 3.0, 2.0), lost=1)
    assert echoes.quantile(0.5) == 3.0
    assert echoes.quantile(0.8) == 4.0
    assert echoes.quantile(0.95) is None
    assert Echoes((), lost=3).quantile(0.5) is None


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_an_echo_is_valid_icmp_and_its_reply_is_known_again(identifier: int, number: int) -> None:
    request = echo_request(identifier, number)
    assert checksum(request) == 0, "a packet with its checksum sums to nothing (RFC 1071)"
    ip_header = bytes([0x45]) + bytes(19)
    reply = ip_header + struct.pack("!BBHHH", 0, 0, 0, identifier, number)
    assert echo_number(reply, identifier) == number
    assert echo_number(reply, identifier ^ 1) is None
    assert echo_number(ip_header + request, identifier) is None, "a request is no reply"


def test_iperf3_is_taken_at_its_receivers_word() -> None:
    end = {"sum_sent": {"bits_per_second": 9e9}, "sum_received": {"bits_per_second": 98.7e6}}
    assert received_mbit({"end": end}, "a to b") == pytest.approx(98.7)


@pytest.mark.parametrize("answer", [{"error": "unable to connect"}, {}])
def test_an_iperf3_test_that_failed_is_an_error_with_its_words(answer: dict[str, str]) -> None:
    with pytest.raises(NetworkError, match=r"a to b: (unable to connect|no answer)"):
        received_mbit(answer, "a to b")


def test_a_path_is_as_fast_as_its_slowest_part() -> None:
    pairs = {("a", "b"): Link(500, 10), ("b", "a"): Link(2000, 10)}
    profile = Profile("test", "test", ("a", "b"), Link(1000, 0), pairs)
    assert (profile.path_mbit("a", "b"), profile.path_mbit("b", "a")) == (500, 1000)
    capped = replace(profile, caps={"a": Cap(egress_mbit=300), "b": Cap(egress_mbit=900, ingress_mbit=400)})
    assert (capped.path_mbit("a", "b"), capped.path_mbit("b", "a")) == (300, 900)


REGIONS = [f"region{i}" for i in range(5)]


@settings(max_examples=40)
@given(st.dictionaries(st.tuples(st.sampled_from(REGIONS), st.sampled_from(REGIONS)), st.floats(1, 2000), min_size=1))
def test_links_probed_together_neither_disturb_nor_overload_each_other(
    rates: dict[tuple[str, str], float],
) -> None:
    wanted = {pair: rate for pair, rate in rates.items() if pair[0] != pair[1]}
    pairs = {(a, b): Link(wanted.get((a, b), 10.0), 10) for a in REGIONS for b in REGIONS if a != b}
    profile = Profile("test", "test", tuple(REGIONS), Link(1000, 0), pairs)
    network = SimpleNamespace(plan=NetworkPlan(tuple(f"{region}/w0" for region in REGIONS), profile))
    names = [f"{a}>{b}" for a, b in pairs]
    groups = gate.rounds(network, names)
    assert sorted(name for group in groups for name in group) == sorted(names)
    for group in groups:
        ends = [tuple(name.split(">")) for name in group]
        assert not {(b, a) for a, b in ends} & set(ends)
        if len(group) > 1:
            assert sum(min(pairs[end].goodput_mbit, 1000) for end in ends) <= gate.ROUND_MBIT
            for host in REGIONS:
                out = sum(min(pairs[end].goodput_mbit, 1000) for end in ends if end[0] == host)
                assert out <= gate.LAN_SHARE * 1000 or len([end for end in ends if end[0] == host]) == 1
