"""The emulated network of a run: built with Mininet, read back, counted, changed while it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from mininet.log import setLogLevel
from mininet.net import Mininet

from testbed.emulation import addresses, links, mnexec, sandbox
from testbed.emulation.delay import Carries, DelayStage
from testbed.emulation.links import MAX_GOODPUT_MBIT, MIN_GOODPUT_MBIT, Counter, Found, Namespace, Shape
from testbed.emulation.topo import WIRES, Machine, PlanTopo, Wires, cap_senders, senders
from testbed.emulation.upkeep import Upkeep
from testbed.errors import InputError, NetworkError, TestbedError
from testbed.wan.plan import NetworkPlan, region_of
from testbed.wan.profile import Link
from testbed.wan.tcp import window_bytes
from testbed.wan.trace import Change

T = TypeVar("T")
TOOLS = Path("/run/testbed/bin")  # in the sandbox's own /run
RATE_TOLERANCE, DELAY_TOLERANCE_S, BURST_TOLERANCE, LOSS_TOLERANCE_PERCENT = 1e-4, 2e-6, 0.01, 1e-6
MAX_DELAY_S = 60.0


@dataclass(frozen=True)
class Host:
    """One host of the network; a process enters its network namespace with `netns.enter(netns_pid)`."""

    name: str  # "<region>/<role>"
    ip: str
    netns_pid: int


class EmulatedNetwork:
    """A `NetworkPlan` built in this sandbox; a context manager.

    Parameters
    ----------
    plan : hosts and profile
    dilation : k; rates are divided and delays multiplied by it (DESIGN 3)
    mechanism : "netem" or "delay-line"; what the kernel offers when ""

    Attributes
    ----------
    hosts : by name, as in the plan
    delay_mechanism : "netem" or "delay-line"

    Raises
    ------
    InputError
        The profile has a rate that cannot be shaped, or asks for loss or jitter where the kernel has no netem.
    NetworkError
        There is no sandbox around this process, or the network could not be built, or what the kernel says of a
        link is not what was asked: the message names the links.
    """

    def __init__(self, plan: NetworkPlan, dilation: float = 1.0, mechanism: str = "") -> None:
        if not sandbox.inside():
            raise NetworkError("the network may only be built in a sandbox; start the process with sandbox.run")
        self.plan = plan.scaled(dilation)
        _refuse_rates(self.plan)
        self.dilation = dilation
        self.delay_mechanism = mechanism or sandbox.delay_mechanism()
        # pyroute2's sockets belong to the thread that opens them, so one thread does all the netlink work.
        self._netlink = ThreadPoolExecutor(1, "netlink")
        self._namespaces: dict[str, Namespace] = {}
        self._links = {f"{a}>{b}": link for (a, b), link in self.plan.wan.items()}  # as they are set now
        self._senders, self._caps = senders(self.plan), cap_senders(self.plan)
        self._cut: set[str] = set()  # the commands that would heal the links and connections which are cut
        self._were_down: dict[str, None] = {}  # an ordered set of links
        self._upkeep: Upkeep | None = None
        self._net: Mininet | None = None
        try:
            self._build()
            self.check()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        mnexec.install(TOOLS)
        setLogLevel("warning")
        Mininet.inited = True  # else it raises limits of the whole machine (kernel.pty.max, fs.file-max)
        self._net = net = Mininet(controller=None, build=False)
        try:
            topo = PlanTopo(self.plan, mechanism=self.delay_mechanism, dilation=self.dilation)
            self._do(partial(net.buildFromTopo, topo))
            self._do(net.configHosts)
        except TestbedError:
            raise
        except Exception as error:  # Mininet's own are plain Exceptions, with what `ip` said
            raise NetworkError(f"Mininet cannot build the network: {error}") from error
        self.hosts = {name: Host(name, self._node(name).address, self._node(name).pid) for name in self.plan.hosts}
        for node in {sender.node for sender in (*self._senders.values(), *self._caps.values())}:
            self._namespaces[node] = self._do(partial(Namespace, net[node].pid))
        nodes = [(node, net[node].pid) for node in self._namespaces]
        self._upkeep = Upkeep(nodes, lambda *change: self._do(partial(self._keep_up, *change)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the network down; safe to call twice."""
        upkeep, self._upkeep = self._upkeep, None
        if upkeep:
            upkeep.close()
        net, self._net = self._net, None
        if net:
            for namespace in self._namespaces.values():
                self._do(namespace.close)
            for node in net.hosts:  # all at once; Mininet would wait for each in turn
                os.killpg(node.pid, signal.SIGKILL)
            for node in net.hosts:
                self._do(node.terminate)
        self._netlink.shutdown()

    def check(self) -> None:
        """Compare what the kernel says of every link with what was asked.

        Raises
        ------
        NetworkError
            Some link is down, is not shaped or delayed as asked, or lets packets pass unshaped; the message lists
            them.
        """
        faults = self._do(self._faults)
        if faults:
            more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
            raise NetworkError(f"the network is not what was asked: {'; '.join(faults[:5])}{more}")

    def watch(self) -> None:
        """Raise NetworkError where nothing crosses the WAN any more; quick enough to be asked every second."""
        if stage := self._stage:
            stage.watch()

    def counters(self) -> dict[str, Counter]:
        """What each directed link has sent since the network was built.

        Keys are those of `record.events.LinkBytes`: "us-west-1>us-east-1", "us-west-1/w0>us-west-1" (up) and
        "us-west-1>us-west-1/w0" (down).

        Raises
        ------
        NetworkError
            What counts on a link is gone; the message names the link.
        """
        return self._do(self._counters)

    def set_rate(self, src_region: str, dst_region: str, goodput_mbit: float) -> None:
        """Change one direction of a WAN link on running traffic (10^6 bit/s of goodput, before dilation).

        Raises
        ------
        NetworkError
            There is no such link, or the rate is lower or higher than can be shaped.
        """
        name = self._wan_name(src_region, dst_region)
        least, most = MIN_GOODPUT_MBIT * self.dilation, MAX_GOODPUT_MBIT * self.dilation
        if not least <= goodput_mbit <= most:
            limit = f"it must be at least {least:.2g} and at most {most:.0f}"
            raise NetworkError(f"{name}: a rate of {goodput_mbit:g} Mbit/s; {limit}")
        self._do(lambda: self._set_rate(name, goodput_mbit / self.dilation))

    def set_delay(self, src_region: str, dst_region: str, delay_s: float) -> None:
        """Change the one-way delay of a WAN link's direction on running traffic (before dilation).

        The hosts' windows and the link's queue stay: they are made for the plan's `widest` links.

        Raises
        ------
        NetworkError
            There is no such link, or the delay is negative or above a minute.
        """
        name = self._wan_name(src_region, dst_region)
        if not 0 <= delay_s <= MAX_DELAY_S:
            raise NetworkError(f"{name}: a delay of {delay_s:g} s; it must be between 0 and {MAX_DELAY_S:g}")
        self._links[name] = link = replace(self._links[name], rtt_ms=2e3 * delay_s * self.dilation)
        if stage := self._stage:
            self._do(lambda: stage.set_delay(name, link.delay_s))

    def change(self, change: Change) -> None:
        """Make a change of a schedule (figures before dilation); NetworkError as `cut`, `set_rate`, `set_delay`."""
        if change.cut is not None and change.pair not in self.plan.wan:
            self.cut_off(change.src, change.dst, change.cut)
            return
        if change.cut is not None:
            (self.cut if change.cut else self.heal)(change.src, change.dst)
            return
        self.set_rate(change.src, change.dst, change.goodput_mbit)
        if change.delay_s is not None:
            self.set_delay(change.src, change.dst, change.delay_s)

    def links(self) -> dict[str, Link]:
        """Each directed WAN link, "src>dst", as it is set now (before dilation)."""
        k = self.dilation
        return {
            name: replace(link, goodput_mbit=link.goodput_mbit * k, rtt_ms=link.rtt_ms / k)
            for name, link in self._links.items()
        }

    def connection_mbit(self, src_region: str, dst_region: str) -> float:
        """What a connection gets at most, by its window and the delays as they are now (before dilation)."""
        delays_s = [self._links[name].delay_s for name in (f"{src_region}>{dst_region}", f"{dst_region}>{src_region}")]
        window = window_bytes(self.plan.widest[src_region, dst_region])
        return self.dilation * 8e-6 * window / sum(delays_s) if any(delays_s) else inf

    def cut(self, src_region: str, dst_region: str) -> None:
        """Lose all that one direction of a WAN link is given from now on; what is on its way still arrives.

        Raises
        ------
        NetworkError
            There is no such link.
        """
        self._route(src_region, dst_region, addresses.cut_command, self._cut.add)

    def heal(self, src_region: str, dst_region: str) -> None:
        """End a cut; one that is none stays none.

        Raises
        ------
        NetworkError
            There is no such link.
        """
        self._route(src_region, dst_region, addresses.heal_command, self._cut.discard)

    def cut_off(self, src_host: str, dst_host: str, off: bool) -> None:
        """Lose all that one host sends to another from now on, or no longer; KeyError where there is no such host."""
        src, dst = self.hosts[src_host].ip, self.hosts[dst_host].ip
        undo = addresses.let_through_command(src, dst)
        if (undo in self._cut) == off:
            return
        (self._cut.add if off else self._cut.discard)(undo)
        router = addresses.router_name(self.plan.regions.index(region_of(src_host)))
        assert self._net
        pid = self._net[router].pid
        self._do(lambda: links.batch("ip", pid, [addresses.cut_off_command(src, dst) if off else undo]))

    def reset(self, one: str, other: str) -> None:
        """Reset all TCP connections between two hosts; KeyError where there is no such host.

        Raises
        ------
        NetworkError
            The kernel cannot (CONFIG_INET_DIAG_DESTROY).
        """
        here, there = self.hosts[one], self.hosts[other]
        self._do(lambda: links.reset(here.netns_pid, there.ip))

    def _route(self, src: str, dst: str, command: Callable[[int, int], str], note: Callable[[str], None]) -> None:
        self._wan_name(src, dst)
        i, j = self.plan.regions.index(src), self.plan.regions.index(dst)
        assert self._net
        pid = self._net[addresses.border_name(self.plan, i)].pid

        def change() -> None:
            note(addresses.heal_command(i, j))
            links.batch("ip", pid, [command(i, j)])

        self._do(change)

    def _keep_up(self, node: str, index: int, up: bool) -> None:
        """An interface has changed: note which link is down, or put back what one that is up needs."""
        interface = self._namespaces[node].interface(index)
        if not up:
            ends = {name: (sender.node, sender.interface) for name, sender in self._senders.items()}
            self._were_down |= {name: None for name, end in ends.items() if end == (node, interface)}
        elif self._net:
            machine = self._net[node]
            lines = addresses.restoring(machine.ip_commands, interface)
            with suppress(NetworkError):  # down again already: it is heard of next
                links.batch("ip", machine.pid, [line for line in lines if line not in self._cut])

    def _wan_name(self, src_region: str, dst_region: str) -> str:
        name = f"{src_region}>{dst_region}"
        if (src_region, dst_region) not in self.plan.wan:
            raise NetworkError(f"no WAN link {name} in this network")
        return name

    def delay_report(self) -> dict[str, Any]:
        """How the network has done so far.

        `mechanism` and `drops` of the delay stage, of the delay line also lateness in ms; `were_down`, the links that
        went down and came up again, where there were such.
        """
        stage = self._stage
        report = self._do(stage.report) if stage else {"mechanism": self.delay_mechanism, "drops": 0}
        return report | ({"were_down": list(self._were_down)} if self._were_down else {})

    def _set_rate(self, name: str, goodput_mbit: float) -> None:
        sender = self._senders[name]
        shape = sender.shape.at(goodput_mbit)
        self._namespaces[sender.node].change(sender.interface, shape)
        if self._stage:
            self._stage.set_rate(name, shape.wire_bytes_per_s)
        self._senders[name] = replace(sender, shape=shape)
        self._links[name] = replace(self._links[name], goodput_mbit=goodput_mbit)

    def _counters(self) -> dict[str, Counter]:
        found = {node: namespace.counters() for node, namespace in self._namespaces.items()}
        gone = [name for name, sender in self._senders.items() if sender.interface not in found[sender.node]]
        if gone:
            raise NetworkError(f"{gone[0]} is not shaped any more, so its bytes are not counted; something changed it")
        return {name: found[sender.node][sender.interface] for name, sender in self._senders.items()}

    def _faults(self) -> list[str]:
        faults = []
        found = {node: namespace.shapes() for node, namespace in self._namespaces.items()}
        down = {node: namespace.down() for node, namespace in self._namespaces.items()}
        for name, sender in (self._senders | self._caps).items():
            interface = found[sender.node].get(sender.interface)
            if sender.interface in down[sender.node]:
                faults.append(f"{name} is down")
            elif interface is None:
                faults.append(f"{name} is not shaped")
            elif problem := _difference(sender.shape, interface):
                faults.append(f"{name} {problem}")
        return faults + self._delay_faults()

    def _delay_faults(self) -> list[str]:
        found = self._stage.found() if self._stage else {}
        faults = []
        for (a, b), link in self.plan.wan.items():
            name = f"{a}>{b}"
            rate = self._senders[name].shape.wire_bytes_per_s
            asked = replace(Carries.of(link), delay_s=self._links[name].delay_s, bytes_per_s=rate)
            if name not in found:
                faults.append(f"{name} is not delayed")
            elif problem := _misdone(asked, found[name]):
                faults.append(f"{name} {problem}")
        return faults

    @property
    def _stage(self) -> DelayStage | None:
        wires = self._net[WIRES] if self._net else None
        return wires.stage if isinstance(wires, Wires) else None

    def _node(self, host: str) -> Machine:
        assert self._net
        return self._net[addresses.node_name(self.plan.regions.index(region_of(host)), host)]

    def _do(self, work: Callable[[], T]) -> T:
        return self._netlink.submit(work).result()


