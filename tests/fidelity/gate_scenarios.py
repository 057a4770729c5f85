"""What the gate's tests run inside a sandbox: `gate_scenarios.py NAME` breaks a network and prints what the gate says.

Not a test module: a sandbox is a process of its own. The network is slow, so that a machine that is busy with other
things carries it all the same: what a test finds is then the fault that was made.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from testbed.emulation import links
from testbed.emulation.network import EmulatedNetwork
from testbed.errors import NetworkError
from testbed.fidelity import gate
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Cap, Link, Profile

REGIONS = ("a", "b", "c")
PAIRS = {(x, y): Link(10, 10) for x in REGIONS for y in REGIONS if x != y}
PROFILE = Profile("test", "test", REGIONS, Link(100, 0.2), PAIRS)
HOSTS = ("a/w0", "a/w1", "b/w0", "c/w0")


def build(**changes: Any) -> EmulatedNetwork:
    return EmulatedNetwork(NetworkPlan(HOSTS, replace(PROFILE, **changes)), mechanism="delay-line")


def pid(network: EmulatedNetwork, node: str) -> int:
    return network._net[node].pid


def sound(network: EmulatedNetwork) -> None:
    """Nothing is wrong."""


def unshaped(network: EmulatedNetwork) -> None:
    """From a to b nothing shapes: the qdisc is gone and the delay line carries at once."""
    links.batch("tc", pid(network, "r0"), ["qdisc del dev wan1 root"])
    network._do(lambda: network._stage.set_rate("a>b", 10**10))


def half_shaped(network: EmulatedNetwork) -> None:
    """The qdisc is gone, but the delay line still holds the rate: only reading back can tell."""
    links.batch("tc", pid(network, "r0"), ["qdisc del dev wan1 root"])


def late(network: EmulatedNetwork) -> None:
    """From a to b it takes 20 ms instead of 5."""
    network._do(lambda: network._stage.set_delay("a>b", 0.020))


def around(network: EmulatedNetwork) -> None:
    """A cable between the routers of a and b that is no part of the WAN, both ways."""
    first, second = pid(network, "r0"), pid(network, "r1")
    links.batch("ip", first, [f"link add way type veth peer name way netns {second}"])
    for here, me in ((first, 1), (second, 2)):
        links.batch("ip", here, [f"addr add 192.168.9.{me}/30 dev way", "link set way up"])
    for here, other, net in ((first, 2, "10.2.0.0/16"), (second, 1, "10.1.0.0/16")):
        links.batch("ip", here, [f"route replace {net} via 192.168.9.{other}"])


def uncapped(network: EmulatedNetwork) -> None:
    """What region a sends is no longer capped."""
    links.batch("tc", pid(network, "r0"), ["qdisc del dev border root"])


def acks_last(network: EmulatedNetwork) -> None:
    """From a to b acknowledgements wait among the data again: only reading back can tell."""
    links.batch("tc", pid(network, "r0"), ["filter del dev wan1 parent 1: prio 1"])


def capped(network: EmulatedNetwork) -> None:
    """Nothing is wrong, and what region a sends is capped below its links; built so by `BUILT`."""


def slow_lan(network: EmulatedNetwork) -> None:
    """Nothing is wrong, and the LAN is slower than the WAN; built so by `BUILT`."""


def lopsided(network: EmulatedNetwork) -> None:
    """Nothing is wrong, and one way is a hundred times as long as the other; built so by `BUILT`."""


def dead(network: EmulatedNetwork) -> None:
    """The delay line is killed."""
    process = network._stage._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


FAULTS: dict[str, Callable[[EmulatedNetwork], None]] = {
    fault.__name__: fault
    for fault in (sound, unshaped, half_shaped, acks_last, late, around, capped, uncapped, slow_lan, lopsided, dead)
}
CAPS = {"caps": {"a": Cap(egress_mbit=5)}}
LOPSIDED = {"pairs": PAIRS | {("a", "b"): Link(50, 4), ("b", "a"): Link(50, 400)}}
BUILT: dict[str, dict[str, Any]] = {
    "capped": CAPS,
    "uncapped": CAPS,
    "slow_lan": {"lan": Link(8, 0)},
    "lopsided": LOPSIDED,
}


def run(name: str) -> dict[str, object]:
    """What the gate says, and which links its probes alone find at fault."""
    if name not in ("sound", "capped", "slow_lan", "lopsided"):  # the others' faults do not pass
        gate.MOMENT_S, gate.PATIENCE_S = 0.2, 10.0
    with build(**BUILT.get(name, {})) as network:
        FAULTS[name](network)
        figures, _ = gate.probe(network, gate.GateBounds(), network.plan.wan)
        found = {"probed": sorted({figure.name for figure in figures if not figure.ok})}
        try:
            report = gate.check(network)
        except NetworkError as error:
            return found | {"error": str(error), "table": "\n".join(getattr(error, "__notes__", []))}
        return found | {"error": "", "table": "", "report": report.record()}


if __name__ == "__main__":
    json.dump(run(sys.argv[1]), sys.stdout)
