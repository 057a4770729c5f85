"""The gate before an emulated run: every link is read back and probed; what is not as asked stops the run.

Theory of operation
1. What the kernel and the delay stage say of each link is compared with the plan (`EmulatedNetwork.check`).
2. Then the links are used. Echoes give the round trip of every pair of regions, all at once: they load nothing.
3. Over every directed link a warm TCP connection sends one long message (its goodput) and a few short ones (the
   fastest one's time, which a burst would falsify), and the link's byte counter must have grown by what was sent:
   it has not if there is a way around the WAN. Links are probed several at a time, as far as hosts and machine can
   carry them, but no link together with its reverse, whose acknowledgements would take of its rate. A link that is
   to lose packets or to let its delay stray carries no such messages: what TCP makes of it is not in the profile.
4. A machine that is busy for a moment makes a good link look bad, never a bad one good: what fails is probed again,
   alone, and only a figure that misses its bound every time is a fault. A probe during which the hypervisor took the
   machine's time says nothing of the link, and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, sleep
from typing import Any

from testbed.emulation import awake
from testbed.emulation.network import EmulatedNetwork
from testbed.errors import NetworkError
from testbed.fidelity.probes import Channel, Pinger, message_s, path_link, round_trip_ms
from testbed.fidelity.threads import at_once
from testbed.fidelity.values import Bound, Value, number, table
from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.stolen import Stolen
from testbed.wan.plan import region_of
from testbed.wan.profile import Cap

ECHOES, ECHO_INTERVAL_S = 7, 0.02
LONG_S, PAUSE_S = 0.25, 0.02  # of the long message at the link's rate; the silence before a short one
SHORT_BYTES, SHORTS = 64 << 10, 3  # the fastest of so many short messages counts
ATTEMPTS, MOMENT_S = 5, 1.0  # a second, then two, three, four, for a busy machine to come to rest
PATIENCE_S = 60.0  # with probes that do not count
STOLEN = 0.02  # of the cores' time: one tick of a short probe's, which is little
COUNTED = "bytes counted"
ROUND_MBIT = 1500.0  # links are probed together up to this sum, which any machine can carry
LAN_SHARE = 0.8  # of a host's LAN link, and of a region's cap, that the links probed together may take
NAMED = 3  # faults in the error's own line; its table has all


@dataclass(frozen=True)
class GateBounds:
    """How far a link may be from the profile; wider than those of `testbed fidelity`, whose probes take longer."""

    rtt: Bound = field(default=Bound(relative=0.02, absolute=2.0))  # ms
    goodput: Bound = field(default=Bound(relative=0.05))  # Mbit/s
    message: Bound = field(default=Bound(relative=0.05, absolute=2.0))  # ms
    counted: Bound = field(default=Bound(relative=0.03))  # bytes on the wire


@dataclass(frozen=True)
class GateReport:
    """What the gate found of a network that passed it."""

    figures: tuple[Value, ...]
    again: tuple[str, ...]  # links that had to be probed more than once
    took_s: float

    def record(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "took_s": round(self.took_s, 3),
            "probed_again": list(self.again),
            "figures": [figure.record() for figure in self.figures],
        }


def check(
    network: EmulatedNetwork, bounds: GateBounds | None = None, used: Collection[tuple[str, str]] | None = None
) -> GateReport:
    """Read back every link; probe the WAN links, and the LAN where a region has two hosts.

    Parameters
    ----------
    bounds : how far a link may be off
    used : directed pairs of regions whose transfers are probed; None is all. Round trips are probed on all pairs.

    Raises
    ------
    NetworkError
        Some link is not what the profile says: the message names the first ones, its note is a table of all with
        what was asked and measured.
    """
    began_s = monotonic()
    said = ""
    try:
        network.check()
    except NetworkError as error:
        said = str(error)
    figures, again = probe(network, bounds or GateBounds(), network.plan.wan if used is None else used)
    faults = [figure for figure in figures if not figure.ok]
    if said or faults:
        raise failure(network.plan.profile.name, said, faults)
    return GateReport(tuple(figures), again, monotonic() - began_s)


def failure(profile: str, said: str, faults: Sequence[Value]) -> NetworkError:
    """The error for what was read back (`said`, may be empty) and for the figures at fault."""
    links = dict.fromkeys(figure.name for figure in faults)
    parts = [said] if said else []
    if faults:
        first = [
            f"{figure.name} {figure.section} {number(figure.asked)} {figure.unit} asked, "
            + (f"{number(figure.measured)} measured" if figure.measured is not None else "nothing came")
            for figure in faults[:NAMED]
        ]
        more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
        what = "1 link does" if len(links) == 1 else f"{len(links)} links do"
        parts.append(f"{what} not do what profile {profile} says: {'; '.join(first)}{more}")
        parts.append("try again when nothing else is busy on this machine, or see --no-gate")
    error = NetworkError("; ".join(parts))
    if faults:
        error.add_note(table(faults))
    return error


@awake.kept()
def probe(
    network: EmulatedNetwork, bounds: GateBounds, used: Collection[tuple[str, str]]
) -> tuple[list[Value], tuple[str, ...]]:
    """The probes alone; returns their figures and the names of what had to be probed more than once."""
    first = {region: network.plan.hosts_of(region)[0] for region in network.plan.regions}
    pairs = {f"{a}<>{b}": (first[a], first[b]) for a, b in network.plan.wan if a < b}
    paths = {f"{a}>{b}": (first[a], first[b]) for a, b in used if not _impaired(network, a, b)}
    trips = _echoes(network, bounds, pairs)
    trips |= _again(trips, lambda name: _echoes(network, bounds, {name: pairs[name]})[name])

    def transfer(name: str) -> list[Value]:
        return _transfer(network, bounds, name, *paths[name])

    found = {name: _unanswered(network, bounds, name, *paths[name]) for name in paths if _dead(name, trips)}
    for group in rounds(network, [name for name in paths if name not in found]):
        found |= zip(group, at_once(transfer, group), strict=True)
    paths |= _lan_path(network)
    found |= {name: transfer(name) for name in paths if name not in found}
    repeated = {name: figures for name, figures in found.items() if not _dead(name, trips)}
    again = _again(repeated, transfer)
    found |= again
    figures = [figure for figures in (*trips.values(), *found.values()) for figure in figures]
    return figures, tuple(name for name in (*trips, *found) if name in again)


def _impaired(network: EmulatedNetwork, a: str, b: str) -> bool:
    """Whether data from a to b, or their acknowledgements, may be lost or delayed unevenly."""
    return network.plan.wan[a, b].impaired or network.plan.wan[b, a].impaired


def _again(found: dict[str, list[Value]], work: Callable[[str], list[Value]]) -> dict[str, list[Value]]:
    """What has failed, probed alone until it holds or has failed `ATTEMPTS` times, after longer and longer pauses."""
    again: dict[str, list[Value]] = {}
    attempts, began_s = 1, monotonic()
    while attempts < ATTEMPTS:
        failed = [name for name, figures in (found | again).items() if not all(figure.ok for figure in figures)]
        if not failed:
            break
        sleep(attempts * MOMENT_S)
        stolen = Stolen()
        again |= {name: _better((found | again)[name], work(name)) for name in failed}
        if stolen.share <= STOLEN or monotonic() - began_s > PATIENCE_S:
            attempts += 1
    return again


def _better(before: list[Value], now: list[Value]) -> list[Value]:
    """Of each kind of figure the one within its bound, the newer one where neither is."""
    held = {figure.section: figure for figure in before if figure.ok}
    found = {figure.section: figure for figure in (*before, *now)} | held
    return list(found.values())


def _dead(name: str, trips: dict[str, list[Value]]) -> bool:
    """Whether a link's pair of regions did not answer an echo: no connection will come about either."""
    src, _, dst = name.partition(">")
    pair = "<>".join(sorted((src, dst)))
    return pair in trips and trips[pair][0].measured is None


