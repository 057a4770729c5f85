"""What TCP costs where an experiment asks for it: the window's limit on a rate, and slow start."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_bench import HOSTS, PLAN, REGIONS, Bench
from small_runs import network

from testbed.fabrics.virtual.window import Window
from testbed.wan import profile
from testbed.wan.plan import NetworkPlan
from testbed.wan.tcp import INITIAL_WINDOW_BYTES, Tcp

RTT_S = 0.06
FAST = NetworkPlan(HOSTS, network(REGIONS, profile.Link(1000, 0), profile.Link(99, 60)))
BYTES_PER_S = 99e6 / 8
MIB = 1 << 20


def one(size_bytes: int, tcp: Tcp | None, plan: NetworkPlan = FAST) -> float:
    bench = Bench(plan=plan, tcp=tcp)
    return bench.run(bench.send("a/w0", "b/w0", "it", size_bytes))["it"]


def test_by_default_tcp_costs_nothing() -> None:
    assert Tcp().is_free
    assert one(4 * MIB, Tcp()) == one(4 * MIB, None) == pytest.approx(4 * MIB / BYTES_PER_S + RTT_S / 2)


# The window


@pytest.mark.parametrize("rounds", [1, 10, 100])
def test_a_window_is_sent_each_round_trip(rounds: int) -> None:
    """The last round needs no answer: a long message has the rate window / RTT, a short one is not held back."""
    window = 64_000
    time_s = one(rounds * window, Tcp(tcp_window_kb=64))
    assert time_s == pytest.approx((rounds - 1) * RTT_S + window / BYTES_PER_S + RTT_S / 2)


def test_over_a_long_time_the_rate_is_window_by_round_trip() -> None:
    size = 50 * MIB
    assert 8e-6 * size / one(size, Tcp(tcp_window_kb=64)) == pytest.approx(8e-6 * 64_000 / RTT_S, rel=2e-3)


def test_a_window_larger_than_the_path_holds_costs_nothing() -> None:
    larger = 1e-3 * BYTES_PER_S * RTT_S * 1.01
    assert one(4 * MIB, Tcp(tcp_window_kb=larger)) == pytest.approx(one(4 * MIB, None))


def test_what_a_held_back_connection_leaves_others_take() -> None:
    bench = Bench(plan=FAST, tcp=Tcp(tcp_window_kb=64))
    sends = [bench.send(f"a/w{k}", f"b/w{k}", k, 64_000 * 10) for k in range(2)]
    both = bench.run(*sends)
    # Each sends its 64 kB of a round at half the link's rate, then both wait for the rest of the round trip.
    assert both[0] == both[1] == pytest.approx(9 * RTT_S + 2 * 64_000 / BYTES_PER_S + RTT_S / 2)


def test_a_second_message_finds_what_the_first_has_left_of_the_window() -> None:
    bench = Bench(plan=FAST, tcp=Tcp(tcp_window_kb=64))

    async def two() -> None:
        await bench.send("a/w0", "b/w0", "first", 48_000)
        await bench.send("a/w0", "b/w0", "second", 32_000)

    arrivals = bench.run(two())
    assert arrivals["first"] == pytest.approx(48_000 / BYTES_PER_S + RTT_S / 2)
    assert arrivals["second"] == pytest.approx(RTT_S + 16_000 / BYTES_PER_S + RTT_S / 2)


def test_a_longer_round_trip_lowers_the_rate_under_way() -> None:
    bench = Bench(plan=FAST, tcp=Tcp(tcp_window_kb=64))

    async def farther() -> None:
        await asyncio.sleep(9.5 * RTT_S)
        bench.network.set_delay("a", "b", 0.09)  # with the way back's 30 ms a round trip of 120 ms

    arrival = bench.run(bench.send("a/w0", "b/w0", "it", 20 * 64_000), farther())["it"]
    assert arrival == pytest.approx(9 * RTT_S + 10 * 2 * RTT_S + 64_000 / BYTES_PER_S + 0.09)


# Slow start


def test_the_first_message_doubles_its_rounds_and_later_ones_go_at_once() -> None:
    bench = Bench(plan=FAST, tcp=Tcp(slow_start=True))
    sends = [bench.send("a/w0", "b/w0", at_s, 4 * MIB, at_s) for at_s in (0.0, 0.8)]
    arrivals = bench.run(*sends)
    doubled = INITIAL_WINDOW_BYTES * (2**6 - 1)  # six rounds; the seventh takes longer than a round trip to send
    assert arrivals[0.0] == pytest.approx(6 * RTT_S + (4 * MIB - doubled) / BYTES_PER_S + RTT_S / 2)
    assert arrivals[0.0] == pytest.approx(0.66, abs=0.005)
    assert arrivals[0.8] - 0.8 == pytest.approx(4 * MIB / BYTES_PER_S + RTT_S / 2)


@pytest.mark.parametrize("size_bytes", [1, 1448, INITIAL_WINDOW_BYTES])
def test_what_fits_into_ten_segments_pays_nothing(size_bytes: int) -> None:
    assert one(size_bytes, Tcp(slow_start=True)) == pytest.approx(size_bytes / BYTES_PER_S + RTT_S / 2)


def test_after_a_long_pause_it_starts_slowly_again() -> None:
    bench = Bench(plan=FAST, tcp=Tcp(slow_start=True))
    sends = [bench.send("a/w0", "b/w0", at_s, 4 * MIB, at_s) for at_s in (0.0, 60.0)]
    arrivals = bench.run(*sends)
    assert arrivals[60.0] - 60.0 == pytest.approx(arrivals[0.0])


def test_the_window_halves_with_each_timeout_without_traffic() -> None:
    window = Window(Tcp(slow_start=True), RTT_S)
    timeout_s = RTT_S + 0.2
    now_s = 0.0
    for _ in range(4):  # 10, 20, 40, 80 segments
        assert window.take(1e9, now_s)
        window.sent(now_s)
        now_s += RTT_S
    assert window.take(1e9, now_s - RTT_S + 3.5 * timeout_s) == pytest.approx(16 * INITIAL_WINDOW_BYTES / 8)


def test_a_window_that_is_little_used_does_not_grow() -> None:
    window = Window(Tcp(slow_start=True), RTT_S)
    for number in range(5):
        assert window.take(5000, number * RTT_S) == 5000
        window.sent(number * RTT_S)
    assert window.take(1e9, 5 * RTT_S) == INITIAL_WINDOW_BYTES


@settings(max_examples=30, deadline=None)
@given(
    sent=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2 * 10**6), st.floats(0, 3)), min_size=1, max_size=15),
    tcp=st.builds(Tcp, tcp_window_kb=st.none() | st.floats(2, 1000), slow_start=st.booleans()),
)
def test_every_message_arrives_in_order_at_the_same_time_in_every_run_and_none_sooner_than_without(
    sent: list[tuple[int, int, float]], tcp: Tcp
) -> None:
    def arrivals(options: Tcp | None) -> dict[tuple[int, int], float]:
        bench = Bench(plan=PLAN, tcp=options)
        pairs = [("a/w0", "b/w0"), ("b/w0", "a/w0"), ("a/lps", "a/w1"), ("b/w1", "c/w1")]  # that share no link
        work = [bench.send(*pairs[way], (way, number), size, at) for number, (way, size, at) in enumerate(sent)]
        return bench.run(*work)

    with_tcp, free = arrivals(tcp), arrivals(None)
    assert with_tcp == arrivals(tcp)
    assert list(with_tcp) and set(with_tcp) == set(free)
    assert all(with_tcp[message] >= free[message] - 1e-9 for message in free)
