"""The address plan: what every node of the network is called, its addresses, routes and neighbours.

Addresses: host k of region i is 10.(i+1).k.2 in a /30 with its router; the WAN link of regions i < j is a /30 in
172.16.0.0/12. Interfaces: a host has "eth0"; a router "lan0", "lan1", ... and "wan<j>" towards region j; the
wires have "w<i>-<j>" where router i's "wan<j>" ends. In a region with a cap it is the border node that has the
"wan<j>"; its "router" and the router's "border" are a /30 in 192.168.0.0/16.

The commands are lines for `ip -batch`; neighbours and routes are written down, so that nothing has to be asked for.
Those through an interface name it, so that they can be put back where it was down (`restoring`).
"""

from __future__ import annotations

from collections.abc import Sequence

from testbed.emulation import links
from testbed.wan.plan import NetworkPlan, region_of
from testbed.wan.tcp import window_bytes

MAX_REGIONS = 45  # whose directed pairs a delay line holds, 2,048
MAX_HOSTS = 250  # in one region: what the address plan holds


def router_name(region_index: int) -> str:
    """Mininet's name of a region's router."""
    return f"r{region_index}"


def border_name(plan: NetworkPlan, region_index: int) -> str:
    """Mininet's name of the node that a region's WAN links hang on: its router unless the region has a cap."""
    capped = plan.regions[region_index] in plan.profile.caps
    return f"b{region_index}" if capped else router_name(region_index)


def node_name(region_index: int, host: str) -> str:
    """Mininet's name of a host: "r0w3" is worker 3 of the first region."""
    return f"r{region_index}{host.removeprefix(region_of(host) + '/')}"


def region_network(region_index: int) -> str:
    """All hosts of a region."""
    return f"10.{region_index + 1}.0.0/16"


def host_address(region_index: int, k: int) -> str:
    """Of host k of a region."""
    return f"10.{region_index + 1}.{k}.2"


def host_commands(plan: NetworkPlan, i: int, k: int) -> list[str]:
    """Addresses and routes; a route bounds the receive window of the connections that take it.

    The bound is what the link from there and its queue hold. A connection alone on a link then never overflows
    the queue: the link is full, and no message waits for a loss to be repaired, an accident that would come at
    another step in every run. Where several connections share a link they overflow it as anywhere.
    """
    gateway = f"via 10.{i + 1}.{k}.1 dev eth0"
    impaired = any(link.impaired for link in plan.wan.values())  # then packets get lost one by one, not 64 KB at once
    lines = [
        f"link set eth0 gso_max_segs {1 if impaired else links.lan_segments(plan.profile.lan)}",
        f"addr add {host_address(i, k)}/30 dev eth0",
        "link set eth0 up",
        f"neigh replace 10.{i + 1}.{k}.1 lladdr {mac(i, k, 1)} dev eth0 nud permanent",
        f"route replace {region_network(i)} {gateway} window {links.LAN_WINDOW_BYTES}",
    ]
    for j, other in enumerate(plan.regions):
        if j != i:
            window = window_bytes(plan.widest[other, plan.regions[i]])
            lines.append(f"route replace {region_network(j)} {gateway} window {window}")
    return lines


def lan_commands(i: int, hosts: int) -> list[str]:
    """Of a router, towards its hosts."""
    lines = []
    for k in range(hosts):
        lines += [
            f"addr add 10.{i + 1}.{k}.1/30 dev lan{k}",
            f"link set lan{k} up",
            f"neigh replace {host_address(i, k)} lladdr {mac(i, k, 2)} dev lan{k} nud permanent",
        ]
    return lines


def wan_commands(i: int, others: Sequence[int]) -> list[str]:
    """Of a router or border node, towards the other regions."""
    lines = []
    for j in others:
        lines += [
            f"addr add {_wan_address(i, j)}/30 dev wan{j}",
            f"link set wan{j} up",
            f"neigh replace {_wan_address(j, i)} lladdr {wan_mac(j, i)} dev wan{j} nud permanent",
            heal_command(i, j),
        ]
    return lines


def cut_command(i: int, j: int) -> str:
    """Of a router or border node: what is for region j is lost, and nobody is told."""
    return f"route replace blackhole {region_network(j)}"


def heal_command(i: int, j: int) -> str:
    """The opposite: what is for region j takes its link."""
    return f"route replace {region_network(j)} via {_wan_address(j, i)} dev wan{j}"


def cut_off_command(src: str, dst: str) -> str:
    """Of the router that a host with the address `src` hangs on: what it sends to `dst` is lost."""
    return f"rule add blackhole from {src} to {dst}"


def let_through_command(src: str, dst: str) -> str:
    """The opposite."""
    return f"rule del blackhole from {src} to {dst}"


def to_border_commands(i: int, others: Sequence[int]) -> list[str]:
    """Of a router, towards its border node."""
    return [
        f"addr add 192.168.{i}.1/30 dev border",
        "link set border up",
        f"neigh replace 192.168.{i}.2 lladdr {outer_mac(i)} dev border nud permanent",
        *(f"route replace {region_network(j)} via 192.168.{i}.2 dev border" for j in others),
    ]


def to_router_commands(i: int) -> list[str]:
    """Of a border node, towards its router."""
    return [
        f"addr add 192.168.{i}.2/30 dev router",
        "link set router up",
        f"neigh replace 192.168.{i}.1 lladdr {inner_mac(i)} dev router nud permanent",
        f"route replace {region_network(i)} via 192.168.{i}.1 dev router",
    ]


def restoring(commands: Sequence[str], interface: str) -> list[str]:
    """Those of a node's commands that put back what the kernel forgot when `interface` went down."""
    forgotten = [line for line in commands if line.startswith(("neigh ", "route "))]
    return [line for line in forgotten if f" dev {interface} " in f"{line} "]


def _wan_address(i: int, j: int) -> str:
    """Router i's address on its link with router j."""
    low, high = min(i, j), max(i, j)
    offset = 4 * (low * MAX_REGIONS + high) + (1 if i < j else 2)
    return f"172.{16 + (offset >> 16)}.{offset >> 8 & 255}.{offset & 255}"


def mac(i: int, k: int, side: int) -> str:
    return f"02:00:00:{i:02x}:{k:02x}:{side:02x}"


def wan_mac(i: int, j: int) -> str:
    return f"02:00:01:{i:02x}:{j:02x}:00"


def wire_mac(i: int, j: int) -> str:
    return f"02:00:02:{i:02x}:{j:02x}:00"


def inner_mac(i: int) -> str:
    return f"02:00:03:{i:02x}:00:01"


def outer_mac(i: int) -> str:
    return f"02:00:03:{i:02x}:00:02"