def _echoes(network: EmulatedNetwork, bounds: GateBounds, pairs: dict[str, tuple[str, str]]) -> dict[str, list[Value]]:
    """The median round trip of every pair, all at once."""
    pingers = {name: Pinger(network, *ends, ECHOES, ECHO_INTERVAL_S) for name, ends in pairs.items()}
    found = {}
    for name, pinger in pingers.items():
        forth, back = (path_link(network, *ends) for ends in (pairs[name], pairs[name][::-1]))
        asked, jitter_ms = round_trip_ms(network, *pairs[name]), forth.jitter_ms + back.jitter_ms
        bound = replace(bounds.rtt, absolute=bounds.rtt.absolute + jitter_ms)
        arrives = (1 - forth.loss_percent / 100) * (1 - back.loss_percent / 100)  # of all echoes
        found[name] = [Value("round trip", name, "ms", asked, pinger.result().quantile(0.5 * arrives), bound)]
    return found


def _transfer(network: EmulatedNetwork, bounds: GateBounds, name: str, src: str, dst: str) -> list[Value]:
    before = _wire_bytes(network, name)
    try:
        with Channel(network, src, dst) as channel:
            channel.warm()
            goodput_mbit = channel.goodput_mbit(LONG_S)
            short_ms = 1e3 * min(_short_s(channel) for _ in range(SHORTS))
            sent = channel.sent_bytes
    except NetworkError:
        return _unanswered(network, bounds, name, src, dst)
    after, link = _wire_bytes(network, name), path_link(network, src, dst)
    figures = [
        Value("goodput", name, "Mbit/s", link.goodput_mbit, goodput_mbit, bounds.goodput),
        Value("message of 64 KB", name, "ms", 1e3 * message_s(link, SHORT_BYTES), short_ms, bounds.message),
    ]
    if before is not None and after is not None:
        asked = sent / PAYLOAD_PER_WIRE
        figures.append(Value(COUNTED, name, "bytes", asked, after - before, bounds.counted))
    return figures


