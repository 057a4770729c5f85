"""Goodput between two hosts with iperf3, where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from testbed.errors import NetworkError
from testbed.fabrics.emulation import netns
from testbed.fabrics.emulation.network import EmulatedNetwork

PORT = 5201  # each host has a network namespace of its own
START_S, PATIENCE_S = 5.0, 20.0


def version() -> str:
    """ "iperf 3.12", or "" where it is not installed."""
    program = shutil.which("iperf3")
    if not program:
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return " ".join(done.stdout.split()[:2])


class Iperf:
    """One test from host `src` to host `dst`; it runs from here on, `goodput_mbit` waits for it.

    Parameters
    ----------
    seconds : length of what counts
    skip_s : time before that in which TCP starts up; not counted
    port : of the server; tests at the same time to the same host need different ones
    """

    def __init__(
        self, network: EmulatedNetwork, src: str, dst: str, seconds: float, skip_s: float, port: int = PORT
    ) -> None:
        self.name = f"{src} to {dst}"
        self._seconds = seconds + skip_s
        common = ["--port", str(port), "--json"]
        server, client = network.hosts[dst], network.hosts[src]
        with netns.enter(server.netns_pid):
            self._server = subprocess.Popen(
                ["iperf3", "--server", "--one-off", "--forceflush", "--port", str(port)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        self._await_server()
        length = ["--time", f"{seconds:g}", "--omit", f"{skip_s:g}"]
        with netns.enter(client.netns_pid):
            self._client = subprocess.Popen(
                ["iperf3", "--client", server.ip, *length, *common], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )

    def _await_server(self) -> None:
        assert self._server.stdout
        for line in self._server.stdout:
            if b"listening" in line:
                return
        raise NetworkError(f"iperf3 {self.name}: the server did not start")

    def goodput_mbit(self) -> float:
        """What the receiver counted (10^6 bit/s).

        Raises
        ------
        NetworkError
            The test failed; the message is iperf3's.
        """
        try:
            output, _ = self._client.communicate(timeout=self._seconds + PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise NetworkError(f"iperf3 {self.name}: no end after {self._seconds + PATIENCE_S:g} s") from None
        finally:
            self.close()
        return received_mbit(json.loads(output or "{}"), self.name)

    def close(self) -> None:
        """End both processes."""
        for process in (self._client, self._server):
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream:
                    stream.close()


def received_mbit(answer: dict[str, Any], name: str) -> float:
    """The receiver's goodput in a client's JSON."""
    if "error" in answer or "end" not in answer:
        raise NetworkError(f"iperf3 {name}: {answer.get('error', 'no answer')}")
    return float(answer["end"]["sum_received"]["bits_per_second"]) / 1e6
