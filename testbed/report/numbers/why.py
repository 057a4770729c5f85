"""Why a step takes as long as it does: the critical path through roles and links, from a timeline.

A step ends when its last worker is done. What it did last, or what it had last waited for, began when something else
ended, and so on back to the step's beginning: these computations and messages, one after the other, are the critical
path. Their times add up to the step's. Of a message,

1. propagation is the one-way delay of its path, as the profile (and the trace) has it;
2. transmission is its size over the rate of the slowest link on its path, which a message alone takes;
3. queueing is for how long other messages had those links: as many of their bytes as crossed them meanwhile, over the
   link's rate, and no more than what is left;
4. the rest is TCP's: slow start, windows, a link that changed or was cut. The virtual network has none of it unless
   `[network]` says so, or a schedule changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from testbed.record.info import LinkInfo
from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.timeline import Timeline, timeline
from testbed.report.numbers.wording import duration, number, percent, size
from testbed.wan.plan import region_of

LEAST = 0.005  # of a step: what takes less has no row
SLOWER = 1.5  # times the median worker's: from there on one is a straggler
MOMENT_S = 2e-8  # times are recorded to a nanosecond: what lies no further apart is one moment
PARTS = {
    "computing": "computing",
    "codec": "coding and decoding",
    "lan-transmission": "transmission on the LAN",
    "wan-transmission": "transmission across the WAN",
    "lan-propagation": "propagation on the LAN",
    "wan-propagation": "propagation across the WAN",
    "lan-queueing": "queueing on the LAN behind others",
    "wan-queueing": "queueing for the WAN behind others",
    "lan-tcp": "TCP on the LAN, beyond that",
    "wan-tcp": "TCP across the WAN, beyond that",
    "held": "held by a timer, a rule, the machine",
}
"""What a critical path is made of, and its words in tables."""
HEAD = "Why a step takes as long"
NOTE = (
    "Of the first steps, of which every computation and message is recorded: the computations and messages that each "
    "step's end waited for, one after the other. Transmission is what a message alone takes; queueing is the rest of "
    "it, as far as others had the link meanwhile."
)


@dataclass(frozen=True)
class Piece:
    """A part of a critical path, from `begin_s` to `end_s`: a computation of `role`, its waiting, or a message to it.

    Attributes
    ----------
    what : the computation's or the message's kind; "" where the role waited for neither
    peer : who sent the message, "" of a computation
    nbytes : of the message
    parts : seconds by `PARTS`
    """

    role: str
    begin_s: float
    end_s: float
    what: str
    parts: Mapping[str, float]
    peer: str = ""
    nbytes: int = 0

    @property
    def where(self) -> str:
        return f"{self.peer} > {self.role}" if self.peer else self.role


class Paths:
    """The critical paths of a timeline's steps.

    Parameters
    ----------
    network : the links as the run's facts have them (`RunInfo.network`): "a>b" by region, and "lan"
    """

    def __init__(self, timeline: Timeline, network: Mapping[str, LinkInfo]) -> None:
        self._it, self._network = timeline, network
        # What takes no time is no part of a path: each piece leads back further than a moment.
        done, came = timeline.computed, timeline.messages
        done = done[done["end_s"] - done["begin_s"] > 2 * MOMENT_S].sort_values("end_s")
        self._messages = came[came["arrived_s"] - came["sent_s"] > 2 * MOMENT_S].sort_values("arrived_s")
        self._done = dict(iter(done.groupby("node")))
        self._came = dict(iter(self._messages.groupby("node")))

    def of_step(self, step: int) -> list[Piece]:
        """The path of a step, the last piece first."""
        begin_s = self._it.steps_s[step - 1] if step else 0.0
        return list(self._back(self._last_worker(self._it.steps_s[step]), self._it.steps_s[step], begin_s))

    def _last_worker(self, now_s: float) -> str:
        """The worker that does something last before a moment."""
        seen = {role: max(self._ended_s(role, now_s), self._arrived_s(role, now_s)) for role in self._it.workers}
        return max(seen, key=lambda role: seen[role])

    def _ended_s(self, role: str, now_s: float) -> float:
        return _latest(self._done[role]["end_s"].to_numpy(), now_s) if role in self._done else -np.inf

    def _arrived_s(self, role: str, now_s: float) -> float:
        return _latest(self._came[role]["arrived_s"].to_numpy(), now_s) if role in self._came else -np.inf

    def _back(self, role: str, now_s: float, begin_s: float) -> Iterator[Piece]:
        while now_s > begin_s + MOMENT_S:
            ended_s, arrived_s = self._ended_s(role, now_s), self._arrived_s(role, now_s)
            last_s = max(ended_s, arrived_s, begin_s)
            if last_s < now_s - MOMENT_S:
                yield Piece(role, last_s, now_s, "", {"held": now_s - last_s})
                now_s = last_s
            elif ended_s >= arrived_s - MOMENT_S:
                piece = self._computation(role, ended_s, now_s, begin_s)
                yield piece
                now_s = piece.begin_s
            else:
                piece = self._message(role, arrived_s, now_s, begin_s)
                yield piece
                role, now_s = piece.peer, piece.begin_s

    def _computation(self, role: str, ended_s: float, now_s: float, begin_s: float) -> Piece:
        frame = self._done[role]
        it = frame[frame["end_s"] == ended_s].iloc[-1]
        since_s, took_s = max(it["begin_s"], begin_s), it["end_s"] - it["begin_s"]
        share = it["codec_s"] / took_s if took_s > 0 else 0.0
        spent_s = now_s - since_s
        parts = {"computing": spent_s * (1 - share), "codec": spent_s * share}
        return Piece(role, since_s, now_s, it["what"], parts)

    def _message(self, role: str, arrived_s: float, now_s: float, begin_s: float) -> Piece:
        frame = self._came[role]
        it = frame[frame["arrived_s"] == arrived_s].iloc[-1]
        since_s = max(it["sent_s"], begin_s)
        spent_s = now_s - since_s
        share = spent_s / (now_s - it["sent_s"])  # of one that was sent in the step before
        parts = self._split(it["peer"], role, it["sent_s"], now_s, int(it["nbytes"]))
        scaled = {part: seconds * share for part, seconds in parts.items()}
        return Piece(role, since_s, now_s, it["kind"], scaled, it["peer"], int(it["nbytes"]))

    def _split(self, peer: str, role: str, sent_s: float, arrived_s: float, nbytes: int) -> dict[str, float]:
        """Where a message's time went."""
        here, there = region_of(peer), region_of(role)
        name, left_s, parts = "lan" if here == there else "wan", arrived_s - sent_s, {}
        path = _path(peer, here, there, role)
        rates = {link: self._bytes_per_s(link) for link in path}
        delay_s = sum(self._network[key].rtt_ms / 2e3 for key in ("lan", f"{here}>{there}") if key in self._network)
        for part, seconds in (
            ("propagation", delay_s),
            ("transmission", nbytes / min(rates.values())),
            ("queueing", self._queued_s(path, rates, sent_s, arrived_s, nbytes)),
            ("tcp", np.inf),
        ):
            parts[f"{name}-{part}"] = min(seconds, left_s)
            left_s -= parts[f"{name}-{part}"]
        return parts

    def rate_of(self, piece: Piece) -> float:
        """Bytes a second of the slowest link on a message's path."""
        here, there = region_of(piece.peer), region_of(piece.role)
        return min(map(self._bytes_per_s, _path(piece.peer, here, there, piece.role)))

    def slower(self, piece: Piece) -> float:
        """How many times as long a computation takes as the same one of the median worker; 1 where there is none."""
        all_ = self._it.computed
        same = all_[(all_["what"] == piece.what) & all_["node"].isin(self._it.workers) & (all_["node"] != piece.role)]
        if piece.role not in self._it.workers or not len(same):
            return 1.0
        return (piece.end_s - piece.begin_s) / float((same["end_s"] - same["begin_s"]).median())

    def _bytes_per_s(self, link: str) -> float:
        known = self._network.get(link, self._network.get("lan")) if "/" in link else self._network.get(link)
        return known.goodput_mbit * 125_000 if known else np.inf

    def _queued_s(
        self, path: Sequence[str], rates: Mapping[str, float], sent_s: float, arrived_s: float, nbytes: int
    ) -> float:
        """For how long others had the link of the path that they had longest."""
        all_ = self._messages
        meanwhile = all_[(all_["sent_s"] < arrived_s) & (all_["arrived_s"] > sent_s)]
        overlap_s = np.minimum(meanwhile["arrived_s"], arrived_s) - np.maximum(meanwhile["sent_s"], sent_s)
        crossed = meanwhile["nbytes"] * overlap_s / (meanwhile["arrived_s"] - meanwhile["sent_s"])
        of_link: dict[str, float] = {}
        for a, b, some in zip(meanwhile["peer"], meanwhile["node"], crossed, strict=True):
            for link in {f"{a}>{region_of(a)}", f"{region_of(a)}>{region_of(b)}", f"{region_of(b)}>{b}"} & set(path):
                of_link[link] = of_link.get(link, 0.0) + some
        return max(((held - nbytes) / rates[link] for link, held in of_link.items()), default=0.0)


