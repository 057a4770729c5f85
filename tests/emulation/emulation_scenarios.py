"""What the tests run inside a sandbox: `emulation_scenarios.py NAME` builds networks and prints what it saw.

Not a test module: a sandbox is a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from testbed.emulation import awake, delay, netns
from testbed.emulation.links import MIN_GOODPUT_MBIT, wire_bytes_per_s
from testbed.emulation.network import EmulatedNetwork, Host
from testbed.errors import TestbedError
from testbed.fidelity.probes import Channel, Pinger
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Cap, Link, Profile

A, B = "a/w0", "b/w0"
FORTH, BACK = Link(40, 20), Link(15, 20)  # a to b, b to a
MESSAGE_BYTES = 500_000
PAIR_MBIT, CAP_MBIT = 10.0, 12.0  # slow: a machine busy with other things must keep the queues filled
ROUNDS = 6  # of a measurement that such a machine may spoil


def plan() -> NetworkPlan:
    """Two regions with one host each and a link that is not the same in both directions."""
    profile = Profile("test", "test", ("a", "b"), Link(1000, 0.2), {("a", "b"): FORTH, ("b", "a"): BACK})
    return NetworkPlan((A, B), profile)


@contextmanager
def connection(src: Host, dst: Host, port: int = 7000) -> Iterator[Callable[[int], float]]:
    """A warm TCP connection; yields a function that sends so many bytes and returns seconds until the answer."""
    with netns.enter(dst.netns_pid):
        listener = socket.create_server((dst.ip, port))
    with netns.enter(src.netns_pid):
        client = socket.socket()
    client.connect((dst.ip, port))
    server, _ = listener.accept()
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer() -> None:
        while header := server.recv(8, socket.MSG_WAITALL):
            rest = int.from_bytes(header, "little")
            while rest:
                rest -= len(server.recv(min(rest, 1 << 20)))
            server.send(b"k")

    def send(size_bytes: int) -> float:
        message = size_bytes.to_bytes(8, "little") + bytes(size_bytes)
        begin = time.perf_counter()
        client.sendall(message)
        client.recv(1)
        return time.perf_counter() - begin

    threading.Thread(target=answer, daemon=True).start()
    try:
        for _ in range(3):
            send(1 << 20)
        yield send
    finally:
        client.close()
        listener.close()


def message_times(send: Callable[[int], float]) -> list[float]:
    """Seconds of single messages, each after a pause and then at once after it."""
    times = []
    for _ in range(3):
        time.sleep(0.2)
        times += [send(MESSAGE_BYTES), send(MESSAGE_BYTES)]
    return times


@awake.kept()
def links(mechanism: str = "") -> dict[str, Any]:
    """RTT, message times both ways and at a changed rate, and the byte counters, on one network."""
    begin = time.perf_counter()
    with EmulatedNetwork(plan(), mechanism=mechanism) as network:
        seen: dict[str, Any] = {"mechanism": network.delay_mechanism, "up_s": time.perf_counter() - begin}
        a, b = network.hosts[A], network.hosts[B]
        with connection(a, b) as send:
            seen["rtt_s"] = [send(0) for _ in range(9)]
            before = network.counters()
            seen["forth_s"] = message_times(send)
            after = network.counters()
            seen["wire_bytes"] = {name: after[name].wire_bytes - before[name].wire_bytes for name in after}
            network.set_rate("a", "b", FORTH.goodput_mbit / 2)
            seen["halved_s"] = message_times(send)
            network.set_delay("a", "b", 2 * FORTH.delay_s)
            network.check()
            seen["far_rtt_s"] = [send(0) for _ in range(9)]
            network.set_delay("a", "b", FORTH.delay_s)
        with connection(b, a) as send:
            seen["back_s"] = message_times(send)
        network.check()
        seen["drops"] = sum(counter.drops for counter in network.counters().values())
        seen["delay"] = network.delay_report()
    return seen


def netem() -> dict[str, Any]:
    """The same with netem, whatever the default would be."""
    return links("netem")


@awake.kept()
def dilated() -> dict[str, Any]:
    """Message times and RTT of the same plan slowed down four times."""
    with EmulatedNetwork(plan(), dilation=4) as network:
        with connection(network.hosts[A], network.hosts[B]) as send:
            rtt = [send(0) for _ in range(5)]
            network.set_rate("a", "b", FORTH.goodput_mbit)
            network.check()
            return {"rtt_s": rtt, "forth_s": [send(MESSAGE_BYTES) for _ in range(2)]}


def faults() -> dict[str, Any]:
    """What `check` says after each of several things went wrong."""

    def said(spoil: Callable[[EmulatedNetwork], object]) -> str:
        with EmulatedNetwork(plan()) as network:
            spoil(network)
            return error_of(network.check)

    def in_router(command: str) -> Callable[[EmulatedNetwork], object]:
        return lambda network: tc(network, "r0", command)  # region a's

    def restart(network: EmulatedNetwork, **changes: Any) -> None:
        wires = network._net["wires"]
        changed = [replace(wire, carries=replace(wire.carries, **changes)) for wire in wires.wires]
        wires.stage.close()
        wires.stage = network._do(lambda: delay.start(wires.pid, changed, wires.mechanism))

    def break_stage(network: EmulatedNetwork) -> None:
        wires = network._net["wires"]
        if network.delay_mechanism == "netem":
            tc(network, "wires", "qdisc del dev w1-0 root")
        else:
            wires.stage._process.kill()
            wires.stage._process.wait()

    return {
        "nothing": said(lambda network: None),
        "unshaped": said(in_router("qdisc del dev wan1 root")),
        "fifo": said(in_router("qdisc replace dev wan1 parent 1:10 handle 10: bfifo limit 1000000")),
        "acks": said(in_router("class change dev wan1 parent 1:1 classid 1:2 htb rate 8kbit ceil 1mbit quantum 60000")),
        "filters": said(in_router("filter del dev wan1 parent 1: prio 1")),
        "rate": said(in_router("class change dev wan1 parent 1: classid 1:1 htb rate 50mbit burst 15k")),
        "delay": said(lambda network: restart(network, delay_s=0.011)),
        "wire rate": said(lambda network: restart(network, bytes_per_s=10**6)),
        "stage": said(break_stage),
    }


def flap() -> dict[str, Any]:
    """Interfaces on a link's way that go down and up again, each in turn: what is said, and a message afterwards."""
    seen: dict[str, Any] = {"said": [], "message_s": []}
    with EmulatedNetwork(plan()) as network, connection(network.hosts[A], network.hosts[B]) as send:
        for node, interface in (("r0", "wan1"), ("r0w0", "eth0"), ("r1", "lan0"), ("wires", "w1-0")):
            in_node(network, node, f"ip link set {interface} down")
            seen["said"].append(error_of(network.check))
            time.sleep(0.2)
            in_node(network, node, f"ip link set {interface} up")
            seen["message_s"].append(send(MESSAGE_BYTES))
        network.check()
        seen["were_down"] = network.delay_report()["were_down"]
    return seen


