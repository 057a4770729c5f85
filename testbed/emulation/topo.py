"""The plan of a run as a Mininet topology: hosts, one router per region, and the wires between the routers.

    host --LAN-- router --+        +-- router --LAN-- host
                          | wires  |
    host --LAN-- router --+        +-- router --LAN-- host

What all WAN links of a region may carry together (`Profile.caps`) is shaped between the router and a border node
of the region's own, on which its WAN links then hang:

    host --LAN-- router --cap-- border -- wires

Mininet's division of labour is kept (nodes execute, interfaces configure, links connect), but each node sets up
all its interfaces in one `ip -batch` and one `tc -batch`: a shell round trip for each would take minutes of a
large network. There are no bridges, no ARP and no IPv6; routes and neighbours are written down.

`PlanTopo` works under plain `mn --custom`, too; see `topologies/` in the repository.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mininet.link import Intf, Link
from mininet.node import Node
from mininet.topo import Topo

from testbed.emulation import addresses, delay, links, netns, sandbox
from testbed.emulation.links import Shape
from testbed.errors import InputError
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Cap
from testbed.wan.tcp import LEAST_TIMEOUT_S, window_bytes

WIRES = "wires"  # name of the node in which all WAN links meet


@dataclass(frozen=True)
class Sender:
    """The interface that sends into one direction of a link."""

    node: str  # Mininet's name
    interface: str
    shape: Shape


def senders(plan: NetworkPlan) -> dict[str, Sender]:
    """Every directed link of the plan, by its name in the record, with the interface that sends into it."""
    lan = Shape.of_lan(plan.profile.lan)
    found = {}
    for i, region in enumerate(plan.regions):
        for k, host in enumerate(plan.hosts_of(region)):
            found[f"{host}>{region}"] = Sender(addresses.node_name(i, host), "eth0", lan)
            found[f"{region}>{host}"] = Sender(addresses.router_name(i), f"lan{k}", lan)
        for j, other in _others(plan, i):
            shape = Shape.of_wan(plan.wan[region, other], plan.widest[region, other])
            found[f"{region}>{other}"] = Sender(addresses.border_name(plan, i), f"wan{j}", shape)
    return found


def cap_senders(plan: NetworkPlan) -> dict[str, Sender]:
    """For every cap, "<region> egress" or "<region> ingress", the interface that all its traffic passes."""
    found = {}
    for i, region in enumerate(plan.regions):
        cap = plan.profile.caps.get(region, Cap())
        others = [(addresses.region_network(j), other) for j, other in _others(plan, i)]
        if cap.egress_mbit is not None:
            shared = [(plan.widest[region, other], f"dst {network}") for network, other in others]
            router = addresses.router_name(i)
            found[f"{region} egress"] = Sender(router, "border", Shape.of_cap(cap.egress_mbit, shared))
        if cap.ingress_mbit is not None:
            shared = [(plan.widest[other, region], f"src {network}") for network, other in others]
            border = addresses.border_name(plan, i)
            found[f"{region} ingress"] = Sender(border, "router", Shape.of_cap(cap.ingress_mbit, shared))
    return found


def _others(plan: NetworkPlan, i: int) -> list[tuple[int, str]]:
    """Number and name of the regions that are not region i."""
    return [(j, other) for j, other in enumerate(plan.regions) if j != i]


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
    """The network of a `NetworkPlan`; `addresses` tells what everything in it is called."""

    plan: NetworkPlan

    def build(self, plan: NetworkPlan, mechanism: str = "", dilation: float = 1.0) -> None:
        """Add every node and link; `mechanism` is "netem", "delay-line" or "" for what the kernel offers.

        `plan` is dilated already; `dilation` is for what is measured in seconds elsewhere.

        Raises
        ------
        InputError
            The plan is larger than what can be emulated.
        """
        self.plan = plan
        self._sysctls = _endpoint_sysctls(plan, dilation)
        self._shapes: dict[str, dict[str, Shape]] = {}
        for sender in (senders(plan) | cap_senders(plan)).values():
            self._shapes.setdefault(sender.node, {})[sender.interface] = sender.shape
        largest = max((len(plan.hosts_of(region)) for region in plan.regions), default=0)
        if len(plan.regions) > addresses.MAX_REGIONS or largest > addresses.MAX_HOSTS:
            raise InputError(
                f"at most {addresses.MAX_REGIONS} regions of {addresses.MAX_HOSTS} hosts each can be emulated"
            )
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
        plan, router, border = self.plan, addresses.router_name(i), addresses.border_name(self.plan, i)
        hosts, others = plan.hosts_of(region), [j for j, _ in _others(plan, i)]
        inside, outside = addresses.lan_commands(i, len(hosts)), addresses.wan_commands(i, others)
        if border == router:
            self._add_machine(router, [*inside, *outside], _ROUTER)
        else:
            self._add_machine(router, [*inside, *addresses.to_border_commands(i, others)], _ROUTER)
            self._add_machine(border, [*addresses.to_router_commands(i), *outside], _ROUTER)
            self._add_cable((router, "border", addresses.inner_mac(i)), (border, "router", addresses.outer_mac(i)))
        for k, host in enumerate(hosts):
            name = addresses.node_name(i, host)
            commands = addresses.host_commands(plan, i, k)
            self._add_machine(name, commands, self._sysctls, address=addresses.host_address(i, k))
            self._add_cable((name, "eth0", addresses.mac(i, k, 2)), (router, f"lan{k}", addresses.mac(i, k, 1)))
        for j in others:
            self._add_cable(
                (border, f"wan{j}", addresses.wan_mac(i, j)), (WIRES, f"w{i}-{j}", addresses.wire_mac(i, j))
            )

    def _add_machine(self, name: str, commands: Sequence[str], sysctls: Mapping[str, str], address: str = "") -> None:
        shapes = self._shapes.get(name, {})
        self.addHost(name, cls=Machine, ip_commands=commands, shapes=shapes, sysctls=sysctls, address=address)

    def _add_cable(self, one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
        """Join two ends, each a node, its interface and that one's MAC address."""
        names = {"intfName1": one[1], "intfName2": other[1], "addr1": one[2], "addr2": other[2]}
        self.addLink(one[0], other[0], cls=Cable, **names)

    @cached_property
    def _wires(self) -> list[delay.Wire]:
        number = {region: i for i, region in enumerate(self.plan.regions)}
        return [
            delay.Wire(f"{a}>{b}", f"w{number[a]}-{number[b]}", f"w{number[b]}-{number[a]}", delay.Carries.of(link))
            for (a, b), link in self.plan.wan.items()
        ]


# No neighbour discovery, no router solicitation: nothing but the experiment's packets is counted.
_SILENT = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
_ROUTER = {**_SILENT, "net.ipv4.ip_forward": "1"}


def _endpoint_sysctls(plan: NetworkPlan, dilation: float) -> dict[str, str]:
    """TCP of the hosts; these are settings of each host's own network namespace."""
    window = max((window_bytes(link) for link in plan.widest.values()), default=links.LAN_WINDOW_BYTES)
    # Half of a buffer is window, the rest the kernel's own overhead, which is larger for small segments.
    buffer = 4 * max(window, links.LAN_WINDOW_BYTES)
    return {
        **_SILENT,
        # The receive window is the route's (see addresses.host_commands) from the start; grown by the kernel's
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
        # After a loss TCP waits so much longer as the links are slower.
        "net.ipv4.tcp_rto_min_us": str(round(1e6 * LEAST_TIMEOUT_S * dilation)),
    }
