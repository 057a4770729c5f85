"""The virtual network beside SimGrid's fluid model: does each message take as long, and which simulator is faster?

    sudo apt-get install python3-simgrid
    python benchmarks/against_simgrid.py [--network skyplane-22] [--workers 4] [--messages 3000] [--seed 0]
    python benchmarks/against_simgrid.py --training [--network weightgrad-ec2] [--workers 256] [--messages 20000]

The messages are between hosts and at times drawn at random, or those of training on a tree, where one worker of a
region plays for all of them here and SimGrid plays each.

SimGrid (Casanova et al., JPDC 2014) shares links max-min fairly with its model CM02, its TCP factors turned off. Its
links have no latency here: a flow of CM02 takes its share from when its latency is over, ours from when it is sent, so
that the delay of a path, a constant, is left out of both. Exit code 1: a message is off by more than 0.5 % and 0.2 ms.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import permutations
from random import Random
from time import process_time
from typing import Any

from testbed.fabrics.virtual.clock import VirtualLoop
from testbed.fabrics.virtual.network import Network
from testbed.fidelity.against import Sent, virtual
from testbed.roles.roles import Roles
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import load

OFF, OFF_S = 0.005, 0.0002
GRADIENT_BYTES = 4_273_192  # CifarNet's
OPTIONS = (
    "network/model:CM02",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/TCP-gamma:0",
    "network/crosstraffic:0",
    "network/weight-S:0",
    "maxmin/precision:1e-9",
    "surf/precision:1e-9",
)


def at_random(plan: NetworkPlan, messages: int, seed: int) -> list[Sent]:
    """Messages of 10 kB to 100 MB, each between two hosts of its own, of which many are under way at once."""
    random = Random(seed)
    pairs = random.sample(list(permutations(plan.hosts, 2)), messages)
    sent = [Sent(random.uniform(0, messages / 20), *pair, round(10 ** random.uniform(4, 8))) for pair in pairs]
    return sorted(sent, key=lambda message: message.time_s)


def of_training(plan: NetworkPlan, roles: Roles, messages: int) -> list[Sent]:
    """The messages of steps of the baseline, a phase beginning when the one before is certainly over."""
    up = [(worker, lps) for lps in roles.lpss for worker in roles.clients_of(lps)]
    across = [(lps, roles.global_server) for lps in roles.lpss]
    down, back = [(b, a) for a, b in up], [(b, a) for a, b in across]
    lan_s = GRADIENT_BYTES * roles.workers_per_region / plan.profile.lan.bytes_per_s
    wan_s = max(GRADIENT_BYTES * len(across) / link.bytes_per_s for link in plan.wan.values())
    sent: list[Sent] = []
    begin_s = 0.0
    while len(sent) < messages:
        for pairs, takes_s in ((up, lan_s), (across, wan_s), (back, wan_s), (down, lan_s)):
            sent += [Sent(begin_s, src, dst, GRADIENT_BYTES) for src, dst in pairs]
            begin_s += takes_s + 1
    return sent


def simgrid(plan: NetworkPlan, messages: list[Sent]) -> list[float]:
    """When each message has been sent, by SimGrid (s)."""
    import simgrid as sg

    engine = sg.Engine(["against", *(f"--cfg={option}" for option in OPTIONS), "--log=root.thresh:error"])
    ours = Network(plan, VirtualLoop())
    zone = sg.NetZone.create_full_zone("all")
    hosts = {name: zone.create_host(name, 1e9) for name in plan.hosts}
    links: dict[Any, Any] = {}
    for src, dst in {(message.src, message.dst) for message in messages}:
        path = ours.connect(src, dst, lambda message: None).links
        for link in path:
            if link not in links:
                links[link] = zone.create_link(link.name, link.rate).set_latency(0.0).seal()
        route = [sg.LinkInRoute(links[link]) for link in path]
        zone.add_route(hosts[src].netpoint, hosts[dst].netpoint, None, None, route, False)
    zone.seal()
    under_way = []

    def send() -> None:
        for message in messages:
            if message.time_s > engine.clock:
                sg.this_actor.sleep_until(message.time_s)
            comm = sg.Comm.sendto_async(hosts[message.src], hosts[message.dst], message.size_bytes)
            under_way.append(comm)
        sg.Comm.wait_all(under_way)

    sg.Actor.create("send", hosts[plan.hosts[0]], send)
    engine.run()
    return [comm.finish_time for comm in under_way]


def compare(plan: NetworkPlan, messages: list[Sent], folds: Sequence[tuple[str, ...]]) -> int:
    """Play the messages with both and print how they differ; how many messages are off."""
    played_for = {member for members in folds for member in members[1:]}
    numbers = [k for k, each in enumerate(messages) if not {each.src, each.dst} & played_for]
    began_s = process_time()
    ours_s = virtual(plan, [messages[k] for k in numbers], folds)
    between_s = process_time()
    theirs_s = simgrid(plan, messages)
    spent_s, their_spent_s = between_s - began_s, process_time() - between_s
    network = Network(plan, VirtualLoop())
    off, furthest = 0, 0.0
    for number, ours in zip(numbers, ours_s, strict=True):
        message = messages[number]
        delay_s = network.connect(message.src, message.dst, lambda message: None).delay_s
        took_s, their_took_s = ours - delay_s - message.time_s, theirs_s[number] - message.time_s
        share = abs(took_s / their_took_s - 1)
        furthest = max(furthest, share)
        off += share > OFF and abs(took_s - their_took_s) > OFF_S
    count = len(messages)
    print(f"{count:,} messages on {plan.profile.name}, {len(plan.hosts)} hosts; {len(numbers):,} are played here")
    print(f"off by more than 0.5 % and 0.2 ms: {off}; the furthest by {furthest:.2g} of its time")
    print(
        f"CPU time: {spent_s:.2f} s here, {count / spent_s:,.0f} messages a second; SimGrid {their_spent_s:.2f} s, "
        f"{their_spent_s / spent_s:.1f} times as much"
    )
    return off


def main() -> int:
    parser = argparse.ArgumentParser(description="The virtual network beside SimGrid.")
    parser.add_argument("--network", default="skyplane-22", help="a profile; the last region has the server")
    parser.add_argument("--workers", type=int, default=4, help="a region")
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--training", action="store_true", help="the messages of training")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.append("/usr/lib/python3/dist-packages")  # where Debian puts its Python packages
    profile = load(options.network)
    roles = Roles(profile.regions[:-1], options.workers, profile.regions[-1])
    plan = NetworkPlan(roles.all, profile)
    if options.training:
        folds = [roles.workers_of(region) for region in roles.regions]
        return int(compare(plan, of_training(plan, roles, options.messages), folds) > 0)
    return int(compare(plan, at_random(plan, options.messages, options.seed), ()) > 0)


if __name__ == "__main__":
    sys.exit(main())
