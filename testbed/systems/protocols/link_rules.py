"""What members of a link (`accounts`) do by what they have measured: their rate, how often a round counts, its code.

How coarse rounds are coded a server decides as well. With a code that leaves out the part e of a difference's mean
square a round takes 1 - e of it away; where one begins every T(e) seconds and copies come apart at some pace, what they
differ by goes with T(e) / (1 - e). There are codes that leave out 0.05 and 0.25, of which the finer has 1.73 times the
bits: so the coarser is better where bits in the finer would take half of T or more. What of T is bits a member
knows by what an empty message and its answer take, with which it begins a segment; of all members the smallest part
counts, which is that of the last to send, who waits for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt

from testbed.systems.protocols.base import System
from testbed.systems.protocols.desk import Report, ServerState
from testbed.systems.protocols.rhythm import Rhythm

FINE, COARSE = 0.05, 0.25  # codes' errors


class LinkRules(System):
    """The rules.

    Attributes
    ----------
    scaled : whether members are told to scale their rate
    outer_rate : how often what a member tells is counted, where answers come late
    outer_momentum : in its place, the Nesterov momentum of a server whose members' rounds are late
    """

    scaled = True
    outer_rate = 1.0
    outer_momentum = 0.0

    def scale(self, name: str, rhythm: Rhythm) -> float:
        """Of the rate, of those who train on with what this member has: n of them with a mean of their own each.

        Where answers are prompt a step is as good as one with the mean gradient of all; else it has its own, of an nth
        of the batch, and the rate is to go with the root of that (Krizhevsky 2014; Hoffer, Hubara & Soudry 2017).
        """
        server = self.task.roles.server_of(name)
        return 1 / sqrt(len(self.task.roles.clients_of(server))) if self.scaled and rhythm.late and server else 1.0

    def times(self, name: str, rhythm: Rhythm) -> float:
        """How often what this member tells is counted: prompt answers make one model of all, which has its own rate.

        The mean of n copies has a root of n less noise than each: no more often than that.
        """
        if self.outer_momentum or not rhythm.late:
            return 1.0
        return min(self.outer_rate, sqrt(self._members_beside(name)))

    def momentum(self, state: ServerState, places: Sequence[int]) -> float:
        """A server's, for the rounds of these members: none where it has one, as `times`."""
        reports = [Report(*state.reports[place]) for place in places]
        return self.momentum_by(reports) if len(state.reports) > 1 else 0.0

    def momentum_by(self, reports: Sequence[Report]) -> float:
        """For rounds with such reports: none where some are prompt."""
        return self.outer_momentum if all(report.late for report in reports) else 0.0

    def _members_beside(self, name: str) -> int:
        """Of its server, with itself."""
        return len(self.task.roles.clients_of(self.task.roles.server_of(name) or ""))

    def coarse_of(self, reports: Iterable[Report]) -> bool:
        """How members and their server are to code: coarsely where finer bits would be most of what a round takes."""
        return min((report.bits for report in reports if report.bits), default=0.0) > 1