def _path(peer: str, here: str, there: str, role: str) -> list[str]:
    """The directed links from one role to another."""
    return [f"{peer}>{here}", *([f"{here}>{there}"] if here != there else []), f"{there}>{role}"]


def _latest(times_s: np.ndarray, now_s: float) -> float:
    """The latest of some sorted times that is not after a moment."""
    place = int(np.searchsorted(times_s, now_s + MOMENT_S, side="right"))
    return float(times_s[place - 1]) if place else -np.inf


def shares(pieces: Sequence[Piece]) -> dict[str, float]:
    """Seconds by `PARTS` of a path, those that it has."""
    found = dict.fromkeys(PARTS, 0.0)
    for piece in pieces:
        for part, seconds in piece.parts.items():
            found[part] += seconds
    return {part: seconds for part, seconds in found.items() if seconds > 0}


@dataclass(frozen=True)
class Why:
    """Why the recorded steps of a system took as long: means over them, without the first where there are more.

    Attributes
    ----------
    step_s : seconds of a step
    parts : of it, by `PARTS`
    pieces : of the critical paths of all these steps
    last : the critical path of the last step, in order of time
    """

    system: str
    step_s: float
    parts: Mapping[str, float]
    pieces: Sequence[Piece]
    last: Sequence[Piece]
    paths: Paths

    @property
    def main(self) -> str:
        """The part that takes longest."""
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def sentence(self) -> str:
        """The main part, and where most of it is."""
        piece = max(self.pieces, key=lambda piece: piece.parts.get(self.main, 0.0))
        said = f"{look(self.system).label}'s step takes {duration(self.step_s)}"
        said += f": {percent(self.parts[self.main] / self.step_s)} of it is {PARTS[self.main]}, most at {piece.where}"
        if self.main.endswith("propagation"):
            crossed = sum(self.main in piece.parts for piece in self.last)
            said += f" ({duration(piece.parts[self.main])} each way"
            said += f", {crossed} messages one after the other)" if crossed > 1 else ")"
        elif piece.peer:
            rate_mbit = 8e-6 * self.paths.rate_of(piece)
            said += f" ({size(piece.nbytes)} at {number(rate_mbit)} Mbit/s)"
        elif piece.what:
            slower = self.paths.slower(piece)
            said += f" ({piece.what}, {duration(piece.end_s - piece.begin_s)}"
            said += f", {number(slower, 2)} times the others')" if slower > SLOWER else ")"
        return f"{said}."


