"""The fluid network: what one message takes, how many share, and what crosses each link."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from network_bench import HOSTS, LAN, REGIONS, Bench
from small_runs import network

from testbed.fabrics.virtual.fair import max_min, reached
from testbed.fabrics.virtual.flows import WIRE_PER_PAYLOAD, Connection, Flow, Link
from testbed.fabrics.virtual.network import QUEUE_MESSAGES
from testbed.wan import profile
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Cap


def test_one_message_takes_its_size_over_the_slowest_rate_and_the_delay() -> None:
    bench = Bench()
    within = bench.send("a/w0", "a/w1", "within", 50_000_000)  # 0.5 s, and the LAN's 1 ms
    across = bench.send("b/w0", "a/lps", "across", 3_000_000)  # 3 s, 50 ms, and the LAN's 1 ms
    assert bench.run(within, across) == pytest.approx({"within": 0.501, "across": 3.051})


def test_a_message_of_nothing_takes_the_delay() -> None:
    bench = Bench()
    assert bench.run(bench.send("a/w0", "b/w0", "empty", 0)) == pytest.approx({"empty": 0.051})


def test_two_connections_share_a_link_and_the_later_has_it_to_itself_at_the_end() -> None:
    bench = Bench()
    first = bench.send("a/w0", "b/w0", "short", 1_000_000)
    second = bench.send("a/w1", "b/w1", "long", 3_000_000)
    # Half a rate each until 2 s, when the short one has left and 2 MB are to go.
    assert bench.run(first, second) == pytest.approx({"short": 2.051, "long": 4.051})


def test_the_two_directions_of_a_link_do_not_share() -> None:
    bench = Bench()
    there, back = bench.send("a/w0", "b/w0", "there", 1_000_000), bench.send("b/w0", "a/w0", "back", 1_000_000)
    assert bench.run(there, back) == pytest.approx({"there": 1.051, "back": 1.051})


def test_a_connection_keeps_order_and_carries_one_message_at_a_time() -> None:
    bench = Bench()

    async def burst() -> None:
        for number in range(30):
            await bench.send("a/w0", "b/w0", number, 100_000 if number % 2 else 10_000)

    arrivals = bench.run(burst())
    assert list(arrivals) == list(range(30))
    assert arrivals[29] == pytest.approx(15 * 0.11 + 0.051)


def test_a_full_queue_makes_the_sender_wait() -> None:
    bench = Bench()
    taken_s: list[float] = []

    async def burst() -> None:
        for number in range(QUEUE_MESSAGES + 4):
            await bench.send("a/w0", "b/w0", number, 1_000_000)
            taken_s.append(bench.loop.time())

    bench.run(burst())
    assert taken_s[: QUEUE_MESSAGES + 1] == [0.0] * (QUEUE_MESSAGES + 1)  # one on its way and the queue
    assert taken_s[QUEUE_MESSAGES + 1 :] == pytest.approx([1.0, 2.0, 3.0])


def test_order_is_kept_between_two_senders_when_the_queue_is_full() -> None:
    bench = Bench()

    async def late() -> None:
        """Sends in the very moment a place becomes free, before the one who has been waiting for it comes to run."""
        await asyncio.sleep(0.5)
        flow = bench.connection("a/w0", "b/w0").active
        assert flow is not None
        bench.network._finish(flow)
        await bench.network.send(flow.connection, "late", 1)

    burst = [bench.send("a/w0", "b/w0", number, 1_000_000) for number in range(QUEUE_MESSAGES + 3)]
    assert list(bench.run(*burst, late())) == [*range(QUEUE_MESSAGES + 3), "late"]


def test_a_sender_that_gives_up_waiting_harms_nobody() -> None:
    bench = Bench()

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await bench.send("a/w0", "b/w0", "impatient", 1_000_000)

    burst = [bench.send("a/w0", "b/w0", number, 1_000_000) for number in range(QUEUE_MESSAGES + 1)]
    last = bench.send("a/w0", "b/w0", "last", 1_000_000, at_s=0.6)
    assert list(bench.run(*burst, impatient(), last))[-1] == "last"


def test_a_rate_that_changes_under_way() -> None:
    bench = Bench()

    async def faster_then_slower() -> None:
        await asyncio.sleep(1)
        bench.network.set_rate("a", "b", 4e6)
        await asyncio.sleep(1)
        bench.network.set_rate("a", "b", 0.5e6)

    # 1 MB in the first second, 4 MB in the second, then 1 MB in two.
    arrivals = bench.run(bench.send("a/w0", "b/w0", "it", 6_000_000), faster_then_slower())
    assert arrivals == pytest.approx({"it": 4.051})


def test_a_delay_that_changes_is_that_of_later_messages_and_none_overtakes_another() -> None:
    bench = Bench()

    async def shorter() -> None:
        await asyncio.sleep(1.01)  # the first message has left, the second has not
        bench.network.set_delay("a", "b", 0.005)

    async def pair() -> None:
        await bench.send("a/w0", "b/w0", "first", 1_000_000)
        await bench.send("a/w0", "b/w0", "second", 20_000)

    arrivals = bench.run(pair(), bench.send("a/w1", "b/w0", "other", 1_000, at_s=3.0), shorter())
    assert list(arrivals) == ["first", "second", "other"]
    # 1 s and 50 ms for the first; the second left 20 ms later and would be there 25 ms sooner, but keeps its place.
    assert arrivals == pytest.approx({"first": 1.051, "second": 1.051, "other": 3.007})


# What a region may send and receive in all


def capped(**cap: float) -> NetworkPlan:
    """Links of 50 Mbit/s, and a cap on all that region "a" sends or receives."""
    return NetworkPlan(HOSTS, replace(network(REGIONS, LAN, profile.Link(50, 100)), caps={"a": Cap(**cap)}))


def mbit(size_bytes: int, time_s: float) -> float:
    return size_bytes * 8e-6 / time_s


def test_an_egress_cap_holds_two_links_to_its_sum() -> None:
    bench = Bench(plan=capped(egress_mbit=60))
    work = [bench.send(f"a/w{k}", f"{region}/w0", region, 7_500_000) for k, region in enumerate("bc")]
    arrivals = bench.run(*work)
    assert arrivals == pytest.approx({"b": 2.051, "c": 2.051})
    assert mbit(15_000_000, arrivals["b"] - 0.051) == pytest.approx(60)


def test_an_ingress_cap_holds_those_who_send_to_the_region() -> None:
    bench = Bench(plan=capped(ingress_mbit=60))
    work = [bench.send(f"{region}/w0", f"a/w{k}", region, 7_500_000) for k, region in enumerate("bc")]
    assert bench.run(*work) == pytest.approx({"b": 2.051, "c": 2.051})


def test_one_link_alone_and_what_stays_inside_or_goes_the_other_way_is_not_capped() -> None:
    bench = Bench(plan=capped(egress_mbit=60))
    alone = bench.send("a/w0", "b/w0", "alone", 6_250_000)  # 1 s at 50 Mbit/s
    inside = bench.send("a/w1", "a/lps", "inside", 50_000_000)  # 0.5 s at 800
    back = [bench.send(f"{region}/w1", "a/w0", f"from {region}", 6_250_000) for region in "bc"]
    assert bench.run(alone, inside, *back) == pytest.approx(
        {"inside": 0.501, "alone": 1.051, "from b": 1.051, "from c": 1.051}
    )


def test_a_cap_is_no_link_of_the_record() -> None:
    assert set(Bench(plan=capped(egress_mbit=60, ingress_mbit=70)).network.links) == set(Bench().network.links)


def test_wire_bytes_are_the_payload_and_its_headers_on_every_link_of_the_path() -> None:
    bench = Bench()
    seen: list[dict[str, int]] = []

    async def look() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            seen.append({name: count for name, count in bench.network.wire_bytes(bench.loop.time()).items() if count})

    bench.run(bench.send("a/w0", "b/lps", "it", 2_500_000), look())
    path = ("a/w0>a", "a>b", "b>b/lps")
    for found, payload in zip(seen, (1_000_000, 2_000_000, 2_500_000), strict=True):
        assert found == dict.fromkeys(path, round(payload * WIRE_PER_PAYLOAD))


def test_a_late_clock_changes_nothing_but_the_time() -> None:
    def arrivals(start_s: float) -> list[float]:
        bench = Bench(start_s)
        work = [bench.send("a/w0", f"b/w{k}", k, 1_000_000 * (k + 1)) for k in range(2)]
        return [when - start_s for _, when in bench.run(*work).items()]

    assert arrivals(1e9) == pytest.approx(arrivals(0.0), abs=1e-5)


def test_many_short_messages_at_a_late_clock_end() -> None:
    """Where a message takes less than the clock can tell."""
    bench = Bench(start_s=1e13)
    work = [bench.send("a/w0", "a/w1", number, 1) for number in range(100)]
    assert len(bench.run(*work)) == 100


# Max-min fair shares


def shares(rates: dict[str, float], paths: list[tuple[str, ...]], weights: list[int] | None = None) -> list[float]:
    """The rate of a flow on each path over links with these rates; a flow counts for as many as its weight."""
    links = {name: Link(name, rate) for name, rate in rates.items()}
    flows = []
    for path, weight in zip(paths, weights or [1] * len(paths), strict=True):
        connection = Connection(tuple(links[name] for name in path), lambda message: None, ("x", "x"), weight)
        flows.append(Flow(connection, None, 1, 0.0))
        for link in connection.links:
            link.flows[flows[-1]] = None
            link.load += weight
    found = max_min(*reached(links.values()))
    return [found[flow] for flow in flows]


@pytest.mark.parametrize(
    ("rates", "paths", "expected"),
    [
        ({"x": 12}, [("x",)] * 3, [4, 4, 4]),
        ({"x": 10, "y": 4}, [("x",), ("x", "y")], [6, 4]),
        ({"x": 10, "y": 8}, [("x",), ("x", "y"), ("y",)], [6, 4, 4]),
        # Bertsekas and Gallager 1992, figure 6.12: three links in a row, a long flow over two of them.
        ({"x": 1, "y": 1, "z": 1}, [("x",), ("x", "y"), ("y", "z"), ("y",)], [2 / 3, 1 / 3, 1 / 3, 1 / 3]),
        ({"x": 30, "y": 100, "z": 10}, [("x", "y"), ("x", "y"), ("y",), ("y", "z")], [15, 15, 60, 10]),
    ],
)
def test_shares_worked_out_by_hand(rates: dict[str, float], paths: list[tuple[str, ...]], expected: list) -> None:
    assert shares(rates, paths) == pytest.approx(expected)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    rates = {name: draw(st.floats(1, 1e9)) for name in "abcdef"[: draw(st.integers(1, 6))]}
    path = st.lists(st.sampled_from(sorted(rates)), min_size=1, max_size=3, unique=True).map(tuple)
    return rates, draw(st.lists(path, min_size=1, max_size=12))


@given(crowds())
def test_no_link_is_over_its_rate_and_every_flow_has_a_bottleneck(
    crowd: tuple[dict[str, float], list[tuple[str, ...]]],
) -> None:
    """The definition of max-min fairness: on some full link of its path, no other flow has more."""
    rates, paths = crowd
    found = shares(rates, paths)
    load = {name: sum(rate for rate, path in zip(found, paths, strict=True) if name in path) for name in rates}
    for name, rate in rates.items():
        assert load[name] <= rate * (1 + 1e-9)
    for rate, path in zip(found, paths, strict=True):
        assert any(
            load[name] >= rates[name] * (1 - 1e-9)
            and rate >= max(other for other, there in zip(found, paths, strict=True) if name in there) * (1 - 1e-9)
            for name in path
        )


@given(crowds(), st.data())
def test_a_flow_that_counts_for_several_gets_what_each_of_them_would(
    crowd: tuple[dict[str, float], list[tuple[str, ...]]], data: st.DataObject
) -> None:
    rates, paths = crowd
    weights = data.draw(st.lists(st.integers(1, 5), min_size=len(paths), max_size=len(paths)))
    each = shares(rates, [path for path, weight in zip(paths, weights, strict=True) for _ in range(weight)])
    firsts = [each[sum(weights[:number])] for number in range(len(paths))]
    assert shares(rates, paths, weights) == pytest.approx(firsts, rel=1e-9)


def test_links_that_share_no_flow_with_a_change_are_left_alone() -> None:
    one, other = Link("one", 1.0), Link("other", 1.0)
    for link in (one, other):
        flow = Flow(Connection((link,), lambda message: None, ("x", "x")), None, 1, 0.0)
        link.flows[flow] = None
    flows, links = reached([one])
    assert list(links) == [one]
    assert list(flows) == list(one.flows)


messages = st.tuples(st.sampled_from(HOSTS), st.sampled_from(HOSTS), st.integers(0, 10**7), st.floats(0, 5)).filter(
    lambda message: message[0] != message[1]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(messages, min_size=1, max_size=25))
def test_everything_arrives_once_in_order_and_no_sooner_than_it_can(sent: list[tuple[str, str, int, float]]) -> None:
    bench = Bench()
    work = [bench.send(src, dst, (number, src, dst), size, at) for number, (src, dst, size, at) in enumerate(sent)]
    arrivals = bench.run(*work)
    assert len(bench.arrived) == len(sent)
    payload: dict[str, int] = {}
    for number, (src, dst, size, at_s) in enumerate(sent):
        connection = bench.connection(src, dst)
        soonest_s = at_s + size / min(link.rate for link in connection.links) + connection.delay_s
        assert arrivals[number, src, dst] >= soonest_s * (1 - 1e-9)
        for link in connection.links:
            payload[link.name] = payload.get(link.name, 0) + size
    for src, dst in {(src, dst) for src, dst, _, _ in sent}:
        times = [arrivals[message] for message in bench.sent if message[1:] == (src, dst)]
        assert all(early <= late for early, late in pairwise(times))
    for name, count in bench.network.wire_bytes(bench.loop.time()).items():
        assert count == pytest.approx(payload.get(name, 0) * WIRE_PER_PAYLOAD, abs=1)


def test_a_busy_link_is_never_idle() -> None:
    """Work conservation: many flows over one link end when all their bytes at its rate have passed."""
    bench = Bench()
    sizes = [100_000 * (k + 1) for k in range(8)]
    work = [bench.send(f"a/w{k % 2}", f"b/{host}", k, size) for k, size in enumerate(sizes) for host in ["w0"]]
    assert max(bench.run(*work).values()) == pytest.approx(sum(sizes) / 1e6 + 0.051)
