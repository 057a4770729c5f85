"""DiLoCo between workers: each trains by itself, and all average what they have learnt every H steps.

`diloco` as its papers have it (Douillard et al., 2023 and 2025), where a worker is whatever trains for H steps without
asking anybody; there it is a region here, which is synchronous inside. With the same options: outer gradients in
float32, 8 bits ("int8"), 4 ("int4", "e3m0") or ternary, fragments, overlap and mixing.

In the tree an LPS takes the mean of its workers' outer gradients and sends one message for all of them over the WAN, so
that this carries as much as between regions; the LAN carries a message of each worker every H steps in the place of
two a step. What is coded is decoded at each server and coded again. In the flat topology each worker sends its own over
the WAN. The mean of all comes back as it is, and every worker makes the same outer step. The means of means are those
of all workers, as regions have as many. All wait for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from testbed.message import Message
from testbed.roles.node import Node
from testbed.systems.diloco import CopyState, DiLoCo, GlobalState, Waiting


class DiLoCoWorkers(DiLoCo):
    name = "diloco-workers"
    topologies: ClassVar[tuple[str, ...]] = ("tree", "flat")
    tolerant = False

    @property
    def holders(self) -> tuple[str, ...]:
        """All workers."""
        return self.task.roles.workers

    async def worker(self, node: Node, state: Any) -> None:
        assert isinstance(state, CopyState)
        learner = self.task.learner(self.worker_index(node))
        waiting = Waiting()
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            await node.compute(self.update_work, self.apply, state, gradient, step)
            waiting = await self.exchange(node, state, step, waiting)
            node.step_done(step, loss)

    async def lps(self, node: Node, state: Any) -> None:
        assert isinstance(state, GlobalState)
        async for step in node.steps(state):
            if (fragment := self.turn(step)) is not None:
                messages: Sequence[Message] = await node.collect(node.workers)
                await node.send(node.global_server, await self.mean(node, state, fragment, messages, step))
                await node.broadcast(node.workers, await node.recv(node.global_server))