def why(run: Run, it: Timeline) -> Why:
    """Explain the steps of a timeline of `run`."""
    paths = Paths(it, run.info.network)
    steps = list(range(len(it.steps_s)))[1:] or [0]
    pieces = {step: paths.of_step(step)[::-1] for step in steps}
    together = [piece for path in pieces.values() for piece in path]
    each = {part: seconds / len(steps) for part, seconds in shares(together).items()}
    return Why(it.system, sum(each.values()), each, together, pieces[steps[-1]], paths)


def of_systems(run: Run, seed: int | None = None) -> list[Why]:
    """Of each of a run's systems a seed, by default its first, whose record has a timeline."""
    firsts: dict[str, Result] = {}
    for one in run.results:
        if seed in (None, one.seed):
            firsts.setdefault(one.system, one)
    found = (timeline(run, one) for one in firsts.values())
    told = [why(run, it) for it in found if it is not None and it.workers]
    return [it for it in told if it.parts]


def rows(found: Sequence[Why]) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table: a row a part, a column a system."""
    cells = [["a step", *(duration(it.step_s) for it in found)]]
    for part, words in PARTS.items():
        if any(it.parts.get(part, 0.0) > LEAST * it.step_s for it in found):
            told = [it.parts.get(part, 0.0) for it in found]
            cells.append(
                [words, *(f"{duration(s)}, {percent(s / it.step_s)}" for s, it in zip(told, found, strict=True))]
            )
    return ["of its critical path", *(look(it.system).label for it in found)], cells


def path_rows(it: Why) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the last step's critical path, piece by piece."""
    began_s = it.last[0].begin_s if it.last else 0.0
    cells = [
        [
            duration(piece.begin_s - began_s),
            duration(piece.end_s - piece.begin_s),
            piece.where,
            f"{piece.what or 'waits'}{f', {size(piece.nbytes)}' if piece.peer else ''}",
            ", ".join(
                f"{PARTS[part].split(' ')[0]} {duration(seconds)}"
                for part, seconds in piece.parts.items()
                if seconds > LEAST * it.step_s
            ),
        ]
        for piece in it.last
    ]
    return ["at", "takes", "where", "what", "of it"], cells
