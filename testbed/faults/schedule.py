"""What changes over a run: its faults, laid over its trace, as both fabrics play them.

Everything follows from the run's clock: a run that is resumed meets the faults that are left, and the same seed meets
the same ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, groupby
from math import floor, inf
from zlib import crc32

import numpy as np

from testbed.faults.base import Fault, State
from testbed.faults.deaths import Deaths
from testbed.faults.pace import Pace
from testbed.record.events import Capacity, Cut, Event, Faulted
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Pair
from testbed.wan.trace import Change, Trace


@dataclass(frozen=True)
class Draw:
    """A fault that is in force and varies is drawn anew."""

    time_s: float
    number: int


@dataclass(frozen=True)
class Turn:
    """A fault begins or is over; `number` is its place among the run's."""

    time_s: float
    number: int
    kind: str
    about: str
    over: bool


@dataclass(frozen=True)
class Break:
    """The connection between two roles is reset."""

    time_s: float
    one: str
    other: str

    @property
    def link(self) -> str:
        """As the records name it."""
        return f"{self.one}={self.other}"


class Schedule:
    """The changes of a run in order of time, without end where its trace loops or a fault comes again.

    Parameters
    ----------
    trace : what the WAN does without any fault, beside the profile
    faults, wan, roles : what goes wrong, and where there is any, the WAN's links by the profile and the run's roles

    Attributes
    ----------
    end_s : when the run ends with its trace; None where it does not
    pairs : the links that anything changes, of regions, and the connections, of roles
    broken : the pairs of roles, each in both orders, whose connection is reset

    Raises
    ------
    InputError
        A fault names a link or a role that is not there.
    """

    def __init__(
        self,
        trace: Trace | None,
        faults: Sequence[Fault] = (),
        wan: Mapping[Pair, Link] | None = None,
        roles: Sequence[str] = (),
    ) -> None:
        self._wan = wan = wan or {}
        self.end_s = None if trace is None else trace.end_s
        self._trace, self._faults = trace, faults
        self._order = sorted(range(len(faults)), key=lambda number: faults[number].last)  # of the file, these last
        named = [tuple(fault.on_connections(roles)) for fault in faults]
        connections = [() if fault.resets else between for fault, between in zip(faults, named, strict=True)]
        self._breaks = [between if fault.resets else () for fault, between in zip(faults, named, strict=True)]
        self.broken = frozenset(chain(*self._breaks))
        self._links = [(*fault.on_links(wan), *between) for fault, between in zip(faults, connections, strict=True)]
        self._roles = [frozenset(fault.on_roles(roles)) for fault in faults]
        traced = [change.pair for change in trace.changes] if trace else []
        self.pairs = tuple(dict.fromkeys([*traced, *(pair for links in self._links for pair in links)]))
        self._profile = {pair: State(link.goodput_mbit, link.rtt_ms) for pair, link in wan.items()}
        self._profile |= dict.fromkeys(chain(*connections), State(inf, 0.0))
        self._tells_apart = any(self._roles) or any(named)

    @property
    def tells_roles_apart(self) -> bool:
        """Whether any role is slowed, stopped or cut off by itself, so that workers of a region are not alike."""
        return self._tells_apart

    def pace_of(self, role: str) -> Pace | None:
        """How fast a role goes; None where nothing ever slows it."""
        slow = [number for number, fault in enumerate(self._faults) if not fault.kills]
        concerning = [number for number in slow if role in self._roles[number]]
        return Pace(self._paces(concerning, role)) if concerning else None

    @cached_property
    def extremes(self) -> dict[Pair, Link]:
        """Of each directed link of the WAN that changes, the highest rate and the longest round trip it may come to."""
        states = {pair: self._utmost(pair, max) for pair in self._altered}
        return {pair: Link(state.goodput_mbit, state.rtt_ms) for pair, state in states.items()}

    @cached_property
    def least_mbit(self) -> dict[Pair, float]:
        """Of the same links the lowest rate."""
        return {pair: self._utmost(pair, min).goodput_mbit for pair in self._altered}

    def on(self, plan: NetworkPlan) -> NetworkPlan:
        """The plan with room for all that this will make of its links."""
        return replace(plan, extremes=self.extremes, least_mbit=self.least_mbit)

    @property
    def _altered(self) -> list[Pair]:
        """The links that anything changes, of regions alone."""
        return [pair for pair in self.pairs if pair in self._wan]

    def _utmost(self, pair: Pair, rate: Callable[[Sequence[float]], float]) -> State:
        """A link with the longest round trip, and with `rate`, max or min, of the rates, that it may ever come to."""
        traced = [change for change in self._trace.changes if change.pair == pair] if self._trace else []
        state = self._profile[pair]
        mbit = rate([state.goodput_mbit, *(change.goodput_mbit for change in traced)])
        rtt_ms = max([state.rtt_ms, *(change.rtt_ms for change in traced if change.rtt_ms is not None)])
        for number in self._order:
            if pair in self._links[number]:  # all that ever meet meet, at worst
                altered = self._faults[number].altered(State(mbit, rtt_ms))
                mbit, rtt_ms = rate([mbit, altered.goodput_mbit]), max(rtt_ms, altered.rtt_ms)
        return State(mbit, rtt_ms)

    @property
    def mortal(self) -> frozenset[str]:
        """The roles that any fault kills."""
        return frozenset(role for number in self._killing for role in self._roles[number])

    def deaths_of(self, role: str) -> Deaths | None:
        """When a role is dead; None for never."""
        concerning = [number for number in self._killing if role in self._roles[number]]
        if not concerning:
            return None

        def turns() -> Iterator[Turn]:
            return (each for each in self._turns(concerning, -1.0) if isinstance(each, Turn))

        return Deaths(turns, lambda number: self._faults[number].fresh)

    @property
    def _killing(self) -> list[int]:
        return [number for number, fault in enumerate(self._faults) if fault.kills]

    def at(self, clock_s: float) -> list[Change]:
        """What the links are at `clock_s` that anything has changed by then."""
        traced = self._traced(clock_s)
        if not self._faults:
            return list(traced.values())
        found, active = [], self._active(clock_s)
        for pair in self.pairs:
            state = self._state(pair, traced, active, clock_s)
            if replace(state, cut=False) != self._profile[pair]:
                found.append(_rate(clock_s, pair, state))
            if state.cut:
                found.append(_cut(clock_s, pair, state))
        return found

    def after(self, clock_s: float) -> Iterator[Change | Turn | Break]:
        """The changes later than `clock_s`, in order; a fault's turn stands before what it changes."""
        if not self._faults:
            yield from self._trace.after(clock_s) if self._trace else ()
            return
        base, active = self._traced(clock_s), self._active(clock_s)
        states = {pair: self._state(pair, base, active, clock_s) for pair in self.pairs}
        traced = self._trace.after(clock_s) if self._trace else iter(())
        turns = self._turns(range(len(self._faults)), clock_s)
        merged: Iterator[Change | Turn | Draw] = heapq.merge(traced, turns, key=lambda each: each.time_s)
        for time_s, together in groupby(merged, key=lambda each: each.time_s):
            touched: dict[Pair, bool] = {}  # and whether the trace does
            broken: dict[frozenset[str], Pair] = {}
            for each in together:
                if isinstance(each, Turn):
                    (active.discard if each.over else active.add)(each.number)
                    touched = dict.fromkeys(self._links[each.number], False) | touched
                    for pair in self._breaks[each.number]:
                        broken.setdefault(frozenset(pair), pair)
                    yield each
                elif isinstance(each, Draw):
                    touched = dict.fromkeys(self._links[each.number], False) | touched
                else:
                    base[each.pair] = _followed(base.get(each.pair), each)
                    touched[each.pair] = True
            for pair, traced_now in touched.items():
                state, was = self._state(pair, base, active, time_s), states[pair]
                states[pair] = state
                if traced_now or replace(state, cut=was.cut) != was:  # a trace that loops always has a next change
                    yield _rate(time_s, pair, state)
                if state.cut != was.cut:
                    yield _cut(time_s, pair, state)
            for one, other in broken.values():
                yield Break(time_s, one, other)

    def _traced(self, clock_s: float) -> dict[Pair, Change]:
        return self._trace.at(clock_s) if self._trace else {}

    def _state(self, pair: Pair, traced: Mapping[Pair, Change], active: Collection[int], now_s: float) -> State:
        """A link with the trace's changes and the faults that are in force."""
        change, state = traced.get(pair), self._profile[pair]
        if change is not None:
            state = State(change.goodput_mbit, state.rtt_ms if change.rtt_ms is None else change.rtt_ms)
        for number in self._order:
            if number in active and pair in self._links[number]:
                state = self._as_now(number, ">".join(pair), now_s).altered(state)
        return state

    def _active(self, clock_s: float) -> set[int]:
        """The faults in force at `clock_s`."""
        found = set()
        for number, fault in enumerate(self._faults):
            for begins_s, over_s in fault.spans(number):
                if begins_s > clock_s:
                    break
                if over_s > clock_s:
                    found.add(number)
                    break
        return found

    def _turns(self, numbers: Iterable[int], clock_s: float) -> Iterator[Turn | Draw]:
        """When these faults begin, are drawn anew, and are over, from `clock_s` on."""
        each = (self._turns_of(number, clock_s) for number in numbers)
        return heapq.merge(*each, key=lambda turn: turn.time_s)

    def _turns_of(self, number: int, clock_s: float) -> Iterator[Turn | Draw]:
        fault = self._faults[number]
        for begins_s, over_s in fault.spans(number):
            if clock_s < begins_s < inf:
                yield Turn(begins_s, number, fault.name, fault.about, over=False)
            if fault.varies_s < inf:
                for nth in count(_nth(fault, max(begins_s, clock_s)) + 1):
                    if nth * fault.varies_s >= over_s:
                        break
                    yield Draw(nth * fault.varies_s, number)
            if clock_s < over_s < inf:
                yield Turn(over_s, number, fault.name, fault.about, over=True)

    def _as_now(self, number: int, whom: str, now_s: float) -> Fault:
        """A fault as it is for a link or a role at a moment: the same in whatever process it is asked."""
        fault = self._faults[number]
        if fault.varies_s == inf:
            return fault
        return fault.varied(np.random.default_rng((fault.seed, number, crc32(whom.encode()), _nth(fault, now_s))))

    def _paces(self, numbers: Sequence[int], role: str) -> Iterator[tuple[float, float]]:
        """From when on a role that these faults slow has which pace."""
        active: set[int] = set()
        for each in self._turns(numbers, -1.0):
            if isinstance(each, Turn):
                (active.discard if each.over else active.add)(each.number)
            pace = 1.0
            for number in sorted(active):
                pace *= self._as_now(number, role, each.time_s).pace
            yield each.time_s, pace


