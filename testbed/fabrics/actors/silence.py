"""Notices that a run stands still, and says who waits for whom.

A server waits for its clients for as long as their steps take, which nobody knows, so no role can tell a long step from
one that never ends. Together they can: when none of them computes, and nothing has come to any for longer than any
bounded wait may last, nothing ever will.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

from testbed.errors import RunError

MARGIN_S = 10.0  # beyond the run's patience, so that a role's own wait, which says more, is over first
NAMED = 5


@dataclass(frozen=True)
class Doing:
    """What a role is at: when it last had something to do (monotonic clock; 0: unknown), and whom it waits for."""

    active_s: float
    awaited: tuple[str, ...] = ()
    ailment: str = ""  # of one that could not be asked: "is stopped"


class Silence:
    """How long nothing has been heard of any role; `bound_s` in real seconds."""

    def __init__(self, bound_s: float) -> None:
        self._bound_s, self._heard_s = bound_s, monotonic()

    def heard(self) -> None:
        """Something has."""
        self._heard_s = monotonic()

    @property
    def too_long(self) -> bool:
        """Whether the roles have to be asked what they are at."""
        return monotonic() - self._heard_s > self._bound_s

    def judge(self, doing: Mapping[str, Doing]) -> None:
        """Take note of what the roles are at.

        Raises
        ------
        RunError
            Nothing goes on, and has not for too long; the message says who waits for whom.
        """
        self._heard_s = max(self._heard_s, *(each.active_s for each in doing.values()))
        if not self.too_long:
            return
        ailing = [f"{role} {each.ailment}" for role, each in doing.items() if each.ailment]
        waiting = [f"{role} waits for {', '.join(each.awaited)}" for role, each in doing.items() if each.awaited]
        said = [*ailing, *waiting] or ["no role waits for a message"]
        more = f" and {len(said) - NAMED} more" if len(said) > NAMED else ""
        since_s = monotonic() - self._heard_s
        raise RunError(f"nothing has happened for {since_s:.0f} s: {'; '.join(said[:NAMED])}{more}")
