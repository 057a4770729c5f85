"""What a node is handed, as protocols, so that roles depend on no faults; and what ends a role early."""

from __future__ import annotations

from typing import Protocol

from testbed.message import Message

OVER = "over"  # a server's segment is: to those who may be dead, and no part of any system


class Orphaned(Exception):
    """The server of a role has ended its segment while the role waited for an answer: it is dead."""


class Stepped(Protocol):
    """State of a role that counts steps."""

    step: int


class Pace(Protocol):
    """How fast a role goes where faults slow or stop it, as `faults.Pace` has it."""

    def done_s(self, now_s: float, seconds: float) -> float: ...

    def awake_s(self, now_s: float) -> float: ...


class Fate(Protocol):
    """Of a role that faults may kill, as `roles.life.Life` has it."""

    dead: bool

    def takes(self, peer: str, message: Message) -> bool:
        """Whether the role gets a message that has come, which one that is dead does not."""