def _nth(fault: Fault, now_s: float) -> int:
    """How often a fault that varies has been drawn by now, counted from the run's beginning."""
    return floor(now_s / fault.varies_s + 1e-9)


def events_of(change: Change | Turn, now_s: float, late_s: float = 0.0) -> Event:
    """What is recorded of a change that was made at `now_s`, so much later than it was due."""
    if isinstance(change, Turn):
        return Faulted(time_s=now_s, fault=change.number, kind=change.kind, about=change.about, over=change.over)
    if change.cut is not None:
        return Cut(time_s=now_s, link=change.link, healed=not change.cut, late_s=late_s)
    return Capacity(
        time_s=now_s, link=change.link, goodput_mbit=change.goodput_mbit, rtt_ms=change.rtt_ms, late_s=late_s
    )


def _followed(before: Change | None, change: Change) -> Change:
    """A trace's change with the last RTT that it set."""
    return replace(change, rtt_ms=before.rtt_ms) if before and change.rtt_ms is None else change


def _rate(time_s: float, pair: Pair, state: State) -> Change:
    return Change(time_s, *pair, state.goodput_mbit, state.rtt_ms)


def _cut(time_s: float, pair: Pair, state: State) -> Change:
    return Change(time_s, *pair, state.goodput_mbit, state.rtt_ms, cut=state.cut)
