"""The option `entropy`: which of a system's messages are entropy coded, and what that takes.

Coding is on top of a message that is complete without it, and lossless: training is the same to the last bit, only
bytes and times differ. Who sends a message decides, and its kind says so, e.g. "levels" and "levels-coded"; whoever
passes it on does so as it came. With "auto" a message is coded when that makes its way shorter:

1. The time that coding and decoding take, by the compute model, must be less than what the link saves. Where it would
   not be even if nothing were left to send, as on a fast LAN, the symbols are not looked at.
2. Else they are counted, which tells how many bytes they take coded (and is charged), and the question is put again.

A link's rate is what the profile says that one message sees alone on its way to the nearest receiver; of several
receivers the one with the slowest link counts, since a step waits for it. A message is judged for itself: neither that
others share its link nor that a server decodes them one after the other is weighed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from time import perf_counter
from typing import Any, Literal

import numpy as np

from testbed.codecs.costs import COPY, COSTS
from testbed.codecs.lossless.entropy import EntropyCoded, SymbolRuns, worth_coding
from testbed.codecs.sized import Sized, Sizes
from testbed.errors import ProtocolError
from testbed.message import Message
from testbed.roles.compute import NOTHING, Work
from testbed.roles.node import Node
from testbed.roles.roles import kind_of
from testbed.systems.protocols.base import Task

Choice = Literal["off", "auto", "on"]
Coders = Mapping[tuple[str, str], EntropyCoded]  # by the kind of sender and of message, e.g. ("lps", "levels")

SUFFIX = "-coded"

ENTROPY, PLANES = COSTS["entropy coder"], COSTS["bit planes to symbols"]  # a symbol, a level is an element


class EntropyCoding:
    """Entropy codes what a system's roles send, as its option says.

    Parameters
    ----------
    task : knows the links' rates and what a computation takes
    choice : "off"; "on": whatever has a coder; "auto": when it makes the way shorter
    coders : what can be coded, and how; other messages go as they are
    """

    def __init__(self, task: Task, choice: Choice, coders: Coders) -> None:
        self.choice = choice
        self._task = task
        self._coders = {} if choice == "off" else dict(coders)
        self.kinds = frozenset(kind + SUFFIX for _, kind in self._coders)
        if choice == "auto" and task.seconds is None:
            byte_s()  # measured now, before the first step

    async def send(self, node: Node, peers: Sequence[str], message: Message) -> None:
        """Send a message to each of `peers`, coded where it is to be; the time that takes is charged to `node`."""
        coder = self._coders.get((kind_of(node.name), message.kind))
        if coder is not None:
            known = coder if self._task.sizes is None else _Known(coder, self._task.sizes, node.name, message)
            message = await self._coded(node, peers, message, known)
        await node.broadcast(peers, message)

    def opened(self, sender: str, message: Message) -> Message:
        """The message that was coded, or itself.

        Parameters
        ----------
        sender : the kind of role that made it: "worker", "lps" or "gs"

        Raises
        ------
        CodecError : the symbols are malformed
        ProtocolError : no such message is ever coded
        """
        coder = self._reader(sender, message)
        if coder is None or self._task.timing_only:
            return message
        return Message(message.kind.removesuffix(SUFFIX), message.step, coder.unpack(message.buffers), message.numbers)

    def opening(self, sender: str, *messages: Message) -> Work:
        """What `opened` takes for all of `messages`."""
        coders = [self._reader(sender, message) for message in messages]
        return sum((_decoding(coder) for coder in coders if coder is not None), NOTHING)

    async def _coded(self, node: Node, peers: Sequence[str], message: Message, coder: Any) -> Message:
        buffers = list(message.buffers)
        if self.choice == "on":
            packed = await node.compute(_counting(coder) + _packing(coder), coder.pack, buffers)
            return Message(message.kind + SUFFIX, message.step, packed, message.numbers)
        rate_mbit = min(self._task.rate_mbit(node.name, peer) for peer in peers)
        plain, rest = buffers[-1].nbytes, _packing(coder) + _decoding(coder)
        if not worth_coding(plain, 0, self._seconds(_counting(coder) + rest), rate_mbit):
            return message
        survey = await node.compute(_counting(coder), coder.survey, buffers)
        if not worth_coding(plain, survey.nbytes, self._seconds(rest), rate_mbit):
            return message
        packed = await node.compute(_packing(coder), coder.pack, buffers, survey)
        return Message(message.kind + SUFFIX, message.step, packed, message.numbers)

    def _reader(self, sender: str, message: Message) -> EntropyCoded | None:
        """What a message must be opened with, if it must."""
        if not message.kind.endswith(SUFFIX):
            return None
        kind = message.kind.removesuffix(SUFFIX)
        if (sender, kind) not in self._coders:
            raise ProtocolError(f"a message '{message.kind}' of a {sender}: its '{kind}' is never entropy coded here")
        return self._coders[sender, kind]

    def _seconds(self, work: Work) -> float:
        return self._task.seconds(work) if self._task.seconds is not None else work.coding_nbytes * byte_s()


class _Known:
    """Takes the place of a coder in a timing-only run, for one message: it is as large as `sizes` says."""

    def __init__(self, coder: EntropyCoded, sizes: Sizes, sender: str, message: Message) -> None:
        self.runs = coder.runs
        elements = coder.layout.size
        self._buffers = [
            Sized(nbytes) for nbytes in sizes.buffers(sender, message.step, message.kind + SUFFIX, elements)
        ]

    def survey(self, buffers: Sequence[Sized]) -> Sized:
        """The symbols' size; none are worth coding where none were coded."""
        return self._buffers[-1] if self._buffers else buffers[-1]

    def pack(self, buffers: Sequence[Sized], survey: Sized | None = None) -> Sequence[Sized]:
        """The coded message."""
        return self._buffers or buffers


def _counting(coder: Any) -> Work:
    return _work(ENTROPY.survey * coder.runs.symbols + PLANES.encode * coder.runs.levels)


def _packing(coder: Any) -> Work:
    return _work((ENTROPY.encode - ENTROPY.survey) * coder.runs.symbols)


def _decoding(coder: Any) -> Work:
    return _work(ENTROPY.decode * coder.runs.symbols + PLANES.decode * coder.runs.levels)


def _work(copies: float) -> Work:
    return Work(coding_nbytes=COPY * copies)


@lru_cache
def byte_s() -> float:
    """Seconds this machine takes for what is charged as a byte, by what it codes at that moment; once a process."""
    symbols = np.minimum(np.random.default_rng(0).geometric(0.05, 200_000) - 1, 242).astype(np.uint8)
    runs = SymbolRuns(243, ["sample"], [symbols.size])
    fastest_s = min(_timed(lambda: runs.unpack(runs.pack(symbols))) for _ in range(5))
    return fastest_s / (COPY * (ENTROPY.encode + ENTROPY.decode) * symbols.size)


def _timed(work: Callable[[], object]) -> float:
    began_s = perf_counter()
    work()
    return perf_counter() - began_s