def _refuse_rates(plan: NetworkPlan) -> None:
    """Raise InputError for a rate beyond what can be set and read back: no link is left unshaped in silence."""
    highest = [(f"{a}>{b}", link.goodput_mbit) for (a, b), link in plan.widest.items()]
    lowest = [(f"{a}>{b}", plan.least_mbit.get((a, b), link.goodput_mbit)) for (a, b), link in plan.wan.items()]
    others = [("the LAN", plan.profile.lan.goodput_mbit)]
    for region, cap in plan.profile.caps.items():
        others += [(f"the cap of {region}", rate) for rate in (cap.egress_mbit, cap.ingress_mbit) if rate is not None]
    beyond = [f"{name} {rate:g}" for name, rate in (*highest, *others) if rate > MAX_GOODPUT_MBIT]
    below = [f"{name} {rate:g}" for name, rate in (*lowest, *others) if rate < MIN_GOODPUT_MBIT]
    if beyond or below:
        limit = f"at most {MAX_GOODPUT_MBIT:.0f}" if beyond else f"at least {MIN_GOODPUT_MBIT:.2g}"
        mend = "lower it, or slow the network down" if beyond else "raise it, or slow the network down less"
        raise InputError(
            f"profile {plan.profile.name}: {limit} Mbit/s can be shaped here, but {', '.join((beyond or below)[:3])};"
            f" {mend} (time dilation)"
        )


