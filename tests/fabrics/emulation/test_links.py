"""How a link is shaped: pure arithmetic, no network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fabrics.emulation import links
from testbed.wan.profile import Link

wan_links = st.builds(Link, st.floats(0.1, 20_000), st.floats(0, 500))


def test_the_rate_counts_the_headers_that_goodput_leaves_out() -> None:
    # 1448 bytes of payload travel in a 1514-byte frame
    assert links.wire_bytes_per_s(8 * 1448 / 1e6) == 1514


@given(wan_links)
def test_the_fifo_of_a_wan_link_holds_a_whole_window_and_a_segment(link: Link) -> None:
    window_on_the_wire = links.wan_window_bytes(link) * 1514 / 1448
    assert links.Shape.of_wan(link).queue_bytes >= window_on_the_wire + 65_000


@given(wan_links)
def test_a_window_keeps_the_link_full_and_is_one_that_the_header_can_express(link: Link) -> None:
    window = links.wan_window_bytes(link)
    assert window >= link.bytes_per_s * link.rtt_ms / 1e3
    units = window // 65_535
    assert window == units * 65_535 and units & (units - 1) == 0


@given(wan_links)
def test_a_burst_is_at_least_one_frame(link: Link) -> None:
    assert links.Shape.of_wan(link).burst_bytes >= 1514


def test_a_lan_burst_is_a_quarter_of_a_millisecond() -> None:
    shape = links.Shape.of_lan(Link(1000, 0.2))
    assert shape.burst_bytes == pytest.approx(shape.wire_bytes_per_s * 0.25e-3, abs=1)


def test_another_rate_keeps_the_queue() -> None:
    shape = links.Shape.of_wan(Link(100, 60))
    changed = shape.at(50)
    assert changed.queue_bytes == shape.queue_bytes
    assert changed.wire_bytes_per_s == links.wire_bytes_per_s(50)


def test_the_commands_name_rate_burst_and_queue() -> None:
    assert links.tc_commands("wan1", links.Shape(1_000_000, 4000, 200_000)) == [
        "qdisc replace dev wan1 root handle 1: htb default 1",
        "class add dev wan1 parent 1: classid 1:1 htb rate 8000000bit burst 4000b cburst 4000b quantum 60000",
        "qdisc add dev wan1 parent 1:1 handle 10: bfifo limit 200000",
    ]
