"""The data plane between nodes: the emulation's, with stamps in the messages and clocks that are set by each other.

1. Nodes share no memory. So a stamp travels as one more frame of its message, which is not counted as the system's.
2. Nor do they share a clock. Roles ask each other for the time over the same connections, as NTP does (RFC 5905,
   section 8): the answer that took the shortest time there and back tells the difference best, to half of that time.
3. ZeroMQ encrypts a frame before any of it leaves and decrypts it when all of it has come, 20 ms a hop for 4 MB. So
   long buffers travel in pieces: one is coded while the one before is on the wire.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, error
from time import monotonic

import zmq.asyncio

from testbed.errors import PeerTimeout, ProtocolError, RunError
from testbed.fabrics.actors.line import Line
from testbed.fabrics.actors.wire import Wire
from testbed.fabrics.cluster.doors import Doors
from testbed.message import Message
from testbed.roles.node import Node
from testbed.roles.trail import LONGEST, Hop, Parcel, Stamp

ASKED, TOLD = "clock asked", "clock told"
ROUNDS = 8
ANSWER_S = 60.0  # for all rounds
LOOK_S = 1.0  # so often is looked meanwhile whether the peer is there
REACH_S = 60.0  # for a connection to come about
PIECE_BYTES = 1 << 18
HEAD = Struct("<QdHH")  # of the last frame: message's number, when it was sent, how many hops and frames follow
HOP, SIZE = Struct("<dd?"), Struct("<Q")  # a hop; the size of a frame, where any has been cut


@dataclass(frozen=True)
class Difference:
    """How far a peer's clock is ahead of this machine's, and how far that may be wrong, in seconds."""

    ahead_s: float
    error_s: float


class NodeWire(Wire):
    """The connections of a role on a node, those of its `doors`.

    Attributes
    ----------
    sent_bytes : by peer, of the system's messages as it counts them (`Message.nbytes`), since the beginning
    """

    def __init__(self, doors: Doors, node: Node) -> None:
        super().__init__(doors.context, {peer: NodeLine(peer, self, doors, node) for peer in doors.sockets})
        self.sent_bytes: dict[str, int] = dict.fromkeys(doors.sockets, 0)
        self._doors, self._node, self._cutting = doors, node, doors.encrypted
        self._sent: defaultdict[str, int] = defaultdict(int)
        self._received: defaultdict[str, int] = defaultdict(int)
        self._answers: dict[str, asyncio.Queue[tuple[float, float, float, float]]] = {}
        self._telling: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Warm up what can be reached.

        Raises
        ------
        RunError
            A peer cannot be.
        """
        meetings = {asyncio.create_task(_meet(socket)): peer for peer, socket in self._doors.sockets.items()}
        if meetings:
            _, missed = await asyncio.wait(meetings, timeout=REACH_S)
            for task in missed:
                task.cancel()
            if missed:
                peers = ", ".join(sorted(meetings[task] for task in missed))
                raise RunError(f"no connection with {peers} within {REACH_S:g} s; let nodes reach each other's ports")
        await super().start()

    def frames_for(self, peer: str, parcel: Parcel) -> list[bytes | memoryview]:
        """The frames of a message to `peer`, in the moment before they are sent."""
        message, stamp = parcel
        self._sent[peer] += 1
        if message.kind not in (ASKED, TOLD):
            self.sent_bytes[peer] += message.nbytes
        frames = [memoryview(frame) for frame in message.frames()]
        pieces = cut(frames) if self._cutting else frames
        return [*pieces, packed(self._sent[peer], stamp, [len(f) for f in frames] if len(pieces) > len(frames) else [])]

    def taken(self, peer: str, frames: list[memoryview]) -> Parcel | None:
        """What has come from `peer`; None where that is nothing for the role."""
        came_s = monotonic()
        try:
            *pieces, last = frames
            number, stamp, sizes = unpacked(last)
            message = Message.from_frames(joined(pieces, sizes) if sizes else pieces)
            self._received[peer] += 1
            if number != self._received[peer]:
                raise ProtocolError("the connection broke, and messages were lost with it")
        except (ProtocolError, ValueError) as reason:
            self._node.mailbox.lose(peer, str(reason))
            return None
        if message.kind == ASKED:
            task = asyncio.create_task(self._tell(peer, message.numbers[0], came_s))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)
        elif message.kind == TOLD:
            asked_s, heard_s, told_s = message.numbers
            self._answers[peer].put_nowait((asked_s, heard_s, told_s, came_s))
        else:
            return message, stamp
        return None

    async def _tell(self, peer: str, asked_s: float, came_s: float) -> None:
        await self.send(peer, (Message(TOLD, 0, (), (asked_s, came_s, monotonic())), (0.0, ())))

    async def difference(self, peer: str) -> Difference:
        """How the clock of the machine of `peer` differs from this one's.

        Raises
        ------
        PeerLost, PeerTimeout
            The connection is gone, or there is no answer.
        """
        asking = asyncio.create_task(self._ask(peer))
        until_s = monotonic() + ANSWER_S
        try:
            while not (await asyncio.wait((asking,), timeout=LOOK_S))[0]:
                self._node.mailbox.check(peer)
                if monotonic() > until_s:
                    raise PeerTimeout(f"{peer} does not say what its clock shows")
            return asking.result()
        finally:
            asking.cancel()

    async def _ask(self, peer: str) -> Difference:
        answers: asyncio.Queue[tuple[float, float, float, float]] = asyncio.Queue()
        self._answers[peer] = answers
        best: Difference | None = None
        for _ in range(ROUNDS):
            await self.send(peer, (Message(ASKED, 0, (), (monotonic(),)), (0.0, ())))
            found = difference(*await answers.get())
            best = found if best is None or found.error_s < best.error_s else best
        assert best is not None
        return best

    def close(self) -> None:
        for task in self._telling:
            task.cancel()
        for line in self._lines.values():
            line.stop()
        self._doors.close()


