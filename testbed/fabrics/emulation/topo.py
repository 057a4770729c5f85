"""The plan of a run as a Mininet topology: hosts, one router per region, and the wires between the routers.

    host --LAN-- router --+        +-- router --LAN-- host
                          | wires  |
    host --LAN-- router --+        +-- router --LAN-- host

Mininet's division of labour is kept (nodes execute, interfaces configure, links connect), but each node sets up
all its interfaces in one `ip -batch` and one `tc -batch`: a shell round trip for each would take minutes of a
large network. There are no bridges, no ARP and no IPv6; routes and neighbours are written down.

`PlanTopo` works under plain `mn --custom`, too; see `topologies/` in the repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Node
from mininet.topo import Topo

from testbed.errors import NetworkError
from testbed.fabrics.emulation import delay, links, netns, sandbox
from testbed.fabrics.emulation.links import Shape
from testbed.wan.plan import NetworkPlan, region_of

WIRES = "wires"  # name of the node in which all WAN links meet
MAX_REGIONS, MAX_HOSTS = 200, 250  # what the address plan holds: regions, hosts in one region


class Machine(Node):
    """A Mininet host that configures itself from what it is given.

    Parameters
    ----------
    ip_commands : lines for `ip -batch`
    shapes : how each interface sends
    sysctls : settings of its network namespace; one that this kernel does not know is left out
    address : its IPv4 address, "" for a node that is not an endpoint
    """

    def __init__(
        self,
        name: str,
        ip_commands: Sequence[str] = (),
        shapes: Mapping[str, Shape] | None = None,
        sysctls: Mapping[str, str] | None = None,
        address: str = "",
        **params: Any,
    ) -> None:
        self.ip_commands, self.shapes, self.sysctls = ip_commands, dict(shapes or {}), dict(sysctls or {})
        self.address = address
        super().__init__(name, **params)

    @classmethod
    def setup(cls) -> None:
        """Mininet would insist on `ifconfig`, which is not needed."""

    def config(self, **_: Any) -> dict[str, Any]:
        """Called by Mininet when all links are there."""
        with netns.enter(self.pid):
            for key, value in self.sysctls.items():
                path = Path("/proc/sys") / key.replace(".", "/")
                if path.exists():
                    path.write_text(value)
        links.batch("ip", self.pid, ["link set lo up", *self.ip_commands])
        commands = [line for name, shape in self.shapes.items() for line in links.tc_commands(name, shape)]
        if commands:
            links.batch("tc", self.pid, commands)
        return {}

    def IP(self, intf: Any = None) -> str:  # noqa: N802 - Mininet's name
        """The address, for Mininet's command line."""
        return self.address


class Wires(Machine):
    """The node in which all WAN links meet; it carries the delay stage."""

    stage: delay.DelayStage | None = None

    def __init__(self, name: str, wires: Sequence[delay.Wire] = (), mechanism: str = "", **params: Any) -> None:
        self.wires, self.mechanism = wires, mechanism
        super().__init__(name, **params)

    def config(self, **params: Any) -> dict[str, Any]:
        result = super().config(**params)
        if self.wires:
            self.stage = delay.start(self.pid, self.wires, self.mechanism or sandbox.delay_mechanism())
        return result

    def terminate(self) -> None:
        if self.stage:
            self.stage.close()
            self.stage = None
        super().terminate()


class PlainIntf(Intf):
    """An interface that its node configures."""

    def config(self, **_: Any) -> dict[str, Any]:
        return {}


class Cable(Link):
    """A veth pair; MAC addresses are given so that neighbours can be written down beforehand."""

    def __init__(self, node1: Node, node2: Node, **params: Any) -> None:
        super().__init__(node1, node2, **{**params, "intf": PlainIntf})

    def stop(self) -> None:
        """The pair goes with its nodes' namespaces."""


