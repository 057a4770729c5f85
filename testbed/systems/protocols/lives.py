"""How a fabric plays a segment of one role of a system, whatever kills it meanwhile."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from testbed.roles import life
from testbed.roles.life import Death, Deaths
from testbed.roles.node import Node
from testbed.systems.protocols.base import System


async def play_system(node: Node, system: System, state: Any, stop_at: int, deaths: Deaths | None) -> None:
    """Play the role of `node` from `state` to the step `stop_at`."""

    def begin(died_of: Death | None) -> Coroutine[Any, Any, None]:
        return system.role(node, state) if died_of is None else system.play(node, state, died_of.fresh)

    await life.play(node, begin, stop_at, deaths, system.returns(node.name))
