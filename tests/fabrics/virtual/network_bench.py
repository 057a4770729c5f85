"""A small virtual network whose messages and their arrivals are noted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from small_runs import network

from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.fabrics.virtual.flows import Connection
from testbed.fabrics.virtual.network import Network
from testbed.wan import profile
from testbed.wan.plan import NetworkPlan
from testbed.wan.tcp import Tcp

REGIONS = ("a", "b", "c")
HOSTS = tuple(f"{region}/{role}" for region in REGIONS for role in ("w0", "w1", "lps"))
LAN, SLOW = profile.Link(800, 2), profile.Link(8, 100)  # 100 MB/s and 1 ms one way; 1 MB/s and 50 ms
PLAN = NetworkPlan(HOSTS, network(REGIONS, LAN, SLOW, {("a", "c"): profile.Link(16, 40)}))  # a>c: 2 MB/s and 20 ms
Send = Callable[..., Coroutine[Any, Any, None]]


class Bench:
    """A network whose messages are noted as (name, arrival)."""

    def __init__(self, start_s: float = 0.0, plan: NetworkPlan = PLAN, tcp: Tcp | None = None) -> None:
        self.loop = VirtualLoop(start_s)
        self.errors: list[dict[str, Any]] = []  # of callbacks, which nobody would hear of
        self.loop.set_exception_handler(lambda loop, context: self.errors.append(context))
        self.network = Network(plan, self.loop, tcp)
        self.sent: list[Any] = []
        self.arrived: list[tuple[Any, float]] = []
        self._connections: dict[tuple[str, str], Connection] = {}

    def connection(self, src: str, dst: str) -> Connection:
        if (src, dst) not in self._connections:
            self._connections[src, dst] = self.network.connect(
                src, dst, lambda message: self.arrived.append((message, self.loop.time()))
            )
        return self._connections[src, dst]

    async def send(self, src: str, dst: str, message: Any, nbytes: int, at_s: float = 0.0) -> None:
        await asyncio.sleep(at_s)
        self.sent.append(message)
        await self.network.send(self.connection(src, dst), message, nbytes)

    def run(self, *work: Coroutine[Any, Any, Any], until_s: float = 1e7) -> dict[Any, float]:
        """Let everything happen; returns each message's arrival."""

        async def all_of_it() -> None:
            await asyncio.gather(*work)
            await asyncio.sleep(until_s)

        self.loop.run_until_complete(all_of_it())
        self.loop.close()
        assert self.errors == []
        return dict(self.arrived)