class PlanTopo(Topo):
    """The network of a `NetworkPlan`.

    Addresses: host k of region i is 10.(i+1).k.2 in a /30 with its router; the WAN link of regions i < j is a /30 in
    172.16.0.0/12. Interfaces: a host has "eth0"; a router "lan0", "lan1", ... and "wan<j>" towards region j; the
    wires have "w<i>-<j>" where router i's "wan<j>" ends.
    """

    plan: NetworkPlan

    def build(self, plan: NetworkPlan, mechanism: str = "") -> None:
        """Add every node and link; `mechanism` is "netem", "delay-line" or "" for what the kernel offers.

        Raises
        ------
        NetworkError
            The plan is larger than the address plan.
        """
        self.plan = plan
        largest = max((len(plan.hosts_of(region)) for region in plan.regions), default=0)
        if len(plan.regions) > MAX_REGIONS or largest > MAX_HOSTS:
            raise NetworkError(f"at most {MAX_REGIONS} regions of {MAX_HOSTS} hosts each can be emulated")
        self.addHost(
            WIRES,
            cls=Wires,
            wires=self._wires,
            mechanism=mechanism,
            sysctls=_SILENT,
            ip_commands=[f"link set {wire.entry} up" for wire in self._wires],
        )
        for i, region in enumerate(plan.regions):
            self._add_region(i, region)

    def _add_region(self, i: int, region: str) -> None:
        plan, lan = self.plan, Shape.of_lan(self.plan.profile.lan)
        hosts, others = plan.hosts_of(region), [j for j in range(len(plan.regions)) if j != i]
        shapes = {f"lan{k}": lan for k in range(len(hosts))}
        shapes |= {f"wan{j}": Shape.of_wan(plan.wan[region, plan.regions[j]]) for j in others}
        self.addHost(
            router_name(i),
            cls=Machine,
            shapes=shapes,
            sysctls=_ROUTER,
            ip_commands=_router_commands(i, len(hosts), others),
        )
        for k, host in enumerate(hosts):
            name = node_name(i, host)
            self.addHost(
                name,
                cls=Machine,
                address=f"10.{i + 1}.{k}.2",
                shapes={"eth0": lan},
                sysctls=_endpoint_sysctls(plan),
                ip_commands=_host_commands(plan, i, k),
            )
            self.addLink(
                name,
                router_name(i),
                cls=Cable,
                intfName1="eth0",
                intfName2=f"lan{k}",
                addr1=_mac(i, k, 2),
                addr2=_mac(i, k, 1),
            )
        for j in others:
            self.addLink(
                router_name(i),
                WIRES,
                cls=Cable,
                intfName1=f"wan{j}",
                intfName2=f"w{i}-{j}",
                addr1=_wan_mac(i, j),
                addr2=_wire_mac(i, j),
            )

    @cached_property
    def _wires(self) -> list[delay.Wire]:
        number = {region: i for i, region in enumerate(self.plan.regions)}
        return [
            delay.Wire(
                f"{a}>{b}",
                f"w{number[a]}-{number[b]}",
                f"w{number[b]}-{number[a]}",
                link.delay_s,
                links.wire_bytes_per_s(link.goodput_mbit),
            )
            for (a, b), link in self.plan.wan.items()
        ]


def router_name(region_index: int) -> str:
    """Mininet's name of a region's router."""
    return f"r{region_index}"


def node_name(region_index: int, host: str) -> str:
    """Mininet's name of a host: "r0w3" is worker 3 of the first region."""
    return f"r{region_index}{host.removeprefix(region_of(host) + '/')}"


# No neighbour discovery, no router solicitation: nothing but the experiment's packets is counted.
_SILENT = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
_ROUTER = {**_SILENT, "net.ipv4.ip_forward": "1"}


