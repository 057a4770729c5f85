"""Max-min fair rates of the flows that share links."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from testbed.fabrics.virtual.flows import Flow, Link

LEAST_RATE = 1e-3  # bytes/s; a flow without any would never end


def reached(changed: Iterable[Link]) -> tuple[dict[Flow, None], dict[Link, None]]:
    """The flows and links that `changed` links reach through shared flows."""
    links: dict[Link, None] = {}
    flows: dict[Flow, None] = {}
    stack = list(changed)
    while stack:
        link = stack.pop()
        if link in links:
            continue
        links[link] = None
        for flow in link.flows:
            if flow not in flows:
                flows[flow] = None
                stack.extend(flow.links)
    return flows, links


def max_min(flows: dict[Flow, None], links: dict[Link, None]) -> dict[Flow, float]:
    """Max-min fair rates by progressive filling: the tightest link's flows are fixed first, then the next.

    A link's share never falls while others are filled, so that the heap of shares need not be kept up to date: what
    comes out of it is looked at again.
    """
    if len(flows) == 1:  # most often
        return {flow: max(min([link.rate / link.load for link in flow.links]), LEAST_RATE) for flow in flows}
    rates: dict[Flow, float] = {}
    room = {link: (link.rate, link.load) for link in links if link.flows}
    shares = [(link.rate / link.load, number, link) for number, link in enumerate(room)]
    heapq.heapify(shares)
    while len(rates) < len(flows):
        was, number, tightest = heapq.heappop(shares)
        if tightest not in room:
            continue
        left, load = room[tightest]
        if (now := left / load) > was:
            heapq.heappush(shares, (now, number, tightest))
            continue
        del room[tightest]
        share = max(now, LEAST_RATE)
        for flow in tightest.flows:
            if flow in rates:
                continue
            rates[flow] = share
            weight = flow.connection.weight
            for link in flow.links:
                if link in room:
                    left, load = room[link]
                    if load == weight:
                        del room[link]
                    else:
                        room[link] = (left - share * weight, load - weight)
    return rates
