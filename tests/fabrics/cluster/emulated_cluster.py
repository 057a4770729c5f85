"""A Ray cluster whose nodes are the hosts of an emulated WAN: `python emulated_cluster.py FOLDER SETTINGS...`.

It is run in a sandbox. Each role of the experiment has a node of its own, a raylet on the host that the emulated
fabric would give it, so that the LAN is emulated as well as the WAN: the network is the one that fabric plays on.
The driver stands on the global server's host, as does Ray's head.

1. The experiment is played. Meanwhile somebody without a key, on a host of another region, tries all ports on which an
   LPS listens.
2. It is played again; when it has a checkpoint, everything on the first worker's host is killed. A new node is started
   there, and the run is resumed.

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
from contextlib import contextmanager, suppress
from pathlib import Path

import zmq

from testbed.emulation import netns
from testbed.emulation.network import EmulatedNetwork, Host
from testbed.experiment import load
from testbed.wan.plan import region_of

PORT = 6379
START_S, RUN_S = 120, 400
SYSTEMS = ("baseline", "terngrad")
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
    return subprocess.Popen(
        [*attach, *command], env=os.environ | ENVIRONMENT, text=True, start_new_session=True, **options
    )


@contextmanager
def cluster(network: EmulatedNetwork, head: str) -> Iterator[str]:
    """Its address; every host is a node, labelled with its region."""
    address = f"{network.hosts[head].ip}:{PORT}"
    start_node(network, head, "--head", f"--port={PORT}", "--include-dashboard=false")
    await_port(network.hosts[head])
    for name in network.hosts:
        if name != head:
            start_node(network, name, f"--address={address}")
    yield address


def start_node(network: EmulatedNetwork, name: str, *where: str) -> None:
    """Start Ray on a host, whose /tmp/ray is its own."""
    host = network.hosts[name]
    on(host, "sh", "-c", "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray").wait()
    own = [f"--node-ip-address={host.ip}", "--object-store-memory=83886080", f"--labels=region={region_of(name)}"]
    on(host, *RAY, *where, *own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def await_port(host: Host) -> None:
    until_s = time.monotonic() + START_S
    while PORT not in listening(host):
        assert time.monotonic() < until_s, "Ray's head does not start"
        time.sleep(0.2)


def listening(host: Host) -> list[int]:
    """TCP ports on which somebody listens on a host."""
    found = set()
    for line in Path(f"/proc/{host.netns_pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == LISTENING:
            found.add(int(local.partition(":")[2], 16))
    return sorted(found)


def exchange_as_stranger(here: Host, there: Host, ports: list[int]) -> dict[str, int]:
    """What somebody without a key gets from each port: by TCP, by ZeroMQ, and by ZeroMQ with a key of its own."""
    got = {"tcp": 0, "plain": 0, "own key": 0}
    with netns.enter(here.netns_pid):
        context = zmq.Context()
        for port in ports:
            with socket.create_connection((there.ip, port), 5) as stream:
                stream.settimeout(1.0)
                stream.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
                with suppress(OSError):
                    got["tcp"] += len(stream.recv(1 << 16)[64:])  # a greeting (ZMTP) is no message
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


class Driver:
    """Runs of the testbed from the head's host."""

    def __init__(self, host: Host, address: str, out: Path) -> None:
        self._host, self._address, self.out = host, address, out

    def start(self, *words: str) -> None:
        command = [sys.executable, "-P", "-m", "testbed", "run", "--ray", self._address, "--quiet", *words]
        self.process = on(self._host, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def await_checkpoint(self, number: int) -> None:
        """Wait until the baseline of run `number` has been saved."""
        until_s = time.monotonic() + RUN_S
        while len([*self.out.glob("*/*/baseline/seed-0/checkpoint-*/clock.json")]) < 1 or len(self.runs) < number:
            assert time.monotonic() < until_s and self.process.poll() is None, self.process.communicate()
            time.sleep(0.1)

    def end(self) -> dict[str, object]:
        output, errors = self.process.communicate(timeout=RUN_S)
        return {"status": self.process.returncode, "output": output, "errors": errors}

    @property
    def runs(self) -> list[Path]:
        return sorted(self.out.glob("*/*"))


def main(folder: Path, settings: list[str]) -> None:
    it = load.load("cifarnet", load.parse_changes(settings), "", SYSTEMS, plugins=[str(folder / "slow.py")])[
        0
    ].experiment
    changes = [word for setting in settings for word in ("--set", setting)]
    asked = [
        "cifarnet",
        "--fabric",
        "cluster",
        "--plugin",
        str(folder / "slow.py"),
        "--out",
        str(folder / "out"),
        *changes,
    ]
    said: dict[str, object] = {}
    with EmulatedNetwork(it.plan) as network, cluster(network, it.roles.global_server) as address:
        lps, far, doomed = (
            network.hosts[name] for name in (it.roles.lpss[0], it.roles.workers[-1], it.roles.workers[0])
        )
        await_nodes(network.hosts[it.roles.global_server], address, len(network.hosts))
        driver = Driver(network.hosts[it.roles.global_server], address, folder / "out")

        driver.start(*asked, "--systems", ",".join(SYSTEMS))
        driver.await_checkpoint(1)
        ports = [port for port in listening(lps) if port in range(*it.cluster.port_range)]
        said["stranger"] = exchange_as_stranger(far, lps, ports) | {"ports": len(ports)}
        said["whole"] = driver.end()

        driver.start(*asked, "--systems", SYSTEMS[0])
        driver.await_checkpoint(2)
        kill_all_on(doomed)
        said["killed"] = driver.end()
        start_node(network, it.roles.workers[0], f"--address={address}")
        await_nodes(network.hosts[it.roles.global_server], address, len(network.hosts))
        driver.start("--resume", str(driver.runs[-1]))
        said["resumed"] = driver.end()
    print(json.dumps(said))


def await_nodes(head: Host, address: str, number: int) -> None:
    """Wait until so many nodes have joined."""
    count = (
        f"import ray; ray.init(address='{address}', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
    )
    until_s = time.monotonic() + START_S
    while on(head, sys.executable, "-P", "-c", count, stdout=subprocess.PIPE).communicate()[0].strip() != str(number):
        assert time.monotonic() < until_s, "some node does not join"


def kill_all_on(host: Host) -> None:
    """Kill every process in the network namespace of a host, but what keeps it."""
    network = Path(f"/proc/{host.netns_pid}/ns/net").readlink()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "ns" / "net").readlink() == network and int(path.name) != host.netns_pid:
                os.kill(int(path.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
