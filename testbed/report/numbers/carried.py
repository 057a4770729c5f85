"""What a program on the emulated WAN put on its links, as tables and sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from testbed.message import PAYLOAD_PER_WIRE
from testbed.record import frames, lines, program
from testbed.record.events import AnyEvent, Capacity, Cut, Event, Mark
from testbed.record.program import ProgramInfo
from testbed.report.numbers.prices import egress_usd
from testbed.report.numbers.wording import NONE, dollars, duration, number, percent, size

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
    """

    info: ProgramInfo
    links: pd.DataFrame
    marks: list[Mark]
    changes: list[Capacity]
    cuts: list[Cut]

    def mbit(self, link: str) -> np.ndarray:
        """Goodput of each second, in Mbit/s."""
        seconds = max(math.ceil(self.info.took_s), 1 + int(self.links["second"].max()) if len(self.links) else 1)
        per_second = np.zeros(seconds)
        of_link = self.links[self.links["link"] == link]
        per_second[of_link["second"].to_numpy()] = of_link["wire_bytes"].to_numpy() * MBIT
        return per_second

    def rate(self, link: str) -> np.ndarray:
        """What it could carry in each second, in Mbit/s: the profile's rate, changed by a trace or by hand, or cut."""
        rates = np.full(len(self.mbit(link)), self.info.network[link].goodput_mbit)
        for change in self.changes:
            if change.link == link:
                rates[max(int(change.time_s), 0) :] = change.goodput_mbit
        for begin_s, end_s in self.spans(link):
            rates[int(begin_s) : math.ceil(end_s)] = 0.0
        return rates

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
    info = program.read(folder)
    events = lines.whole_lines(folder / lines.FILE_NAME)
    others = [lines.decode(line) for line in events if not line.startswith(lines.LINK_PREFIX)]
    found = frames.read(folder, "links")
    links = frames.parse(folder / lines.FILE_NAME).links if found is None else found
    return Carried(info, links, _sorted(others, Mark), _sorted(others, Capacity), _sorted(others, Cut))


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
        region = host.rpartition("/")[0]
        sent, received = (int(sums.get(link, 0)) for link in (f"{host}>{region}", f"{region}>{host}"))
        ends = [_ended(carried.info, name) for name in carried.info.statuses if f"{name}.".startswith(f"{host}.")]
        cells.append([host.replace("/", "-"), address, size(sent), size(received), ", ".join(ends) or NONE])
    return cells


def _ended(info: ProgramInfo, name: str) -> str:
    status = info.statuses[name]
    return "service" if name in info.services and status else str(status)


def sentence(info: ProgramInfo) -> str:
    """What ran, how long, and how it ended."""
    failed = [name for name, status in info.statuses.items() if status and name not in info.services]
    ended = f"failed on {', '.join(failed)}" if failed else "ended well on all hosts"
    if info.error:
        ended = f"was ended: {info.error}"
    what = "The prompt" if info.title == "shell" and not info.programs else f"`{info.title}`"
    return f"{what} on {len(info.hosts)} hosts took {duration(info.took_s)} and {ended}."
