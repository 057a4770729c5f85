"""Messages a second of the virtual fabric alone: roles that send and receive a CifarNet gradient and do no math.

    python benchmarks/messages.py [--regions 2] [--workers 4] [--messages 50000] [--profile]

Prints messages per second of CPU time; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import cProfile
from collections.abc import Mapping
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from testbed.compute import compute_model
from testbed.fabrics.virtual import VirtualFabric
from testbed.layout import Layout
from testbed.learning.config import Training
from testbed.message import Message
from testbed.systems import Node, Options, System, Task
from testbed.systems.terngrad import ServerState
from testbed.wan.plan import NetworkPlan, Roles
from testbed.wan.profile import Link, Profile

GRADIENT = [np.zeros(4 * 1_068_298, np.uint8)]


class Relay(System):
    """The baseline's messages without its math."""

    def __init__(self, roles: Roles) -> None:
        nothing = torch.empty(0)
        super().__init__(Task(0, roles, Layout(()), nothing, Training(), lambda worker: None, 1, 0.0), Options())

    def initial_state(self, name: str) -> ServerState:
        return ServerState()

    async def worker(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            await node.send(node.lps, Message("gradient", step, GRADIENT))
            await node.recv(node.lps)

    async def lps(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            await node.collect(node.workers)
            await node.send(node.global_server, Message("sum", step, GRADIENT))
            await node.broadcast(node.workers, await node.recv(node.global_server))

    async def global_server(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            await node.collect(node.lpss)
            await node.broadcast(node.lpss, Message("mean", step, GRADIENT))

    def models(self, states: Mapping[str, Any]) -> dict[str, Any]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4, help="a region")
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    options = parser.parse_args()
    names = tuple(f"region-{k}" for k in range(options.regions))
    everywhere = (*names, "server")
    pairs = {(a, b): Link(100, 60) for a in everywhere for b in everywhere if a != b}
    roles = Roles(names, options.workers, "server")
    plan = NetworkPlan(roles.all, Profile("bench", "bench", everywhere, Link(1000, 0.2), pairs))
    fabric = VirtualFabric(plan, compute_model("m60"), lambda name, seed: Relay(roles))
    fabric.begin("relay", 0, Path(), 0.0, None)
    steps = max(1, options.messages // (2 * options.regions * (options.workers + 1)))
    if options.profile:
        cProfile.runctx("fabric.segment(steps)", {}, {"fabric": fabric, "steps": steps}, sort="tottime")
        return
    began_s = process_time()
    fabric.segment(steps)
    rate = fabric.messages / (process_time() - began_s)
    print(f"{options.regions} regions x {options.workers} workers: {fabric.messages:,} messages, {rate:,.0f} a second")


if __name__ == "__main__":
    main()
