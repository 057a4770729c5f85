"""The same messages at the same times over the emulated and the virtual network: does each take as long?

The schedule is that of training: workers send to their LPS at once, every LPS to the global server, and back. Its
times are fixed, so that a message which is late on one network does not move the next. Messages share host and WAN
links as they do in a run; where several connections share one link for long, the two differ by nature: the virtual
network shares it fairly at every instant, the emulated one has a queue.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from time import monotonic

from testbed.emulation import awake
from testbed.emulation.network import EmulatedNetwork
from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.fabrics.virtual.network import Network
from testbed.fidelity.measure import Result
from testbed.fidelity.messages import KB, MB
from testbed.fidelity.probes import Channel, pause_until
from testbed.fidelity.threads import at_once
from testbed.fidelity.values import Bound, Value
from testbed.roles.roles import Roles
from testbed.wan.plan import NetworkPlan, region_of
from testbed.wan.profile import Profile

SEED = 3
WORKERS = 3  # per region
SIZES = (16 * KB, 64 * KB, 214 * KB, 1 * MB, 4 * MB)
SPREAD_S = 0.02  # roles are that far out of step
DELIVERY = Bound(relative=0.10, absolute=1.0)  # ms
LEAD_S = 0.5  # before the first message


@dataclass(frozen=True)
class Sent:
    """One message of the schedule; it is queued behind earlier ones of its connection that are still being sent."""

    time_s: float
    src: str
    dst: str
    size_bytes: int


def roles_of(profile: Profile) -> Roles:
    """A tree over all regions of the profile, its root in the last one."""
    return Roles(profile.regions, WORKERS, profile.regions[-1])


def schedule(profile: Profile, seconds: float, seed: int = SEED) -> list[Sent]:
    """Rounds of messages up and down the tree, each round of one size; the same for the same seed."""
    random, roles = Random(seed), roles_of(profile)
    up = [(worker, f"{region_of(worker)}/lps") for worker in roles.workers]
    across = [(lps, roles.global_server) for lps in roles.lpss]
    slowest = min(profile.pairs.values(), key=lambda link: link.goodput_mbit)
    messages, begin_s = [], 0.0
    while begin_s < seconds:
        size = random.choice(SIZES)
        phase_s = 1.5 * (size / slowest.bytes_per_s + max(link.delay_s for link in profile.pairs.values())) + SPREAD_S
        for phase, pairs in enumerate((up, across, _back(across), _back(up))):
            for src, dst in pairs:
                time_s = begin_s + phase * phase_s + random.uniform(0, SPREAD_S)
                messages.append(Sent(time_s, src, dst, size))
        begin_s += 4 * phase_s
    return sorted(messages, key=lambda message: message.time_s)


def _back(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(dst, src) for src, dst in pairs]


def virtual(plan: NetworkPlan, messages: list[Sent], folds: Collection[Sequence[str]] = ()) -> list[float]:
    """When each message arrives on the virtual network (s after the schedule's start); for `folds` see `Network`."""
    loop = VirtualLoop()
    arrived: dict[int, float] = {}

    async def play() -> None:
        network = Network(plan, loop, folds=folds)
        done = loop.create_future()

        def deliver(index: int) -> None:
            arrived[index] = loop.time()
            if len(arrived) == len(messages):
                done.set_result(None)

        by_pair: dict[tuple[str, str], list[int]] = defaultdict(list)
        for index, message in enumerate(messages):
            by_pair[message.src, message.dst].append(index)

        async def send(pair: tuple[str, str], indexes: list[int]) -> None:
            connection = network.connect(*pair, deliver)
            for index in indexes:
                await asyncio.sleep(max(messages[index].time_s - loop.time(), 0.0))
                await network.send(connection, index, messages[index].size_bytes)

        tasks = [loop.create_task(send(pair, indexes)) for pair, indexes in by_pair.items()]
        await done
        for task in tasks:
            await task

    try:
        loop.run_until_complete(play())
    finally:
        loop.close()
    return [arrived[index] for index in range(len(messages))]


@awake.kept()
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

        at_once(send, rows)
    return [arrived[index] for index in range(len(messages))]


def compare(profile: Profile, seconds: float) -> Result:
    """Play the schedule on both networks and compare each message's delivery.

    Raises
    ------
    NetworkError
        The emulated network cannot be built or a message does not arrive.
    """
    plan = NetworkPlan(roles_of(profile).all, profile)
    messages = schedule(profile, seconds)
    modelled = virtual(plan, messages)
    with EmulatedNetwork(plan) as network:
        real = emulated(network, messages)
        return Result(figures(messages, modelled, real), network.delay_mechanism, network.delay_report())


def figures(messages: list[Sent], modelled: list[float], real: list[float]) -> list[Value]:
    """For the LAN, the WAN and every directed pair of regions, from sending to delivery.

    Parameters
    ----------
    modelled, real : when each message arrived on the virtual and the emulated network (s)
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, message in enumerate(messages):
        a, b = region_of(message.src), region_of(message.dst)
        groups["LAN" if a == b else "WAN"].append(index)
        if a != b:
            groups[f"{a}>{b}"].append(index)
    found = []
    for name, indices in groups.items():
        here = [1e3 * (modelled[i] - messages[i].time_s) for i in indices]
        there = [1e3 * (real[i] - messages[i].time_s) for i in indices]
        outside = sum(not DELIVERY.holds(a, b) for a, b in zip(here, there, strict=True))
        detail = {
            "outside_percent": round(100 * outside / len(indices), 2),  # of the messages, each by itself
            "virtual_ms": [round(x, 3) for x in here],
            "emulated_ms": [round(x, 3) for x in there],
        }
        section = "delivery p95, virtual and emulated"
        found.append(Value(section, name, "ms", _p95(here), _p95(there), DELIVERY, detail))
    return found


def _p95(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1]
