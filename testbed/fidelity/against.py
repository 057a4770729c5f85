"""The same messages at the same times over the emulated and the virtual network: does each take as long?

The virtual network is a model, the emulated one is real TCP: single messages, messages in a row, and messages that
share a LAN link, a WAN link or both are compared one by one.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from time import monotonic

from testbed.fabrics.emulation.network import EmulatedNetwork
from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.fabrics.virtual.network import Network
from testbed.fidelity.figures import Bound, Figure
from testbed.fidelity.measure import KB, MB
from testbed.fidelity.probes import Channel, pause_until
from testbed.wan.plan import NetworkPlan, region_of
from testbed.wan.profile import Profile

SEED = 3
SIZES = (16 * KB, 64 * KB, 214 * KB, 1 * MB)
LOAD = 0.3  # of a WAN link's capacity that the schedule asks for on average
DELIVERY = Bound(relative=0.10)
LEAD_S = 0.5  # before the first message


@dataclass(frozen=True)
class Sent:
    """One message of the schedule; it is queued behind earlier ones of its connection that are still being sent."""

    time_s: float
    src: str
    dst: str
    size_bytes: int


def schedule(plan: NetworkPlan, seconds: float, seed: int = SEED) -> list[Sent]:
    """Messages between random hosts of every directed pair of regions, and inside them; the same for the same seed."""
    random = Random(seed)
    messages = []
    pairs = [*plan.wan, *((region, region) for region in plan.regions if len(plan.hosts_of(region)) > 1)]
    for a, b in pairs:
        rate = plan.profile.lan.bytes_per_s if a == b else plan.wan[a, b].bytes_per_s
        mean_gap_s = max(sum(SIZES) / len(SIZES) / (LOAD * rate), 0.05)
        time_s = random.expovariate(1 / mean_gap_s)
        while time_s < seconds:
            src = random.choice(plan.hosts_of(a))
            dst = random.choice([host for host in plan.hosts_of(b) if host != src])
            messages.append(Sent(time_s, src, dst, random.choice(SIZES)))
            time_s += random.expovariate(1 / mean_gap_s)
    return sorted(messages, key=lambda message: message.time_s)


def virtual(plan: NetworkPlan, messages: list[Sent]) -> list[float]:
    """When each message arrives on the virtual network (s after the schedule's start)."""
    loop = VirtualLoop()
    arrived: dict[int, float] = {}

    async def play() -> None:
        network = Network(plan, loop)
        done = loop.create_future()

        def deliver(index: int) -> None:
            arrived[index] = loop.time()
            if len(arrived) == len(messages):
                done.set_result(None)

        ends = dict.fromkeys((message.src, message.dst) for message in messages)
        connections = {end: network.connect(*end, deliver) for end in ends}

        async def send(pair: tuple[str, str]) -> None:
            for index, message in enumerate(messages):
                if (message.src, message.dst) == pair:
                    await asyncio.sleep(max(message.time_s - loop.time(), 0.0))
                    await network.send(connections[pair], index, message.size_bytes)

        tasks = [loop.create_task(send(pair)) for pair in ends]
        await done
        for task in tasks:
            await task

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
    return [arrived[index] for index in range(len(messages))]


def emulated(network: EmulatedNetwork, messages: list[Sent]) -> list[float]:
    """When each message arrives on the emulated network (s after the schedule's start)."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, message in enumerate(messages):
        rows[message.src, message.dst].append(index)
    arrived: dict[int, float] = {}
    with ExitStack() as stack:
        channels = {pair: stack.enter_context(Channel(network, *pair)) for pair in rows}
        for channel in channels.values():
            channel.warm()
        begin_s = monotonic() + LEAD_S
        ready = threading.Barrier(len(rows))

        def send(pair: tuple[str, str]) -> None:
            channel, ends = channels[pair], {}
            ready.wait()
            for index in rows[pair]:
                pause_until(begin_s + messages[index].time_s)
                ends[index] = channel.put(messages[index].size_bytes)[1]
            channel.await_all()
            for index, end in ends.items():
                arrived[index] = channel.arrivals.reached_s(end) - begin_s

        with ThreadPoolExecutor(len(rows)) as pool:
            list(pool.map(send, rows))
    return [arrived[index] for index in range(len(messages))]


def compare(profile: Profile, seconds: float) -> list[Figure]:
    """The 95th percentile of delivery times on both networks, for the WAN and for the LAN, and of their differences.

    Raises
    ------
    NetworkError
        The emulated network cannot be built or a message does not arrive.
    """
    plan = NetworkPlan(tuple(f"{region}/w{k}" for region in profile.regions for k in range(2)), profile)
    messages = schedule(plan, seconds)
    modelled = virtual(plan, messages)
    with EmulatedNetwork(plan) as network:
        real = emulated(network, messages)
    return figures(messages, modelled, real)


def figures(messages: list[Sent], modelled: list[float], real: list[float]) -> list[Figure]:
    """Per directed pair of regions the median and 95th percentile of the time from sending to delivery (ms)."""
    groups: dict[str, list[int]] = defaultdict(list)
    for index, message in enumerate(messages):
        a, b = region_of(message.src), region_of(message.dst)
        if a != b:
            groups["all WAN messages"].append(index)
            groups[f"{a}>{b}"].append(index)
    found = []
    for name, indices in groups.items():
        here = [1e3 * (modelled[i] - messages[i].time_s) for i in indices]
        there = [1e3 * (real[i] - messages[i].time_s) for i in indices]
        off = [abs(b / a - 1) for a, b in zip(here, there, strict=True)]
        detail = {
            "messages": len(indices),
            "difference_p50": _quantile(off, 0.5),
            "difference_p95": _quantile(off, 0.95),
        }
        section = "delivery p95, virtual and emulated"
        found.append(Figure(section, name, "ms", _quantile(here, 0.95), _quantile(there, 0.95), DELIVERY, detail))
    return found


def _quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 4)