def flap_of_a_cut_link() -> dict[str, Any]:
    """The route over a link that is cut, whose interface goes down and up again, and that is healed then."""
    seen = {}
    with EmulatedNetwork(plan()) as network:
        network.cut("a", "b")
        in_node(network, "r0", "ip link set wan1 down")
        in_node(network, "r0", "ip link set wan1 up")
        neighbour = ""
        deadline = time.monotonic() + 10
        while not neighbour and time.monotonic() < deadline:  # it is back, so the routes are as well
            neighbour = in_node(network, "r0", "ip neigh show dev wan1 nud permanent")
        seen["cut"] = in_node(network, "r0", "ip route show 10.2.0.0/16")
        network.heal("a", "b")
        seen["healed"] = in_node(network, "r0", "ip route show 10.2.0.0/16")
    return seen


def own_interface() -> dict[str, Any]:
    """What is counted and read back when a program has made a shaped interface of its own beside a host's."""
    host = "r0w0"
    with EmulatedNetwork(plan()) as network:
        in_node(network, host, "ip link add own type veth peer name its-end")
        in_node(network, host, "tc qdisc add dev own root handle 1: htb default 10")
        in_node(network, host, "tc class add dev own parent 1: classid 1:10 htb rate 1mbit")
        network.check()
        return {"counted": sorted(network.counters())}


def black_hole() -> dict[str, Any]:
    """A message between hosts that are cut off from each other for a second, and what others send meanwhile."""
    seen: dict[str, Any] = {}
    ends = {"cut off": (A, B), "other": ("a/w1", B), "LAN": (A, "a/w1")}
    wide = NetworkPlan((A, "a/w1", B), plan().profile)
    with EmulatedNetwork(wide) as network, ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        hosts = {name: (network.hosts[src], network.hosts[dst]) for name, (src, dst) in ends.items()}
        sends = {name: stack.enter_context(connection(*pair, 7000 + k)) for k, (name, pair) in enumerate(hosts.items())}
        for off in (True, True, False, False):  # twice is as good as once
            if not off:
                time.sleep(0.5)
            network.cut_off(A, B, off)
            if off and "waiting" not in seen:
                waiting = pool.submit(sends["cut off"], 1000)
                seen |= {name: sends[name](1000) for name in ("other", "LAN")}
                seen["waiting"] = not waiting.done()
        seen["cut off"] = waiting.result(30)
        seen["again"] = sends["cut off"](1000)
        seen["rules"] = in_node(network, "r0", "ip rule")
    return seen


