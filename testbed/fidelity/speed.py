"""How fast the virtual network is: messages a second of roles that send and receive a CifarNet gradient and do no math.

Time is this process's CPU time, so that other work on the machine counts little.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from testbed.fabrics.virtual import VirtualFabric
from testbed.fidelity.values import Bound, Value, settled
from testbed.layout import Layout
from testbed.message import Message
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.systems import Node, Options, System, Task
from testbed.systems.protocols.base import Gradients
from testbed.systems.protocols.replica import ServerState
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile
from testbed.workloads.config import Training

GRADIENT = [np.zeros(4 * 1_068_298, np.uint8)]
MESSAGES = 50_000
SMALL, LARGE = (2, 4), (11, 46)  # regions, workers in each
SMALL_PER_S, LARGE_PER_S, GROWTH = 50_000, 20_000, 3.0
AT_LEAST, AT_MOST = Bound(side="least"), Bound(side="most")


class Relay(System):
    """The baseline's messages without its math; `folds`: one worker plays for its region, as in timing-only runs."""

    folds = False

    def __init__(self, roles: Roles, folds: bool) -> None:
        self.folds = folds
        nothing = torch.empty(0)
        super().__init__(Task(0, roles, Layout(()), nothing, Training(), _no_gradients, 1, 0.0), Options())

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


def _no_gradients(worker: int) -> Gradients:
    raise AssertionError(f"worker {worker} of a relay has nothing to compute")


def uniform(regions: int) -> Profile:
    """So many regions with data and one for the server, all alike."""
    everywhere = (*(f"region-{k}" for k in range(regions)), "server")
    pairs = {(a, b): Link(100, 60) for a in everywhere for b in everywhere if a != b}
    return Profile("bench", "bench", everywhere, Link(1000, 0.2), pairs)


def relay(profile: Profile, workers: int, folds: bool) -> VirtualFabric:
    """A virtual fabric whose roles, a tree, do nothing but exchange messages; the last region has the server."""
    *names, server = profile.regions
    roles = Roles(tuple(names), workers, server)
    plan = NetworkPlan(roles.all, profile)
    fabric = VirtualFabric(plan, compute_model("m60"), lambda name, seed: Relay(roles, folds))
    fabric.begin("relay", 0, Path(), 0.0, None)
    return fabric


def steps_of(messages: int, regions: int, workers: int) -> int:
    """Steps that take about so many messages."""
    return max(1, messages // (2 * regions * (workers + 1)))


def messages_per_s(profile: Profile, workers: int, messages: int = MESSAGES, folds: bool = False) -> float:
    """Messages per second of CPU time."""
    fabric = relay(profile, workers, folds)
    began_s = process_time()
    fabric.segment(steps_of(messages, len(profile.regions) - 1, workers))
    return fabric.messages / (process_time() - began_s)


def figures() -> list[Value]:
    """The virtual network's speed on a small and on a large tree, and how a message's cost grows between them."""
    return settled(_figures)


def _figures() -> list[Value]:
    small, large = (messages_per_s(uniform(regions), workers) for regions, workers in (SMALL, LARGE))
    section, growth = "virtual network alone", f"cost of a message, {_name(LARGE)} to {_name(SMALL)}"
    return [
        Value(section, _name(SMALL), "messages/s", SMALL_PER_S, small, AT_LEAST),
        Value(section, _name(LARGE), "messages/s", LARGE_PER_S, large, AT_LEAST),
        Value(section, growth, "times", GROWTH, small / large, AT_MOST),
    ]


def _name(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]} workers"