def _short_s(channel: Channel) -> float:
    sleep(PAUSE_S)
    return channel.message(SHORT_BYTES)


def _unanswered(network: EmulatedNetwork, bounds: GateBounds, name: str, src: str, dst: str) -> list[Value]:
    """The figures of a link over which nothing comes."""
    return [Value("goodput", name, "Mbit/s", path_link(network, src, dst).goodput_mbit, None, bounds.goodput)]


def _lan_path(network: EmulatedNetwork) -> dict[str, tuple[str, str]]:
    """Two hosts of the first region that has two."""
    for region in network.plan.regions:
        hosts = network.plan.hosts_of(region)
        if len(hosts) > 1:
            return {f"{hosts[0]}>{hosts[1]}": (hosts[0], hosts[1])}
    return {}


def _wire_bytes(network: EmulatedNetwork, name: str) -> int | None:
    """What has been counted on a path's WAN link, or on its sender's LAN link.

    None where an interface has lost what counts on it; reading back has then named it.
    """
    src, _, dst = name.partition(">")
    link = f"{src}>{region_of(src)}" if region_of(src) else f"{src}>{dst}"
    try:
        return network.counters()[link].wire_bytes
    except NetworkError:
        return None


def rounds(network: EmulatedNetwork, names: Iterable[str]) -> list[list[str]]:
    """Directed WAN links in groups that may be probed at once (rule 3)."""
    groups: list[list[str]] = []
    for name in names:
        for group in groups:
            if _fits(network, name, group):
                group.append(name)
                break
        else:
            groups.append([name])
    return groups


def _fits(network: EmulatedNetwork, name: str, group: Sequence[str]) -> bool:
    src, _, dst = name.partition(">")
    if f"{dst}>{src}" in group:
        return False
    profile = network.plan.profile
    ends = [tuple(other.split(">")) for other in (*group, name)]
    rates = {(a, b): profile.path_mbit(a, b) for a, b in ends}
    out = sum(rate for (a, _), rate in rates.items() if a == src)
    into = sum(rate for (_, b), rate in rates.items() if b == dst)
    lan_mbit, caps = LAN_SHARE * profile.lan.goodput_mbit, profile.caps
    most_out = min(lan_mbit, LAN_SHARE * (caps.get(src, Cap()).egress_mbit or inf))
    most_in = min(lan_mbit, LAN_SHARE * (caps.get(dst, Cap()).ingress_mbit or inf))
    return out <= most_out and into <= most_in and sum(rates.values()) <= ROUND_MBIT