def _endpoint_sysctls(plan: NetworkPlan) -> dict[str, str]:
    """TCP of the hosts; these are settings of each host's own network namespace."""
    window = max((links.wan_window_bytes(link) for link in plan.wan.values()), default=links.LAN_WINDOW_BYTES)
    # Half of a buffer is window, the rest the kernel's own overhead, which is larger for small segments.
    buffer = 4 * max(window, links.LAN_WINDOW_BYTES)
    return {
        **_SILENT,
        # The receive window is the route's (see _host_commands) from the start; grown by the kernel's
        # moderation it would forget that bound.
        "net.ipv4.tcp_moderate_rcvbuf": "0",
        "net.ipv4.tcp_rmem": f"4096 {buffer} {buffer}",
        "net.ipv4.tcp_wmem": f"4096 131072 {buffer}",
        # A role is silent while it computes; slow start again after each pause would charge it to every step.
        "net.ipv4.tcp_slow_start_after_idle": "0",
        # What one connection learnt must not change how the next one starts: runs have to repeat.
        "net.ipv4.tcp_no_metrics_save": "1",
        # The one that every kernel lets a new namespace choose. BBR, the default of some, stops for 200 ms
        # every 10 s to measure the RTT, which is seen in the message times.
        "net.ipv4.tcp_congestion_control": "reno",
        # Segments of about 1 ms of the connection's rate also where the RTT is small: without it they are 64 KB,
        # which is 100 ms of a slow link, sent and received as one.
        "net.ipv4.tcp_tso_rtt_log": "0",
    }


def _host_commands(plan: NetworkPlan, i: int, k: int) -> list[str]:
    """Addresses and routes; a route bounds the receive window of the connections that take it.

    The bound is what the link from there and its queue hold. A connection alone on a link then never overflows
    the queue: the link is full, and no message waits for a loss to be repaired, an accident that would come at
    another step in every run. Where several connections share a link they overflow it as anywhere.
    """
    gateway = f"via 10.{i + 1}.{k}.1"
    lines = [
        f"addr add 10.{i + 1}.{k}.2/30 dev eth0",
        "link set eth0 up",
        f"neigh replace 10.{i + 1}.{k}.1 lladdr {_mac(i, k, 1)} dev eth0 nud permanent",
        f"route add 10.{i + 1}.0.0/16 {gateway} window {links.LAN_WINDOW_BYTES}",
    ]
    for j, other in enumerate(plan.regions):
        if j != i:
            window = links.wan_window_bytes(plan.wan[other, plan.regions[i]])
            lines.append(f"route add 10.{j + 1}.0.0/16 {gateway} window {window}")
    return lines


def _router_commands(i: int, hosts: int, others: Sequence[int]) -> list[str]:
    lines = []
    for k in range(hosts):
        lines += [
            f"addr add 10.{i + 1}.{k}.1/30 dev lan{k}",
            f"link set lan{k} up",
            f"neigh replace 10.{i + 1}.{k}.2 lladdr {_mac(i, k, 2)} dev lan{k} nud permanent",
        ]
    for j in others:
        lines += [
            f"addr add {_wan_address(i, j)}/30 dev wan{j}",
            f"link set wan{j} up",
            f"neigh replace {_wan_address(j, i)} lladdr {_wan_mac(j, i)} dev wan{j} nud permanent",
            f"route add 10.{j + 1}.0.0/16 via {_wan_address(j, i)}",
        ]
    return lines


def _wan_address(i: int, j: int) -> str:
    """Router i's address on its link with router j."""
    low, high = min(i, j), max(i, j)
    offset = 4 * (low * MAX_REGIONS + high) + (1 if i < j else 2)
    return f"172.{16 + (offset >> 16)}.{offset >> 8 & 255}.{offset & 255}"


def _mac(i: int, k: int, side: int) -> str:
    return f"02:00:00:{i:02x}:{k:02x}:{side:02x}"


def _wan_mac(i: int, j: int) -> str:
    return f"02:00:01:{i:02x}:{j:02x}:00"


def _wire_mac(i: int, j: int) -> str:
    return f"02:00:02:{i:02x}:{j:02x}:00"
