"""How a message's stamp (`systems.trail`) gets from its sender to its receiver: in shared memory, beside the network.

All roles run on one machine and read one clock. A stamp inside the message would make it longer than the system's own
and than what the virtual fabric charges. Instead, each direction of a connection has a ring of slots in a file that
both ends map. Messages of a connection keep their order, so that the n-th message has the n-th stamp, and a stamp is
put before its message is sent, so that it is there when the message arrives. How many messages the receiver has taken
stands there, too: what a connection that is reset has lost is known by it (`line.Lasting`).
"""

from __future__ import annotations

import os
from mmap import mmap
from pathlib import Path
from struct import Struct

from testbed.roles.trail import LONGEST, Hop, Stamp

SLOTS = 1024  # far more messages than the queues of a connection hold
HEAD = Struct("<Q")  # how many messages have been taken
SLOT = Struct("<Qd" + "dd?" * LONGEST)  # the stamp's number, when it was sent, and the hops
NO_HOP: Hop = (0.0, 0.0, False)


class Stamps:
    """One end of one direction of a connection: the sender puts, the receiver takes.

    Parameters
    ----------
    path : the ring's file, the same for both ends; made if it is not there
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, HEAD.size + SLOTS * SLOT.size)
            self._ring = mmap(descriptor, HEAD.size + SLOTS * SLOT.size)
        finally:
            os.close(descriptor)
        self._count = 0

    def put(self, stamp: Stamp) -> None:
        """The stamp of the message that is sent next."""
        sent_s, hops = stamp
        padded = (*(NO_HOP,) * (LONGEST - len(hops)), *hops)
        self._count += 1
        SLOT.pack_into(self._ring, self._place(), self._count, sent_s, *(number for hop in padded for number in hop))

    @property
    def taken(self) -> int:
        """How many messages the receiver has taken."""
        return int(HEAD.unpack_from(self._ring)[0])

    @property
    def under_way(self) -> int:
        """How many of the messages whose stamps were put here have not been taken."""
        return self._count - self.taken

    def go_back(self) -> None:
        """What is put next is of the first message that has not been taken."""
        self._count = self.taken

    def take(self) -> Stamp | None:
        """The stamp of the message that has arrived next; None if later ones have taken its slot."""
        self._count += 1
        HEAD.pack_into(self._ring, 0, self._count)
        number, sent_s, *fields = SLOT.unpack_from(self._ring, self._place())
        if number != self._count:
            return None
        hops = zip(*(iter(fields),) * 3, strict=True)
        return sent_s, tuple(hop for hop in hops if hop != NO_HOP)

    def _place(self) -> int:
        return HEAD.size + self._count % SLOTS * SLOT.size

    def close(self) -> None:
        self._ring.close()
