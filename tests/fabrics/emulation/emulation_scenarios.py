"""What the tests run inside a sandbox: `emulation_scenarios.py NAME` builds networks and prints what it saw.

Not a test module: a sandbox is a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from testbed.errors import NetworkError
from testbed.fabrics.emulation import delay, netns
from testbed.fabrics.emulation.network import EmulatedNetwork, Host
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile

A, B = "a/w0", "b/w0"
FORTH, BACK = Link(40, 20), Link(15, 20)  # a to b, b to a
MESSAGE_BYTES = 500_000


def plan() -> NetworkPlan:
    """Two regions with one host each and a link that is not the same in both directions."""
    profile = Profile("test", "test", ("a", "b"), Link(1000, 0.2), {("a", "b"): FORTH, ("b", "a"): BACK})
    return NetworkPlan((A, B), profile)


@contextmanager
def connection(src: Host, dst: Host) -> Iterator[Callable[[int], float]]:
    """A warm TCP connection; yields a function that sends so many bytes and returns seconds until the answer."""
    with netns.enter(dst.netns_pid):
        listener = socket.create_server((dst.ip, 7000))
    with netns.enter(src.netns_pid):
        client = socket.socket()
    client.connect((dst.ip, 7000))
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
        with connection(b, a) as send:
            seen["back_s"] = message_times(send)
        network.check()
        seen["drops"] = sum(counter.drops for counter in network.counters().values())
        seen["delay"] = network.delay_report()
    return seen


def netem() -> dict[str, Any]:
    """The same with netem, whatever the default would be."""
    return links("netem")


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

    def said(spoil: Callable[[EmulatedNetwork], None]) -> str:
        with EmulatedNetwork(plan()) as network:
            spoil(network)
            try:
                network.check()
            except NetworkError as error:
                return str(error)
            return "nothing"

    def tc(command: str) -> Callable[[EmulatedNetwork], None]:
        def spoil(network: EmulatedNetwork) -> None:
            with netns.enter(network._net["r0"].pid):  # region a's router
                subprocess.run(["tc", *command.split()], check=True)

        return spoil

    def restart(network: EmulatedNetwork, **changes: Any) -> None:
        wires = network._net["wires"]
        changed = [replace(wire, **changes) for wire in wires.wires]
        wires.stage.close()
        wires.stage = network._do(lambda: delay.start(wires.pid, changed, wires.mechanism))

    def break_stage(network: EmulatedNetwork) -> None:
        wires = network._net["wires"]
        if network.delay_mechanism == "netem":
            with netns.enter(wires.pid):
                subprocess.run(["tc", "qdisc", "del", "dev", "w1-0", "root"], check=True)
        else:
            wires.stage._process.kill()
            wires.stage._process.wait()

    return {
        "nothing": said(lambda network: None),
        "unshaped": said(tc("qdisc del dev wan1 root")),
        "fifo": said(tc("qdisc replace dev wan1 parent 1:1 handle 10: bfifo limit 1000000")),
        "rate": said(tc("class change dev wan1 parent 1: classid 1:1 htb rate 50mbit burst 15k")),
        "delay": said(lambda network: restart(network, delay_s=0.011)),
        "wire rate": said(lambda network: restart(network, bytes_per_s=10**6)),
        "stage": said(break_stage),
    }


def refused() -> dict[str, Any]:
    """What the network says to requests that cannot be."""
    answers = {}
    with EmulatedNetwork(plan()) as network:
        for name, request in {
            "no link": ("a", "c", 5.0),
            "a host": ("a", "a/w0", 5.0),
            "no rate": ("a", "b", 0.0),
        }.items():
            try:
                network.set_rate(*request)
                answers[name] = "nothing"
            except NetworkError as error:
                answers[name] = str(error)
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


def topology() -> dict[str, Any]:
    """Load the Mininet topology file as `mn --custom` does, build it with plain Mininet, and cross a WAN link."""
    from pathlib import Path

    from mininet.log import setLogLevel
    from mininet.net import Mininet

    from testbed.fabrics.emulation import mnexec
    from testbed.fabrics.emulation.network import TOOLS

    mnexec.install(TOOLS)
    setLogLevel("error")
    custom: dict[str, Any] = {}
    path = Path(__file__).parents[3] / "topologies" / "weightgrad_ec2.py"
    exec(compile(path.read_text(), str(path), "exec"), custom, custom)
    net = Mininet(topo=custom["topos"]["weightgrad"](workers=1), controller=None)
    net.start()
    try:
        ends = [Host(name, net[name].IP(), net[name].pid) for name in ("r0gs", "r1lps")]
        with connection(*ends) as send:
            rtt = statistics.median(send(0) for _ in range(7))
        return {"nodes": sorted(node.name for node in net.hosts), "rtt_s": rtt, "echo": net["r0"].cmd("echo hello")}
    finally:
        net.stop()


SCENARIOS = (links, netem, dilated, faults, refused, hold, signals, topology)

if __name__ == "__main__":
    scenario = {function.__name__: function for function in SCENARIOS}[sys.argv[1]]
    print(json.dumps(scenario()), flush=True)
    os._exit(0)  # the echo threads still wait
