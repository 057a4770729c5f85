"""How a link is shaped: pure arithmetic, no network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation import links
from testbed.emulation.addresses import host_commands
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile
from testbed.wan.tcp import window_bytes

wan_links = st.builds(Link, st.floats(0.1, 20_000), st.floats(0, 500))


def test_the_rate_counts_the_headers_that_goodput_leaves_out() -> None:
    # 1448 bytes of payload travel in a 1514-byte frame
    assert links.wire_bytes_per_s(8 * 1448 / 1e6) == 1514


@given(wan_links)
def test_the_fifo_of_a_wan_link_holds_a_whole_window_and_a_segment(link: Link) -> None:
    window_on_the_wire = window_bytes(link) * 1514 / 1448
    (queue,) = links.Shape.of_wan(link).queues
    assert queue.limit_bytes >= window_on_the_wire + 65_000


@given(wan_links)
def test_a_window_keeps_the_link_full_and_is_one_that_the_header_can_express(link: Link) -> None:
    window = window_bytes(link)
    assert window >= min(link.bytes_per_s * link.rtt_ms / 1e3, 65_535 << 13)
    assert 4 * window < 2**31  # what Linux takes for a buffer
    units = window // 65_535
    assert window == units * 65_535 and units & (units - 1) == 0


def test_hosts_and_queues_have_room_for_a_link_at_its_widest() -> None:
    pairs = {("a", "b"): Link(100, 20), ("b", "a"): Link(100, 20)}
    one, profile = Link(400, 420), Profile("p", "p", ("a", "b"), Link(1000, 0.2), pairs)
    plan = NetworkPlan(("a/w0", "b/w0"), profile, {("a", "b"): one})
    widest = Link(400, 220)  # a round trip takes the link's one way, and the other's
    assert [line for line in host_commands(plan, 1, 0) if line.endswith(f"window {window_bytes(widest)}")]
    assert [line for line in host_commands(plan, 0, 0) if line.endswith(f"window {window_bytes(Link(100, 220))}")]
    shape = links.Shape.of_wan(plan.wan["a", "b"], plan.widest["a", "b"])
    assert shape.queues == links.Shape.of_wan(widest).queues
    assert shape.at(100).wire_bytes_per_s == links.Shape.of_wan(Link(100, 20)).wire_bytes_per_s


@given(wan_links)
def test_a_burst_is_at_least_one_frame(link: Link) -> None:
    assert links.Shape.of_wan(link).burst_bytes >= 1514


def test_a_lan_burst_is_a_quarter_of_a_millisecond() -> None:
    shape = links.Shape.of_lan(Link(1000, 0.2))
    assert shape.burst_bytes == pytest.approx(shape.wire_bytes_per_s * 0.25e-3, abs=1)


@pytest.mark.parametrize(("goodput_mbit", "segments"), [(1000, 45), (100, 5), (42, 2), (1, 1)])
def test_a_host_hands_over_at_once_what_its_lan_link_carries_in_about_half_a_millisecond(
    goodput_mbit: float, segments: int
) -> None:
    assert links.lan_segments(Link(goodput_mbit, 0.2)) == segments


def test_another_rate_keeps_the_queue() -> None:
    shape = links.Shape.of_wan(Link(100, 60))
    changed = shape.at(50)
    assert changed.queues == shape.queues
    assert changed.wire_bytes_per_s == links.wire_bytes_per_s(50)


BORROWS = "rate 8000bit ceil 32000000000bit burst 1514b cburst 1048576b quantum 60000"


def test_a_lan_link_has_one_queue_below_its_rate() -> None:
    shape = links.Shape(1_000_000, 4000, (links.Queue(200_000),), acks_first=False)
    assert links.tc_commands("lan1", shape) == [
        "qdisc replace dev lan1 root handle 1: htb default 10",
        "class add dev lan1 parent 1: classid 1:1 htb rate 8000000bit burst 4000b cburst 4000b quantum 60000",
        f"class add dev lan1 parent 1:1 classid 1:10 htb {BORROWS} prio 1",
        "qdisc add dev lan1 parent 1:10 handle 10: bfifo limit 200000",
    ]
    assert (shape.fifos, shape.filters) == ({0x10010: 200_000}, {})


def test_on_a_wan_link_acknowledgements_without_data_go_first() -> None:
    shape = links.Shape(1_000_000, 4000, (links.Queue(200_000),))
    lines = links.tc_commands("wan1", shape)
    assert f"class add dev wan1 parent 1:1 classid 1:2 htb {BORROWS} prio 0" in lines
    filters = [line for line in lines if line.startswith("filter")]
    assert len(filters) == shape.filters[0x10002] == 4
    for length, line in zip((52, 64, 72, 80), filters, strict=True):
        offset_and_flags = (length - 20) // 4 << 12 | 0x10  # the TCP header is all there is, and ACK its only flag
        assert f"match u16 {length} 0xffff at 2 match u16 {offset_and_flags:#x} 0xf03f at 32 flowid 1:2" in line


def test_below_a_cap_every_link_has_a_queue_as_long_as_its_own() -> None:
    near, far = Link(50, 10), Link(50, 200)
    shape = links.Shape.of_cap(60, [(near, "dst 10.2.0.0/16"), (far, "dst 10.3.0.0/16")])
    assert [queue.limit_bytes for queue in shape.queues] == [
        links.Shape.of_wan(link).queues[0].limit_bytes for link in (near, far)
    ]
    lines = links.tc_commands("border", shape)
    assert "filter add dev border parent 1: protocol ip prio 2 u32 match ip dst 10.3.0.0/16 flowid 1:11" in lines
    assert shape.wire_bytes_per_s == links.wire_bytes_per_s(60)
    assert shape.filters == {0x10002: 4, 0x10010: 1, 0x10011: 1}
