"""WAN links and connections that are cut, and the flows that TCP tries to send over them in vain."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from testbed.wan.profile import Pair
from testbed.wan.tcp import retry_s

T = TypeVar("T")


@dataclass
class Stall:
    """A flow that makes no progress.

    Parameters
    ----------
    since_s : the last acknowledgement, or, of a message that was given later, when that was
    lost : whether what was sent is, and not its acknowledgements alone
    timed_out : whether TCP's timeout runs out before it goes on; known when the link is whole again
    """

    since_s: float
    lost: bool
    timed_out: bool = False


class Outages(Generic[T]):
    """What is cut, and which flows have made no progress since when.

    A connection makes none while either direction of its path is cut, but for what is under way: without
    acknowledgements TCP sends no more than its window. What it sends then is lost until a retransmission finds the path
    whole (`tcp.retry_s`).
    """

    def __init__(self) -> None:
        self.stalled: dict[T, Stall] = {}
        self._cut_s: dict[Pair, float] = {}  # since when; of regions or of hosts

    def cut(self, pair: Pair, now_s: float) -> None:
        self._cut_s.setdefault(pair, now_s)

    def heal(self, pair: Pair) -> None:
        self._cut_s.pop(pair, None)

    def block(self, hosts: Pair, regions: Pair) -> bool:
        """Whether a connection between two hosts, which are in these regions, makes no progress."""
        if not self._cut_s:
            return False
        return min(self.cut_s(hosts, regions), self.cut_s(hosts[::-1], regions[::-1])) < inf

    def cut_s(self, hosts: Pair, regions: Pair) -> float:
        """Since when all is lost on the way from one host to another; infinity where it is not."""
        return min(self._cut_s.get(hosts, inf), self._cut_s.get(regions, inf))

    def retry_s(self, flow: T, now_s: float, round_s: float, alone: bool) -> float:
        """When a flow that has stalled is sent again, now or later (`tcp.retry_s`)."""
        stall = self.stalled[flow]
        when_s, stall.timed_out = retry_s(stall.since_s, now_s, round_s, alone)
        return when_s

    def links(self) -> Collection[str]:
        """What is cut, as the records name it."""
        return [f"{src}>{dst}" for src, dst in sorted(self._cut_s)]