def stalled() -> dict[str, Any]:
    """What a delay line that is stopped, and one that was killed, are said to be; and how long it takes."""
    seen: dict[str, Any] = {}
    for number in (signal.SIGSTOP, signal.SIGKILL):
        begin = time.perf_counter()
        with EmulatedNetwork(plan(), mechanism="delay-line") as network:
            process = network._net["wires"].stage._process
            seen["alive"] = error_of(network.watch)
            process.send_signal(number)
            time.sleep(0.1)
            seen[number.name] = error_of(network.watch), error_of(network.check)
        seen["took_s"] = time.perf_counter() - begin
    return seen


def tc(network: EmulatedNetwork, node: str, command: str) -> str:
    """What tc prints in a node's network namespace."""
    return in_node(network, node, f"tc {command}")


def in_node(network: EmulatedNetwork, node: str, command: str) -> str:
    """What a command prints in a node's network namespace."""
    with netns.enter(network._net[node].pid):
        return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout


def error_of(request: Callable[[], object]) -> str:
    """What a request says when it is refused."""
    try:
        request()
    except TestbedError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def capped(egress_mbit: float | None = CAP_MBIT, ingress_mbit: float | None = CAP_MBIT) -> EmulatedNetwork:
    """Three regions, `PAIR_MBIT` between any two; what region a sends and receives is capped."""
    regions = ("a", "b", "c")
    pairs = {(x, y): Link(PAIR_MBIT, 20) for x in regions for y in regions if x != y}
    caps = {"a": Cap(egress_mbit, ingress_mbit)}
    profile = Profile("test", "test", regions, Link(1000, 0.2), pairs, caps=caps)
    return EmulatedNetwork(NetworkPlan(("a/w0", "a/w1", "b/w0", "c/w0"), profile))


def together_mbit(network: EmulatedNetwork, ends: list[tuple[str, str]]) -> list[float]:
    """Goodput of connections that are busy at the same time, each over the same second."""
    with ExitStack() as stack, ThreadPoolExecutor(len(ends)) as pool:
        channels = [stack.enter_context(Channel(network, *pair)) for pair in ends]
        list(pool.map(Channel.warm, channels))
        jobs = [pool.submit(channel.message, round(channel.link.bytes_per_s * 1.5)) for channel in channels]
        begin_s = time.monotonic() + 0.4  # the queues have filled
        for job in jobs:
            job.result()
        return [channel.arrivals.mbit(begin_s, begin_s + 1.0) for channel in channels]


def rounds_mbit(network: EmulatedNetwork, ends: list[tuple[str, str]], expected: float) -> list[list[float]]:
    """The same measured several times, until the sum is what is expected."""
    seen: list[list[float]] = []
    while len(seen) < ROUNDS and not (seen and abs(sum(seen[-1]) - expected) < 0.02 * expected):
        seen.append(together_mbit(network, ends))
    return seen


@awake.kept()
def caps() -> dict[str, Any]:
    """What two WAN links of a capped region carry together, each way; one alone; and what the region's faults are."""
    with capped() as network:
        both_ways = {"out": [("a/w0", "b/w0"), ("a/w1", "c/w0")], "in": [("b/w0", "a/w0"), ("c/w0", "a/w1")]}
        seen: dict[str, Any] = {name: rounds_mbit(network, ends, CAP_MBIT) for name, ends in both_ways.items()}
        seen["alone"] = [alone for (alone,) in rounds_mbit(network, [("a/w0", "b/w0")], PAIR_MBIT)]
        seen["counted"] = sorted(network.counters())
        network.check()
        tc(network, "r0", "qdisc del dev border root")
        seen["uncapped"] = error_of(network.check)
    with capped(ingress_mbit=None) as network:
        seen["one way"] = sorted(network._caps)
    return seen


