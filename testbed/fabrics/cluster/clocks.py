"""From differences between the clocks of nodes whose roles talk to each other: all clocks, against one of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from testbed.errors import RunError
from testbed.fabrics.cluster.wire import Difference

Edge = tuple[str, str, Difference]  # the node that asked, the one that answered, and what came out


def against(reference: str, nodes: Iterable[str], edges: Iterable[Edge]) -> dict[str, Difference]:
    """How far each node's clock is ahead of that of `reference`, by the chain of differences that are known best.

    Raises
    ------
    RunError
        A node has no such chain.
    """
    around: dict[str, list[tuple[str, Difference]]] = {}
    for asker, asked, found in edges:
        around.setdefault(asker, []).append((asked, found))
        around.setdefault(asked, []).append((asker, Difference(-found.ahead_s, found.error_s)))
    known: dict[str, Difference] = {}
    queue = [(0.0, reference, 0.0)]
    while queue:
        error_s, node, ahead_s = heapq.heappop(queue)
        if node in known:
            continue
        known[node] = Difference(ahead_s, error_s)
        for other, found in around.get(node, ()):
            if other not in known:
                heapq.heappush(queue, (error_s + found.error_s, other, ahead_s + found.ahead_s))
    if lost := [node for node in nodes if node not in known]:
        raise RunError(f"the clock of node {lost[0]} cannot be told: none of its roles talks to another node's")
    return known
