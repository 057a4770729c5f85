"""An LPS's side of WeightGrad's exchange: its Gradient Synchronizer (KDD 2020, 4.2 and appendix A.2).

After each step it looks whether the accumulated update `g_u` is significant, or T is over, and sends it to the global
server (`protocols.rounds`); it answers when that asks for it, and takes the mean of a round in. The rules that the
paper leaves open are numbered in `systems/weightgrad.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import torch

from testbed.codecs.base import Key
from testbed.codecs.costs import fed_back
from testbed.gpu.moves import norms_of, numbers
from testbed.message import Message
from testbed.record.events import Guard, Threshold
from testbed.roles.attendance import CATCH_UP, Tolerance
from testbed.roles.node import Node
from testbed.systems.protocols.base import Task


@dataclass(frozen=True)
class Updates:
    """How updates cross the WAN: by `codec`, with error feedback where `feedback`; in float32 to who catches up."""

    codec: Any
    floats: Any
    feedback: bool

    def encode(self, update: torch.Tensor, residual: torch.Tensor, key: Key) -> Sequence:
        """Quantize an update; with feedback, `residual` takes part and keeps what is left out."""
        if not self.feedback:
            return self.codec.encode(update, key)
        wanted = update + residual
        buffers = self.codec.encode(wanted)
        residual.copy_(wanted.sub_(self.codec.decode(buffers)))
        return buffers

    @property
    def charged(self) -> Any:
        """What coding an update costs."""
        return fed_back(self.codec) if self.feedback else self.codec

    def codec_of(self, message: Message) -> Any:
        """What a message is coded by."""
        return self.floats if message.kind == CATCH_UP else self.codec

    def decode(self, message: Message) -> torch.Tensor:
        """The update of a message."""
        return self.codec_of(message).decode(message.buffers)


class Accumulated(Protocol):
    """State that outlives a segment, of an LPS; vectors are flat and in units of weight change."""

    step: int
    weights: torch.Tensor
    update: torch.Tensor
    residual: torch.Tensor
    threshold: float | None
    last_exchange_s: float


class Settings(Protocol):
    """The options that matter here, see `WeightGradOptions`."""

    @property
    def aggregate(self) -> str: ...
    @property
    def reconcile(self) -> str: ...
    @property
    def pull(self) -> str: ...
    @property
    def t_s(self) -> float: ...


class GradientSynchronizer:
    """Sends what is significant and takes means in; at a boundary nothing of it is on its way.

    Parameters
    ----------
    state : of the LPS
    tolerance : bounds how long workers are held for a mean; None: they are held until it comes

    Attributes
    ----------
    contribution : the update that is on its way through a round, or None
    reference : eta * g_ref of the latest step
    """

    def __init__(
        self,
        node: Node,
        task: Task,
        state: Accumulated,
        options: Settings,
        updates: Updates,
        tolerance: Tolerance | None = None,
    ) -> None:
        self._node, self._task, self._state, self._options = node, task, state, options
        self._updates, self._tolerance = updates, tolerance
        self.contribution: torch.Tensor | None = None
        self.reference: torch.Tensor | None = None
        self._sent_s = 0.0
        self._settled = asyncio.Event()
        self._asked = 0  # latest round the global server asked this LPS for
        self._closed = 0  # latest round whose mean has arrived

    async def step_done(self, reference: torch.Tensor, step: int) -> None:
        """Exchange what there is to exchange after a step; returns when its workers may have their answer."""
        self.reference = reference
        if self.contribution is None and (reason := self._significant(step)):
            await self._contribute(reason)
        await self._await_mean()

    def _significant(self, step: int) -> str:
        """Why g_u goes to the global server now: "significant", "interval" (T is over), or "" for not yet."""
        if self._task.sizes is not None:
            return "significant" if self._task.sizes.significant(self._node.name, step) else self._interval()
        assert self.reference is not None and self._state.threshold is not None
        reference, update = numbers(*norms_of((self.reference, self._state.update)))
        significance = update / reference if reference else 0.0
        if significance >= self._state.threshold:
            self._node.record(
                Threshold(
                    time_s=self._node.now(),
                    node=self._node.name,
                    step=step,
                    significance=significance,
                    threshold=self._state.threshold,
                )
            )
            return "significant"
        return self._interval()

    def _interval(self) -> str:
        return "interval" if self._node.now() - self._state.last_exchange_s >= self._options.t_s else ""

    async def _contribute(self, reason: str) -> None:
        """Send g_u to the global server; the boundary waits for the mean it will be part of."""
        node, task, state = self._node, self._task, self._state
        self.contribution, state.update = state.update, torch.zeros_like(state.update)
        self._sent_s = node.now()
        self._settled.clear()
        node.spawn(self._until_settled())
        key = Key(task.seed, task.roles.stream_of(node.name), state.step)
        charge = task.encoding(self._updates.charged)
        buffers = await node.compute(charge, self._updates.encode, self.contribution, state.residual, key)
        await node.send(node.global_server, Message(reason, state.step, buffers))

    async def _await_mean(self) -> None:
        """Line 9: do not answer the workers before the mean when pulling blocks, and else (T) once it is overdue."""
        node = self._node
        if self.contribution is None:
            return
        if self._options.pull == "blocking":
            await self._until_settled(self._bound_s())
            return
        if node.now() - self._sent_s <= self._options.t_s or self._bound_s() <= 0:
            return
        since_s = node.now()
        node.record(Guard(time_s=since_s, node=node.name, guard="T", peer=node.global_server))
        await self._until_settled(self._bound_s())
        held_s = node.now() - since_s
        node.record(Guard(time_s=node.now(), node=node.name, guard="T", peer=node.global_server, held_s=held_s))

    def _bound_s(self) -> float:
        """How much longer workers are held at most: with a tolerance to `patience_s` after T."""
        if self._tolerance is None:
            return inf
        return self._sent_s + self._options.t_s + self._tolerance.patience_s - self._node.now()

    async def _until_settled(self, bound_s: float = inf) -> None:
        """Wait for the mean that has the region's contribution in it, or until the bound is over."""
        if self._tolerance is None:
            await self._node.wait(self._settled, "the mean of its contribution")
            return
        with suppress(TimeoutError):
            async with nullcontext() if bound_s == inf else self._node.timeout(max(bound_s, 0.0)):
                await self._settled.wait()

    async def serve(self) -> None:
        """Answer the global server: what it asks for, and means."""
        node, task = self._node, self._task
        async for peer, message in node.serve((node.global_server,)):
            if message.kind == "request":
                self._asked = message.step
            else:
                work = task.decoding(self._updates.codec_of(message), message) + task.passes(4)
                await node.compute(work, self.reconcile, message)
                self._state.last_exchange_s = node.now()
                await node.send(peer, Message("ack", message.step))
                self._closed = message.step
            if self.contribution is None and self._asked > self._closed:
                await self._contribute("asked")

    def reconcile(self, message: Message) -> None:
        """Take the mean of a round in; `numbers[0]` says whether this region's contribution is part of it."""
        weights, mean = self._state.weights, self._updates.decode(message)
        own = self.contribution if message.numbers[0] else None
        if self._options.reconcile == "exact" or self._task.timing_only:
            if own is not None:
                weights.add_(own)
            weights.sub_(mean)
        elif self._options.aggregate == "average" or self.reference is None:
            weights.sub_(mean)
        elif torch.linalg.vector_norm(mean) > torch.linalg.vector_norm(self.reference):
            weights.sub_(mean).add_(self.reference)
        if own is not None:
            self.contribution = None
            self._settled.set()
