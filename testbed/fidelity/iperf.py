"""Goodput between two hosts with iperf3, where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any, Self

from testbed.emulation import netns
from testbed.emulation.network import EmulatedNetwork
from testbed.errors import NetworkError

PORT = 5201  # each host has a network namespace of its own
PATIENCE_S = 20.0


def version() -> str:
    """ "iperf 3.12", or "" where it is not installed."""
    program = shutil.which("iperf3")
    if not program:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split()[:2])


class Iperf:
    """One test from host `src` to host `dst`: the server runs from here on, `start` begins, `goodput_mbit` waits.

    Parameters
    ----------
    seconds : length of what counts
    skip_s : time before that in which TCP starts up; not counted
    port : of the server; tests at the same time to the same host need different ones

    Raises
    ------
    NetworkError
        The server did not start.
    """

    def __init__(
        self, network: EmulatedNetwork, src: str, dst: str, seconds: int, skip_s: int, port: int = PORT
    ) -> None:
        self.name = f"{src} to {dst}"
        self._seconds, self._skip_s, self._port = seconds, skip_s, port
        self._from, self._to = network.hosts[src], network.hosts[dst]
        with netns.enter(self._to.netns_pid):
            self._server = subprocess.Popen(
                ["iperf3", "--server", "--one-off", "--forceflush", "--port", str(port)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        self._client: subprocess.Popen[bytes] | None = None
        assert self._server.stdout
        if not any(b"listening" in line for line in self._server.stdout):
            self.close()
            raise NetworkError(f"iperf3 {self.name}: the server did not start")

    def start(self) -> Self:
        """Start the client."""
        times = ["--time", str(self._seconds), "--omit", str(self._skip_s)]
        with netns.enter(self._from.netns_pid):
            self._client = subprocess.Popen(
                ["iperf3", "--client", self._to.ip, "--port", str(self._port), *times, "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self

    def goodput_mbit(self) -> float:
        """What the receiver counted (10^6 bit/s).

        Raises
        ------
        NetworkError
            The test failed; the message is iperf3's.
        """
        assert self._client
        limit_s = self._seconds + self._skip_s + PATIENCE_S
        try:
            output, _ = self._client.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise NetworkError(f"iperf3 {self.name}: no end after {limit_s:g} s") from None
        finally:
            self.close()
        return received_mbit(json.loads(output or b"{}"), self.name)

    def close(self) -> None:
        """End both processes; safe to call twice."""
        for process in (self._client, self._server):
            if process is None:
                continue
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


def received_mbit(answer: dict[str, Any], name: str) -> float:
    """The receiver's goodput in a client's JSON."""
    if "error" in answer or "end" not in answer:
        raise NetworkError(f"iperf3 {name}: {answer.get('error', 'no answer')}")
    return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6