@awake.kept()
def fast() -> dict[str, Any]:
    """Above 1 Gbit/s: what is read back, how long a message takes, and what is refused."""

    def build(link: Link) -> EmulatedNetwork:
        pairs = {("a", "b"): link, ("b", "a"): link}
        return EmulatedNetwork(NetworkPlan((A, B), Profile("test", "test", ("a", "b"), Link(25_000, 0), pairs)))

    seen: dict[str, Any] = {}
    with build(Link(2_500, 20)) as network:
        with Channel(network, A, B) as channel:
            channel.warm()
            seen["message_s"] = [channel.message(20_000_000) for _ in range(3)]
        network.set_rate("a", "b", 20_000)
        network.check()
        seen["tc"] = tc(network, "r0", "class show dev wan1 classid 1:1")
        seen["change"] = error_of(lambda: network.set_rate("a", "b", 40_000))
    seen["refused"] = error_of(lambda: build(Link(40_000, 20)))
    return seen


def impaired() -> dict[str, Any]:
    """Round trips over a link that loses packets and lets its delay stray, or why there is none."""
    pairs = {("a", "b"): Link(40, 40, loss_percent=10, jitter_ms=15), ("b", "a"): Link(40, 40)}
    plan = NetworkPlan((A, B), Profile("test", "test", ("a", "b"), Link(1000, 0.2), pairs))
    try:
        with EmulatedNetwork(plan) as network:
            echoes = Pinger(network, A, B, 400, 0.01).result()
            network.check()
            said, rate_bit = [], 8 * wire_bytes_per_s(40)
            for other in ("15ms loss 9%", "14ms loss 10%"):
                tc(network, "wires", f"qdisc change dev w1-0 root netem delay 20ms {other} rate {rate_bit}bit")
                said.append(error_of(network.check))
            return {"rtts_ms": echoes.rtts_ms, "lost": echoes.lost, "said": said}
    except TestbedError as error:
        return {"refused": f"{type(error).__name__}: {error}"}


def refused() -> dict[str, Any]:
    """What the network says to requests that cannot be."""
    answers = {}
    with EmulatedNetwork(plan()) as network:
        for name, rate in {
            "no link": ("a", "c", 5.0),
            "a host": ("a", "a/w0", 5.0),
            "no rate": ("a", "b", 0.0),
        }.items():
            answers[name] = error_of(partial(network.set_rate, *rate))
        network.set_rate("a", "b", MIN_GOODPUT_MBIT)
        network.check()
        answers["no delay"] = error_of(lambda: network.set_delay("a", "b", -1.0))
        tc(network, "r0", "qdisc del dev wan1 root")
        answers["no counter"] = error_of(network.counters)
    slowed = replace(plan(), least_mbit={("a", "b"): 1e-3})
    answers["too slow"] = error_of(lambda: EmulatedNetwork(slowed, dilation=100))
    return answers


def hold() -> dict[str, Any]:
    """Stand with a network until killed."""
    with EmulatedNetwork(plan()):
        print("ready", flush=True)
        time.sleep(120)
    return {}


def signals() -> dict[str, Any]:
    """Count the signals that come until one second after the first."""
    came: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: came.append(number))
    print("ready", flush=True)
    deadline = time.monotonic() + 30
    while not came and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1)
    return {"signals": came}


@awake.kept()
def topology() -> dict[str, Any]:
    """Load the Mininet topology file as `mn --custom` does, build it with plain Mininet, and cross a WAN link."""
    from mininet.log import setLogLevel
    from mininet.net import Mininet

    from testbed.emulation import mnexec
    from testbed.emulation.network import TOOLS

    mnexec.install(TOOLS)
    setLogLevel("error")
    custom: dict[str, Any] = {}
    path = Path(__file__).parents[2] / "topologies" / "weightgrad_ec2.py"
    exec(compile(path.read_text(), str(path), "exec"), custom, custom)
    net = Mininet(topo=custom["topos"]["weightgrad"](workers=1), controller=None)
    net.start()
    try:
        ends = [Host(name, net[name].IP(), net[name].pid) for name in ("r0gs", "r1lps")]
        with connection(*ends) as send:
            rtts = [send(0) for _ in range(9)]
        return {"nodes": sorted(node.name for node in net.hosts), "rtt_s": rtts, "echo": net["r0"].cmd("echo hello")}
    finally:
        net.stop()


NETWORK = (
    links,
    netem,
    dilated,
    faults,
    flap,
    flap_of_a_cut_link,
    own_interface,
    black_hole,
    stalled,
    caps,
    fast,
    impaired,
    refused,
    topology,
)
SCENARIOS = (*NETWORK, hold, signals)

if __name__ == "__main__":
    scenario = {function.__name__: function for function in SCENARIOS}[sys.argv[1]]
    print(json.dumps(scenario()), flush=True)
    os._exit(0)  # the echo threads still wait