class NodeLine(Line):
    """One of the connections of a `wire`; who is dialed is watched."""

    def __init__(self, peer: str, wire: NodeWire, doors: Doors, node: Node) -> None:
        super().__init__(peer, doors.sockets[peer], node)
        self._wire, self.watched = wire, peer in doors.dialed

    def _packed(self, parcel: Parcel) -> list[bytes | memoryview]:
        return self._wire.frames_for(self.peer, parcel)

    def _unpacked(self, frames: list[memoryview]) -> Parcel | None:
        return self._wire.taken(self.peer, frames)


async def _meet(socket: zmq.asyncio.Socket) -> None:
    await socket.send(b"")
    await socket.recv()


def difference(asked_s: float, heard_s: float, told_s: float, came_s: float) -> Difference:
    """From when a question was asked and its answer came here, and was heard and answered there, each by its clock.

    With both ways alike the middle of the one is the middle of the other; at worst all of the way is one way.
    """
    ahead_s = ((heard_s - asked_s) + (told_s - came_s)) / 2
    return Difference(ahead_s, max((came_s - asked_s) - (told_s - heard_s), 0.0) / 2)


def packed(number: int, stamp: Stamp, sizes: Sequence[int] = ()) -> bytes:
    """The last frame of message `number` of a connection: its stamp, and of one that is cut the sizes of its frames."""
    sent_s, hops = stamp
    head = HEAD.pack(number, sent_s, len(hops), len(sizes))
    return b"".join([head, *(HOP.pack(*hop) for hop in hops), *(SIZE.pack(size) for size in sizes)])


def unpacked(frame: memoryview) -> tuple[int, Stamp, list[int]]:
    """The number, the stamp and the sizes in a last frame; ProtocolError where it is none."""
    try:
        number, sent_s, hops, sizes = HEAD.unpack_from(frame)
        end = HEAD.size + hops * HOP.size
        if hops > LONGEST or len(frame) != end + sizes * SIZE.size:
            raise ProtocolError("a message came with a stamp that is none")
        found: tuple[Hop, ...] = tuple(HOP.iter_unpack(frame[HEAD.size : end]))
        return number, (sent_s, found), [size for (size,) in SIZE.iter_unpack(frame[end:])]
    except error:
        raise ProtocolError("a message came without its stamp") from None


def cut(frames: Sequence[memoryview]) -> list[memoryview]:
    """The frames in pieces of at most `PIECE_BYTES`, without a copy."""
    return [frame[at : at + PIECE_BYTES] for frame in frames for at in range(0, max(len(frame), 1), PIECE_BYTES)]


def joined(pieces: Sequence[memoryview], sizes: Sequence[int]) -> list[memoryview]:
    """The frames of these sizes that were cut into `pieces`; ProtocolError where they are others."""
    left, frames = deque(pieces), []
    for size in sizes:
        parts = [left.popleft() for _ in range(max(-(-size // PIECE_BYTES), 1)) if left]
        if sum(map(len, parts)) != size:
            raise ProtocolError("a message came in other pieces than it was cut into")
        frames.append(parts[0] if len(parts) == 1 else memoryview(b"".join(parts)))
    if left:
        raise ProtocolError("a message came in more pieces than it was cut into")
    return frames
