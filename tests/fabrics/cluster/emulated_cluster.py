"""A Ray cluster whose nodes are the hosts of an emulated WAN: `python emulated_cluster.py FOLDER ACTS SETTINGS...`.

It is run in a sandbox. Each role of the experiment has a node of its own, a raylet on the host that the emulated fabric
would give it, so that the LAN is emulated as well as the WAN, and what is compared with that fabric is the same network.
The driver stands on the global server's host, as does Ray's head. Meanwhile `ACTS` happen, a comma between them:

- "stranger": from a host of another region somebody connects to all ports of the roles on the first worker's host;
- "kill": everything on the first worker's host is killed once the run has a checkpoint.

What came of it is printed as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from testbed.emulation import netns
from testbed.emulation.network import EmulatedNetwork, Host
from testbed.experiment import load
from testbed.wan.plan import region_of

PORT = 6379
START_S = 120
LISTENING = "0A"
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-this-test-alone-0123456789abcdef",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONSAFEPATH": "1",
}
RAY = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", "--num-cpus=1"]


def on(host: Host, *command: str, **options: object) -> subprocess.Popen[str]:
    """Start a command on a host, in its network and its mounts."""
    attach = ["mnexec", "-a", str(host.netns_pid)]
    return subprocess.Popen([*attach, *command], env=os.environ | ENVIRONMENT, text=True, start_new_session=True, **options)


@contextmanager
def cluster(network: EmulatedNetwork, head: str) -> Iterator[str]:
    """Its address; every host is a node, labelled with its region."""
    address = f"{network.hosts[head].ip}:{PORT}"
    for name in [head, *(name for name in network.hosts if name != head)]:
        host = network.hosts[name]
        on(host, "sh", "-c", "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray").wait()
        where = ["--head", f"--port={PORT}", "--include-dashboard=false"] if name == head else [f"--address={address}"]
        own = [f"--node-ip-address={host.ip}", "--object-store-memory=83886080", f"--labels=region={region_of(name)}"]
        log = Path(f"/run/testbed/ray-{name.replace('/', '-')}.log").open("w")  # noqa: SIM115
        on(host, *RAY, *where, *own, stdout=log, stderr=subprocess.STDOUT)
        if name == head:
            await_port(host)
    yield address


def await_port(host: Host) -> None:
    until_s = time.monotonic() + START_S
    while PORT not in listening(host):
        assert time.monotonic() < until_s, "Ray's head does not start"
        time.sleep(0.2)


def listening(host: Host) -> set[int]:
    """TCP ports on which somebody listens at the host's address."""
    found = set()
    ours = "".join(f"{int(part):02X}" for part in reversed(host.ip.split(".")))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.netns_pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            at, _, port = local.partition(":")
            if state == LISTENING and (at in (ours, "00000000") or table == "tcp6"):
                found.add(int(port, 16))
    return found


def exchange_as_stranger(here: Host, there: Host, ports: list[int]) -> dict[str, int]:
    """What somebody without a key gets from each port: by TCP, by ZeroMQ, and by ZeroMQ with a key of its own."""
    got = {"tcp": 0, "plain": 0, "own key": 0}
    with netns.enter(here.netns_pid):
        context = zmq.Context()
        for port in ports:
            with socket.create_connection((there.ip, port), 5) as stream:
                stream.settimeout(1.0)
                stream.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
                try:
                    got["tcp"] += len(stream.recv(1 << 16)[64:])  # a greeting (ZMTP) is no message
                except OSError:
                    pass
            for kind in ("plain", "own key"):
                dealer = context.socket(zmq.DEALER)
                if kind == "own key":
                    dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
                    dealer.curve_serverkey, _ = zmq.curve_keypair()
                dealer.connect(f"tcp://{there.ip}:{port}")
                for _ in range(8):
                    try:
                        dealer.send_multipart([b"nothing", bytes(1000)], flags=zmq.DONTWAIT)
                    except zmq.Again:
                        break
                got[kind] += len(dealer.recv_multipart()) if dealer.poll(1500) else 0
                dealer.close(0)
        context.term()
    return got


def begun(out: Path, driver: subprocess.Popen[str], pattern: str) -> None:
    """Wait until the run has written that much."""
    until_s = time.monotonic() + 300
    while not any(True for _ in out.glob(pattern)):
        assert driver.poll() is None and time.monotonic() < until_s, "the run does not get that far"
        time.sleep(0.1)


def main(folder: Path, acts: list[str], settings: list[str]) -> None:
    out = folder / "out"
    it = load.load("cifarnet", load.parse_changes(settings), "", ["baseline"])[0].experiment
    changes = [word for setting in settings for word in ("--set", setting)]
    said: dict[str, object] = {}
    with EmulatedNetwork(it.plan) as network, cluster(network, it.roles.global_server) as address:
        home, victim = network.hosts[it.roles.global_server], network.hosts[it.roles.workers[0]]
        lps = network.hosts[it.roles.lpss[0]]
        before = listening(lps)
        run = [sys.executable, "-P", "-m", "testbed", "run"]
        command = [*run, "cifarnet", "--fabric", "cluster", "--ray", address, "--out", str(out), "--quiet", *changes]
        systems = ["--systems", "baseline"] if acts else []
        until_s = time.monotonic() + START_S
        while said.get("waited") != "" and time.monotonic() < until_s:
            driver = on(home, *command, *systems, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            if "stranger" in acts:
                begun(out, driver, "*/*/baseline/seed-0/checkpoint-*/clock.json")
                ports = sorted(listening(lps) - before)
                said["ports"] = len(ports)
                said["stranger"] = exchange_as_stranger(network.hosts[it.roles.workers[-1]], lps, ports)
            if "kill" in acts:
                begun(out, driver, "*/*/baseline/seed-0/checkpoint-*/clock.json")
                time.sleep(1.0)
                kill_all_on(victim)
            said["output"], said["errors"] = driver.communicate(timeout=500)
            said["waited"] = "no node" if "no node of the cluster stands" in str(said["errors"]) else ""
            time.sleep(1.0 if said["waited"] else 0.0)
        said["status"] = driver.returncode
    print(json.dumps(said))


def kill_all_on(host: Host) -> None:
    """Kill every process in the network namespace of a host, but what keeps it."""
    name = os.readlink(f"/proc/{host.netns_pid}/ns/net")
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "ns/net") == name and int(path.name) != host.netns_pid:
                os.kill(int(path.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


if __name__ == "__main__":
    main(Path(sys.argv[1]), [act for act in sys.argv[2].split(",") if act], sys.argv[3:])
