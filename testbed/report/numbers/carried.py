"""What a program on the emulated WAN put on its links, as tables and sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from testbed.errors import InputError
from testbed.message import PAYLOAD_PER_WIRE
from testbed.record import frames, lines, program
from testbed.record.events import LONGEST_RUN_S, AnyEvent, Capacity, Cut, Event, Mark
from testbed.record.program import ProgramInfo
from testbed.report.numbers.prices import egress_usd
from testbed.report.numbers.wording import NONE, dollars, duration, number, percent, size
from testbed.wan.plan import label, region_of

E = TypeVar("E", bound=Event)
MBIT = 8e-6 * PAYLOAD_PER_WIRE  # of goodput, a byte on the wire
BUSY = 0.9  # of a link's rate, from which on a second counts as busy
HEADS = ["WAN link", "bytes on the wire", "mean goodput", "of its rate", "busy seconds", "packets dropped", "egress"]
HOST_HEADS = ["host", "address", "sent", "received", "ended with"]


@dataclass(frozen=True)
class Carried:
    """The record of a program's run.

    Attributes
    ----------
    links : as `testbed.record.frames` describes them
    marks, changes, cuts : in the order of time
    missing : what the record lacks, one sentence each
    """

    info: ProgramInfo
    links: pd.DataFrame
    marks: list[Mark]
    changes: list[Capacity]
    cuts: list[Cut]
    missing: list[str]

    def mbit(self, link: str) -> np.ndarray:
        """Goodput of each second, in Mbit/s."""
        seconds = max(math.ceil(self.info.took_s), 1 + int(self.links["second"].max()) if len(self.links) else 1)
        per_second = np.zeros(seconds)
        of_link = self.links[self.links["link"] == link]
        per_second[of_link["second"].to_numpy()] = of_link["wire_bytes"].to_numpy() * MBIT
        return per_second

    def course(self, link: str) -> tuple[np.ndarray, np.ndarray]:
        """What it could carry, from each time in seconds on, in Mbit/s: of the profile, a trace, a hand or a cut."""
        spans = self.spans(link)
        changes = [(0.0, self.info.network[link].goodput_mbit)]
        changes += [(change.time_s, change.goodput_mbit) for change in self.changes if change.link == link]
        times = np.array(sorted({max(at_s, 0.0) for at_s in [*(at_s for at_s, _ in changes), *sum(spans, ())]}))
        set_at, rates = (np.array(column) for column in zip(*changes, strict=True))
        found = rates[np.searchsorted(set_at, times, side="right") - 1]
        for begin_s, end_s in spans:
            found[(times >= begin_s) & (times < end_s)] = 0.0
        return times, found

    def rate(self, link: str) -> np.ndarray:
        """What it could carry in each second, in Mbit/s: the mean of its course over that second."""
        times, rates = self.course(link)
        seconds = np.arange(len(self.mbit(link)) + 1.0)
        edges = np.append(times, max(seconds[-1], times[-1]) + 1.0)
        carried = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges))])
        return np.diff(np.interp(seconds, edges, carried))

    def spans(self, link: str) -> list[tuple[float, float]]:
        """From when to when it was cut, in seconds."""
        found, since_s = [], None
        for cut in (cut for cut in self.cuts if cut.link == link):
            if not cut.healed:
                since_s = cut.time_s
            elif since_s is not None:
                found.append((since_s, cut.time_s))
                since_s = None
        return found if since_s is None else [*found, (since_s, max(self.info.took_s, since_s))]


def read(folder: Path) -> Carried:
    """Read the record of a program's run.

    Raises
    ------
    InputError
        `folder` has none, or it is damaged.
    """
    missing: list[str] = []
    info = program.read(folder, on_damage=missing.append)
    if not info.took_s < LONGEST_RUN_S:
        raise InputError(f"{folder / program.FILE_NAME}: took_s lies beyond {LONGEST_RUN_S:g}; it is damaged")
    path = folder / lines.FILE_NAME
    fault = frames.fault(folder, "links", info.checksums)
    if not path.is_file():
        if fault:
            raise InputError(f"{folder}: {frames.file_name('links')} ({fault}) and {lines.FILE_NAME} are both lost")
        return Carried(info, frames.read(folder, "links"), [], [], [], [*missing, f"{lines.FILE_NAME} is missing"])
    left_out = () if fault else lines.LINK_PREFIXES
    events = [lines.decode(line) for line in lines.whole_lines(path) if not line.startswith(left_out)]
    if info.checksums and frames.lost_events(folder):
        missing.append(frames.LOST_EVENTS)
    if unreadable := sum(event is None for event in events):
        missing.append(f"{unreadable} damaged lines of {lines.FILE_NAME} were left out")
    if fault:
        missing.append(f"{frames.file_name('links')} ({fault}): read from {lines.FILE_NAME} instead")
    links = frames.parse(path).links if fault else frames.read(folder, "links")
    return Carried(info, links, _sorted(events, Mark), _sorted(events, Capacity), _sorted(events, Cut), missing)


def _sorted(events: list[AnyEvent | None], kind: type[E]) -> list[E]:
    """Those of a kind, in the order of time."""
    return sorted((event for event in events if isinstance(event, kind)), key=lambda event: event.time_s)


def link_cells(carried: Carried) -> list[list[str]]:
    """A row a WAN link, below `HEADS`."""
    info, cells = carried.info, []
    for link, stated in info.network.items():
        nbytes, mbit, rate = info.wan_bytes.get(link, 0), carried.mbit(link), carried.rate(link)
        mean = MBIT * nbytes / max(info.took_s, 1e-9)
        usd = egress_usd({link: nbytes})
        cells.append(
            [
                link,
                size(nbytes),
                f"{number(mean)} Mbit/s",
                percent(mean / stated.goodput_mbit),
                str(int(np.sum((mbit >= BUSY * rate) & (mbit > 0)))),
                f"{info.wan_drops.get(link, 0):,}",
                NONE if math.isnan(usd) else dollars(usd),
            ]
        )
    return cells


def host_cells(carried: Carried) -> list[list[str]]:
    """A row a host, below `HOST_HEADS`: what crossed its own link, to any host."""
    sums = carried.links.groupby("link", observed=True)["wire_bytes"].sum() if len(carried.links) else {}
    cells = []
    for host, address in carried.info.hosts.items():
        region = region_of(host)
        sent, received = (int(sums.get(link, 0)) for link in (f"{host}>{region}", f"{region}>{host}"))
        ends = [_ended(carried.info, name) for name in carried.info.statuses if f"{name}.".startswith(f"{host}.")]
        cells.append([label(host), address, size(sent), size(received), "; ".join(ends) or NONE])
    return cells


def _ended(info: ProgramInfo, name: str) -> str:
    return f"{info.statuses[name]}, told to" if name in info.told else str(info.statuses[name])


def sentence(info: ProgramInfo) -> str:
    """What ran, how long, and how it ended."""
    ended = f"failed on {', '.join(map(label, info.failed))}" if info.failed else "ended well on all hosts"
    if info.error:
        ended = f"was ended: {info.error}"
    return f"{info.title} on {len(info.hosts)} hosts took {duration(info.took_s)} and {ended}."
