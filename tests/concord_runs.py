"""What the tests of `concord` play: three regions, a network that is near and one that is far, and a quadratic task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from small_runs import network, quadratic_task

from testbed.layout import Layout
from testbed.roles.roles import Kind, Roles
from testbed.systems import Task
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.schedule import Constant

LAN, WAN = Link(1000, 0.5), Link(50, 40)
PROFILE = network(("a", "b", "c"), LAN, WAN)
FAR = network(("a", "b", "c"), LAN, Link(50, 600))
STEPS = 24  # of some 50 ms
TWO = Layout.of([("first.weight", (12, 8)), ("last.bias", (8,))])
APART, TOGETHER = {"lan": "apart"}, {"lan": "together"}


def task_of(
    kind: Kind = "tree", steps: int = STEPS, regions: Sequence[str] = "abc", workers: int = 2, **training: Any
) -> Task:
    roles = Roles(tuple(regions), workers, "a", kind)
    training = {"steps": steps, "schedule": Constant(rate=0.05), **training}
    return quadratic_task(roles, steps, layout=TWO, training=Training(**training))
