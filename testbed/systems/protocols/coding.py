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
from typing import Literal

import numpy as np

from testbed.codecs.lossless.entropy import EntropyCoded, SymbolRuns, worth_coding
from testbed.errors import ProtocolError
from testbed.message import Message
from testbed.roles.node import Node
from testbed.roles.roles import kind_of
from testbed.systems.protocols.base import Task

Choice = Literal["off", "auto", "on"]
Coders = Mapping[tuple[str, str], EntropyCoded]  # by the kind of sender and of message, e.g. ("lps", "levels")

SUFFIX = "-coded"

# Passes over a float32 vector with as many elements as a message has symbols; measured at 10^6 and 4 * 10^6 elements of
# ternary, summed, uniform and QSGD messages: 0.5, 2.5 and 2.2 ns a symbol, of which a float32 is copied in 0.3.
COUNTING, CODING, DECODING = 2, 8, 7
PLANES = 1  # the same for levels in bit planes: to put symbols together from them, or to take symbols apart


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
        if choice == "auto" and task.seconds is None:
            element_s()  # measured now, before the first step

    async def send(self, node: Node, peers: Sequence[str], message: Message) -> None:
        """Send a message to each of `peers`, coded where it is to be; the time that takes is charged to `node`."""
        coder = self._coders.get((kind_of(node.name), message.kind))
        if coder is not None:
            message = await self._coded(node, peers, message, coder)
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
        if coder is None:
            return message
        return Message(message.kind.removesuffix(SUFFIX), message.step, coder.unpack(message.buffers), message.numbers)

    def passes(self, sender: str, *messages: Message) -> float:
        """Passes over a float32 vector [layout.size] that `opened` takes for all of `messages`."""
        coders = [self._reader(sender, message) for message in messages]
        return sum(self._decoding(coder) for coder in coders if coder is not None)

    async def _coded(self, node: Node, peers: Sequence[str], message: Message, coder: EntropyCoded) -> Message:
        counting, coding = self._counting(coder), self._share(CODING * coder.runs.symbols)
        buffers = list(message.buffers)
        if self.choice == "on":
            packed = await node.compute(self._task.passes(counting + coding, codec=True), coder.pack, buffers)
            return Message(message.kind + SUFFIX, message.step, packed, message.numbers)
        rate_mbit = min(self._task.rate_mbit(node.name, peer) for peer in peers)
        plain, decoding = buffers[-1].nbytes, self._decoding(coder)
        if not worth_coding(plain, 0, self._seconds(counting + coding + decoding), rate_mbit):
            return message
        survey = await node.compute(self._task.passes(counting, codec=True), coder.survey, buffers)
        if not worth_coding(plain, survey.nbytes, self._seconds(coding + decoding), rate_mbit):
            return message
        packed = await node.compute(self._task.passes(coding, codec=True), coder.pack, buffers, survey)
        return Message(message.kind + SUFFIX, message.step, packed, message.numbers)

    def _reader(self, sender: str, message: Message) -> EntropyCoded | None:
        """What a message must be opened with, if it must."""
        if not message.kind.endswith(SUFFIX):
            return None
        kind = message.kind.removesuffix(SUFFIX)
        if (sender, kind) not in self._coders:
            raise ProtocolError(f"a message '{message.kind}' of a {sender}: its '{kind}' is never entropy coded here")
        return self._coders[sender, kind]

    def _counting(self, coder: EntropyCoded) -> float:
        return self._share(COUNTING * coder.runs.symbols + PLANES * coder.runs.levels)

    def _decoding(self, coder: EntropyCoded) -> float:
        return self._share(DECODING * coder.runs.symbols + PLANES * coder.runs.levels)

    def _share(self, elements: float) -> float:
        """Passes over the model's vector that so many elements are."""
        return elements / self._task.layout.size

    def _seconds(self, passes: float) -> float:
        if self._task.seconds is not None:
            return self._task.seconds(self._task.passes(passes, codec=True))
        return passes * self._task.layout.size * element_s()


@lru_cache
def element_s() -> float:
    """Seconds a pass takes this machine for an element, by what it codes at that moment; measured once a process."""
    symbols = np.minimum(np.random.default_rng(0).geometric(0.05, 200_000) - 1, 242).astype(np.uint8)
    runs = SymbolRuns(243, ["sample"], [symbols.size])
    fastest_s = min(_timed(lambda: runs.unpack(runs.pack(symbols))) for _ in range(5))
    return fastest_s / ((COUNTING + CODING + DECODING) * symbols.size)


def _timed(work: Callable[[], object]) -> float:
    began_s = perf_counter()
    work()
    return perf_counter() - began_s
