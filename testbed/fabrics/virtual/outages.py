"""WAN links and connections that are cut, and the flows that TCP tries to send over them in vain."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

from testbed.wan.profile import Pair
from testbed.wan.tcp import retry_s

T = TypeVar("T")


class Outages(Generic[T]):
    """What is cut, and since when which flow has made no progress.

    A connection makes none while either direction of its path is cut: without acknowledgements TCP sends no more than
    its window. What it sends is lost until a retransmission finds the path whole (`tcp.retry_s`).
    """

    def __init__(self) -> None:
        self.stalled: dict[T, float] = {}
        self._cut: set[Pair] = set()  # of regions or of hosts

    def cut(self, pair: Pair) -> None:
        self._cut.add(pair)

    def heal(self, pair: Pair) -> None:
        self._cut.discard(pair)

    def block(self, hosts: Pair, regions: Pair) -> bool:
        """Whether a connection between two hosts, which are in these regions, makes no progress."""
        return bool(self._cut) and any(pair in self._cut for pair in (hosts, hosts[::-1], regions, regions[::-1]))

    def retry_s(self, flow: T, now_s: float, rtt_s: float) -> float:
        """When a flow that has stalled is sent again, now or later."""
        return retry_s(self.stalled[flow], now_s, rtt_s)

    def links(self) -> Collection[str]:
        """What is cut, as the records name it."""
        return [f"{src}>{dst}" for src, dst in sorted(self._cut)]