def _difference(asked: Shape, found: Found) -> str:
    """In words how an interface's shape differs from what was asked; "" when it does not."""
    rate, other = asked.wire_bytes_per_s, found.wire_bytes_per_s
    if abs(rate - other) > RATE_TOLERANCE * rate + 1:
        return f"is shaped to {other} bytes/s on the wire, not {rate}"
    if abs(asked.burst_bytes - found.burst_bytes) > BURST_TOLERANCE * asked.burst_bytes + 64:
        return f"has a burst of {found.burst_bytes} bytes, not {asked.burst_bytes}"
    if asked.fifos != found.fifos:
        return f"has queues of {_numbers(found.fifos)} bytes, not {_numbers(asked.fifos)}"
    if asked.filters != found.filters:
        return f"sorts packets with {_numbers(found.filters)} filters, not {_numbers(asked.filters)}"
    if found.direct_packets:
        return f"let {found.direct_packets} packets pass unshaped"
    return ""


def _misdone(asked: Carries, found: Carries) -> str:
    """In words how a wire carries otherwise than asked; "" when it does not."""
    if abs(found.delay_s - asked.delay_s) > DELAY_TOLERANCE_S:
        return f"is delayed by {found.delay_s * 1e3:g} ms, not {asked.delay_s * 1e3:g}"
    if abs(found.bytes_per_s - asked.bytes_per_s) > RATE_TOLERANCE * asked.bytes_per_s + 1:
        return f"is carried at {found.bytes_per_s} bytes/s, not {asked.bytes_per_s}"
    if abs(found.loss_percent - asked.loss_percent) > LOSS_TOLERANCE_PERCENT:
        return f"loses {found.loss_percent:g} % of its packets, not {asked.loss_percent:g}"
    if abs(found.jitter_s - asked.jitter_s) > DELAY_TOLERANCE_S:
        return f"has a jitter of {found.jitter_s * 1e3:g} ms, not {asked.jitter_s * 1e3:g}"
    return ""


def _numbers(by_class: dict[int, int]) -> str:
    return " + ".join(str(by_class[handle]) for handle in sorted(by_class)) or "no"
