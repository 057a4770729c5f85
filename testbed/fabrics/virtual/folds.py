"""Workers that do the same at the same moments: one of them plays for all (a fold).

In a timing-only run the workers of a region differ in nothing but their names, if their system says so
(`System.alike`): they compute equally long and send messages of the same sizes to the same server, which sends them
the same ones back. So the first plays. What it sends its server gets from each; what its server sends to each of them,
at one moment, it gets; on the links each counts (`Network`); and the record has all of them. The times and the bytes
are those of a run in which each plays.

In rings (`hierarchical-allreduce`) there is no server. What the first sends to the next in its region, it gets itself,
as if from the one before, who sends as much at that moment; what it sends to another region stands for a message of
each worker's there. That is so where the vector divides evenly into the rings' chunks; elsewhere each plays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from testbed.errors import ProtocolError
from testbed.message import Message
from testbed.record.events import Delivered, Event, Sent, StepDone
from testbed.roles.roles import kind_of
from testbed.roles.trail import Parcel, Stamp
from testbed.systems import System

Members = tuple[str, ...]


def folds_of(system: System) -> list[Members]:
    """The folds of a run of `system`; none where each role plays for itself."""
    roles = system.task.roles
    if not system.folds or roles.workers_per_region == 1:
        return []
    return [roles.workers_of(region) for region in roles.regions]


def across(members: Members, peer: str) -> str:
    """Who is as far before the first of `members`, in their ring, as `peer` is after it."""
    return members[-members.index(peer)]


class ToFold:
    """What a server has sent to some members of a fold and must send to the others before any time passes."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._reached = 0
        self._message: Message | None = None
        self._stamp: Stamp

    def complete(self, peer: str, parcel: Parcel) -> bool:
        """Take in the message to the next member; whether it was the last one.

        Raises
        ------
        ProtocolError
            It is not what the members before it were sent.
        """
        message, stamp = parcel
        if self._reached == 0:
            self._message, self._stamp = message, stamp
        if peer != self._members[self._reached] or message is not self._message or stamp[0] != self._stamp[0]:
            raise ProtocolError(
                f"{peer} is sent another message than {self._members[0]}, or another time: this system must not say "
                "that its workers are `alike`"
            )
        self._reached = (self._reached + 1) % len(self._members)
        return self._reached == 0


def from_fold(members: Members, arrived: Callable[[str, Parcel], None]) -> Callable[[Parcel], None]:
    """Hands in at a server what has come from the first of `members` as if it had come from each."""

    def deliver(parcel: Parcel) -> None:
        for member in members:
            arrived(member, parcel)

    return deliver


def of_each(members: Sequence[str], record: Callable[[Event], None]) -> Callable[[Event], None]:
    """Records what the first of `members` did as having been done by each: steps in one event, else one for each."""

    def recorded(event: Event) -> None:
        if isinstance(event, StepDone):
            record(msgspec.structs.replace(event, workers=len(members)))
            return
        for number, member in enumerate(members):
            of_it = msgspec.structs.replace(event, node=member)
            if isinstance(event, Sent | Delivered):
                of_it = msgspec.structs.replace(of_it, peer=_shifted(event.peer, number, len(members)))
            record(of_it)

    return recorded


def _shifted(peer: str, number: int, count: int) -> str:
    """The peer of worker `number` where the first one's is `peer`: the same server, or a worker so much further on."""
    region, _, name = peer.rpartition("/w")
    return f"{region}/w{(int(name) + number) % count}" if kind_of(peer) == "worker" else peer
