"""A role's sockets on a node of a cluster: at the node's address only, authenticated and encrypted (CurveZMQ).

Theory of operation
1. Each role makes a pair of keys for itself, for this run. Its public key is handed to its neighbours through Ray; the
   secret one never leaves the role's process.
2. Who connects knows the public key of whom it wants to reach, so nobody else can answer in its place. Who listens
   admits one key on each of its sockets, that of the one peer the socket is for (ZAP, RFC 27).
3. Whoever has no such key gets no further than the handshake: no message reaches it, and none of its own is read. It
   cannot be told from the peer by what ZeroMQ says of a lost connection, so that only the end that has connected
   watches a connection; there is one at each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import SystemRandom

import zmq
import zmq.asyncio
from zmq.auth.thread import ThreadAuthenticator

from testbed.errors import RunError
from testbed.fabrics.actors.wire import dealer

HANDSHAKE_MS = 10_000  # a stranger who says nothing is hung up on
BACKLOG = 16


@dataclass(frozen=True)
class Sign:
    """What others need to know of a role: its public key (b"" where nothing is encrypted), and where it listens.

    `addresses` are by the peer that each is for: "tcp://10.0.0.3:41234".
    """

    key: bytes
    addresses: Mapping[str, str]


class Doors:
    """The sockets of one role, one a peer.

    Parameters
    ----------
    address : the node's, as other nodes reach it
    encrypted : whether sockets are authenticated and encrypted
    ports : the first and the last port to listen on; None for any that is free
    max_bytes : larger frames are refused

    Attributes
    ----------
    context, sockets : ZeroMQ's; sockets are by peer
    dialed : the peers that this role has connected to
    """

    def __init__(self, address: str, encrypted: bool, ports: tuple[int, int] | None, max_bytes: int) -> None:
        self.context = zmq.asyncio.Context(io_threads=1)
        self.sockets: dict[str, zmq.asyncio.Socket] = {}
        self.dialed: set[str] = set()
        self._address, self._ports, self._max_bytes = address, ports, max_bytes
        self._public, self._secret = zmq.curve_keypair() if encrypted else (b"", b"")
        self._listening: dict[str, str] = {}
        self._porter = ThreadAuthenticator(self.context) if encrypted else None  # a thread: the role's own computes
        if self._porter:
            self._porter.start()

    @property
    def encrypted(self) -> bool:
        """Whether they are authenticated and encrypted."""
        return self._porter is not None

    def listen(self, peer: str) -> None:
        """Open a socket for `peer` to connect to.

        Raises
        ------
        RunError
            No port is free.
        """
        socket = self._new(peer)
        socket.set(zmq.BACKLOG, BACKLOG)
        if self._porter:
            socket.set(zmq.CURVE_SERVER, True)
            socket.set(zmq.CURVE_SECRETKEY, self._secret)
            socket.set_string(zmq.ZAP_DOMAIN, peer)
        if self._ports is None:
            socket.bind(f"tcp://{self._address}:*")
        else:
            self._bind_among(socket, *self._ports)
        self._listening[peer] = socket.get_string(zmq.LAST_ENDPOINT)

    def _bind_among(self, socket: zmq.asyncio.Socket, first: int, last: int) -> None:
        ports = list(range(first, last + 1))
        SystemRandom().shuffle(ports)  # other roles of the node look at the same time
        for port in ports:
            try:
                socket.bind(f"tcp://{self._address}:{port}")
            except zmq.ZMQError:
                continue
            return
        raise RunError(f"no free port from {first} to {last} at {self._address}; widen cluster.ports")

    @property
    def sign(self) -> Sign:
        """What others need to know to connect."""
        return Sign(self._public, dict(self._listening))

    def admit(self, peer: str, key: bytes) -> None:
        """Let `peer`, whose public key this is, and nobody else in where it is listened for."""
        if self._porter:
            self._porter.configure_curve_callback(peer, _Only(key))

    def dial(self, peer: str, address: str, key: bytes) -> None:
        """Connect to `peer`, whose public key this is."""
        socket = self._new(peer)
        if self._porter:
            socket.set(zmq.CURVE_SERVERKEY, key)
            socket.set(zmq.CURVE_PUBLICKEY, self._public)
            socket.set(zmq.CURVE_SECRETKEY, self._secret)
        socket.connect(address)
        self.dialed.add(peer)

    def _new(self, peer: str) -> zmq.asyncio.Socket:
        self.sockets[peer] = socket = dealer(self.context, self._max_bytes)
        socket.set(zmq.IPV6, ":" in self._address)
        socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        return socket

    def close(self) -> None:
        """Close the sockets, and those that watch them."""
        if self._porter:
            self._porter.stop()
        self.context.destroy(linger=0)


class _Only:
    """Knows one key; asked by ZeroMQ's authenticator."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key
