"""Roles given as functions, played on a small virtual network."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from small_runs import network, quadratic_task

from testbed.experiment.load import read_faults
from testbed.fabrics.virtual import VirtualFabric
from testbed.faults import Schedule
from testbed.message import Message
from testbed.record.events import Event
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.systems import Node, Options, System
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link
from testbed.wan.trace import Trace

Play = Callable[[Node], Coroutine[Any, Any, None]]
ROLES = Roles(("a", "b"), 2, "c")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))


@dataclass
class Steps:
    step: int = 0


class Scripted(System):
    """Roles given as functions; a role without one does nothing."""

    def __init__(self, roles: dict[str, Play]) -> None:
        super().__init__(quadratic_task(ROLES, steps=1), Options())
        self.roles = roles
        self.states = {name: Steps() for name in ROLES.all}

    def initial_state(self, name: str) -> Steps:
        return self.states[name]

    def role(self, node: Node, state: Steps) -> Any:
        return self.roles.get(node.name, _nothing)(node)

    def models(self, states: Any) -> dict[str, torch.Tensor]:
        return {}

    worker = lps = global_server = None  # type: ignore[assignment]


async def _nothing(node: Node) -> None:
    return


def play(
    roles: dict[str, Play],
    stops: tuple[int, ...] = (1,),
    device: str = "m60",
    trace: Trace | None = None,
    faults: Sequence[str] = (),
    patience_s: float = inf,
) -> tuple[list[Event], float]:
    """Play scripted roles; returns the events and the clock at the end."""
    plan = NetworkPlan(ROLES.all, PROFILE)
    schedule = Schedule(trace, read_faults(list(faults), "test"), plan.wan, ROLES.all)
    fabric = VirtualFabric(
        plan, compute_model(device), lambda name, seed: Scripted(roles), 1.0, schedule, None, patience_s
    )
    events: list[Event] = []
    fabric.record = events.append
    fabric.begin("scripted", 0, Path(), 0.0, None)
    for stop in stops:
        clock_s = fabric.segment(stop)
    return events, clock_s


def word(text: str, numbers: tuple[float, ...] = ()) -> Message:
    return Message(text, 0, (), numbers)


async def send_words(node: Node, peer: str, *words: str) -> None:
    for text in words:
        await node.send(peer, word(text))
