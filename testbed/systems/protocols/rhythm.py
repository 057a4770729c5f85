"""When the rounds of a link begin, and why not at once: an answer that comes late corrects what is not there any more.

Let two copies differ by e in some direction, and a round bring the mean to both, d steps after it began. Meanwhile
their own gradients have made rho e of it: |rho| is below 1, and near 0 or negative where the direction is steep. The
answer takes e away, which leaves (rho - 1) e: in a steep direction the difference is corrected twice and turns round. A
next round that begins at once does so again, and the copies swing about their mean, or away from it, with every round.
Steps without a round let it settle first. With momentum m, with which the swing of a steep direction shrinks by sqrt(m)
a step, that takes about 2 / (1 - m) steps; docs/own-system-rules.md has what they do.

With a delay of a step or two only the steepest directions are overcorrected, and those are few: then a next round may
begin at once, and bring more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, Literal

import msgspec

Rest = Literal["auto"] | Annotated[int, msgspec.Meta(ge=0)]

PROMPT = 2  # steps by which an answer may be late and need no rest


def steps_to_settle(carried: float) -> int:
    """After an answer, where a step's direction goes on into the next by the part `carried` (`Optimizer.carried`)."""
    return ceil(2 / (1 - carried) - 1e-9)


def rest_after(delay: int, carried: float) -> int:
    """Steps to let pass after an answer that came `delay` steps after its round began."""
    return steps_to_settle(carried) if delay > PROMPT else 0


@dataclass
class Rhythm:
    """Of one member's link: steps as it counts them, and seconds on the run's clock."""

    late: bool = True  # whether answers are, or are made to be by rest; as long as there was none they may be
    until: int = 0  # step from which the next round may begin
    rest: int = 0  # steps between the latest answer and that
    began: int = 0  # step at which the latest round did
    began_s: float = 0.0
    before: list[float] = field(default_factory=list)  # the same of one before it that is under way; else empty
    heard: int = 0  # step at which the latest answered round began
    answered_s: float = 0.0  # 0: never
    gap_s: float = 0.0  # from an answer to the next round
    round_s: float = 0.0  # from the beginning of a round to its answer; 0: none has been answered
    asked_s: float = 0.0  # when an empty message was sent
    trip_s: float = 0.0  # what the latest that was answered took of the ways of a round; 0: none was
    asking: bool = False  # whether it is on its way

    def begin(self, step: int, now_s: float, behind: bool = False) -> None:
        """A round begins, `behind` one that is under way or else after the latest answer."""
        self.before = [self.began, self.began_s] if behind else []
        self.began, self.began_s = step, now_s
        self.gap_s = max(0.0, now_s - self.answered_s) if self.answered_s and not behind else 0.0

    @property
    def oldest(self) -> tuple[int, float]:
        """The step and the time at which the round began that is answered next."""
        return (int(self.before[0]), self.before[1]) if self.before else (self.began, self.began_s)

    def answer(self, step: int, now_s: float, carried: float, chosen: Rest = "auto", delay: int | None = None) -> None:
        """The oldest is answered.

        `chosen`: steps to rest, by the rule or so many; `delay`: steps by which the answer is late, where these are not
        those since its round began.
        """
        self.heard, began_s = self.oldest
        self.before, self.round_s, self.answered_s = [], now_s - began_s, now_s
        by_rule = rest_after(step - self.heard if delay is None else delay, carried)
        self.rest = by_rule if chosen == "auto" else chosen
        self.late, self.until = bool(by_rule or self.rest), step + self.rest

    def settled(self, closed: int, step: int) -> int:
        """Of the latest round that is closed and the one before it, the latest whose answer has been rested from."""
        return closed - (closed > 0 and step < self.until)

    def bits(self, finer: float) -> float:
        """What `finer` times its bits take of the time from one round to the next, over all else in it.

        All else is the rest and what an empty message takes. 0 where this is not known, and where answers are prompt:
        then the next round begins with a step anyway, which fewer bits would not make sooner.
        """
        if not (self.late and self.round_s and self.gap_s and self.trip_s):
            return 0.0
        return max(0.0, self.round_s - self.trip_s) * finer / (self.gap_s + self.trip_s)

    def ask(self, now_s: float) -> None:
        """An empty message is sent."""
        self.asked_s, self.asking = now_s, True

    def told(self, now_s: float, part: float = 1.0) -> None:
        """It is answered, of which a round's ways are so much.

        Of one that was given up, since somebody died meanwhile, that says nothing.
        """
        if self.asking:
            self.trip_s, self.asking = part * (now_s - self.asked_s), False
