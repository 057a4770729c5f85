"""One port of one host, reachable on this machine's loopback.

The listening socket is made before the sandbox and inherited: a socket belongs to the network namespace in which it
was made for good, so what connects to it comes from the machine, and each connection is continued by one that is made
inside the host's own namespace. These bytes cross no link of the emulated network.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Thread

from testbed.emulation import netns
from testbed.emulation.network import EmulatedNetwork
from testbed.errors import InputError
from testbed.programs.hosts import one_of
from testbed.wan.plan import NetworkPlan

LOOPBACK = "127.0.0.1"
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Published:
    """A port of a host, and the socket that listens for it on the machine."""

    host: str
    port: int
    listener: socket.socket

    @property
    def local_port(self) -> int:
        return int(self.listener.getsockname()[1])


def listen(asked: Sequence[str], plan: NetworkPlan) -> list[Published]:
    """Listen on the loopback for each "HOST:PORT=LOCAL", with sockets that a child inherits where it is told to.

    Raises
    ------
    InputError
        It is not of this form, there is no such host, or LOCAL is in use.
    """
    found = []
    for text in asked:
        host, port, local = _parsed(text, plan)
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, local))
            listener.listen()
        except OSError as error:
            why = error.strerror or str(error)
            raise InputError(f"--publish {text}: port {local} of this machine: {why}; take another one") from None
        found.append(Published(host, port, listener))
    return found


def inherited(asked: Sequence[str], descriptors: Sequence[int], plan: NetworkPlan) -> list[Published]:
    """The same inside the sandbox, of the sockets that `listen` made before."""
    parsed = [_parsed(text, plan) for text in asked]
    return [
        Published(host, port, socket.socket(fileno=descriptor))
        for (host, port, _), descriptor in zip(parsed, descriptors, strict=True)
    ]


def _parsed(text: str, plan: NetworkPlan) -> tuple[str, int, int]:
    found = re.fullmatch(r"([^:=]+):(\d{1,5})=(\d{1,5})", text)
    if not found or not all(1 <= int(port) <= 65535 for port in found.groups()[1:]):
        raise InputError(f"--publish {text}: it is not like us-east-1-h0:8080=9000, with ports from 1 to 65535")
    return one_of(plan, found[1], f"--publish {text}"), int(found[2]), int(found[3])


@contextmanager
def published(network: EmulatedNetwork, ports: Sequence[Published]) -> Iterator[None]:
    """Within it, what connects to the sockets reaches the hosts."""
    for each in ports:
        Thread(target=_accept, args=(network, each), name=f"port {each.local_port}", daemon=True).start()
    try:
        yield
    finally:
        for each in ports:
            with suppress(OSError):
                each.listener.shutdown(socket.SHUT_RDWR)  # ends the accept that a thread is in
            each.listener.close()


def _accept(network: EmulatedNetwork, each: Published) -> None:
    host = network.hosts[each.host]
    with suppress(OSError):  # closed: the network is taken down
        while True:
            outer, _ = each.listener.accept()
            try:
                with netns.enter(host.netns_pid):
                    inner = socket.create_connection((host.ip, each.port))
            except OSError:
                outer.close()  # nobody listens there yet
                continue
            for source, sink in ((outer, inner), (inner, outer)):
                Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Hand on one direction of a connection, its end as well."""
    with suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
