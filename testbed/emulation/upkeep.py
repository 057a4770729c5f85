"""Puts back what the kernel forgets when an interface goes down: the routes through it, and its neighbours.

An interface that comes up again has its address and its shaping still, but nothing would ever be sent on it: routes
and neighbours of this network are written down, not asked for. The kernel announces each change of an interface's
state in its own network namespace; one thread hears all namespaces and restores what has come up.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from threading import Thread

from testbed.emulation import netns
from testbed.emulation.links import RUNNING

RTMGRP_LINK, RTM_NEWLINK = 0x1, 16
HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
LINK = struct.Struct("=BxHiII")  # ifinfomsg: family, type, index, flags, change
RECEIVE_BYTES = 1 << 16


class Upkeep:
    """Hears how the interfaces of several nodes come and go, in a thread of its own, until it is closed.

    Parameters
    ----------
    nodes : of each node its name and a process in its network namespace
    heard : is told of each change: the node, the interface's index, and whether both its ends are up now
    """

    def __init__(self, nodes: Iterable[tuple[str, int]], heard: Callable[[str, int, bool], None]) -> None:
        self._heard = heard
        self._sockets = {_listener(pid): name for name, pid in nodes}
        self._end, self._ended = socket.socketpair()
        self._thread = Thread(target=self._listen, name="upkeep", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        poll = select.poll()
        for each in (*self._sockets, self._ended):
            poll.register(each, select.POLLIN)
        named = {each.fileno(): (each, name) for each, name in self._sockets.items()}
        while True:
            for descriptor, _ in poll.poll():
                if descriptor not in named:
                    return
                each, name = named[descriptor]
                for index, up in _changes(each):
                    self._heard(name, index, up)

    def close(self) -> None:
        """Hear no more."""
        self._end.close()
        self._thread.join()
        for each in (*self._sockets, self._ended):
            each.close()


def _listener(pid: int) -> socket.socket:
    with netns.enter(pid):
        found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    found.bind((0, RTMGRP_LINK))
    return found


def _changes(listener: socket.socket) -> Iterator[tuple[int, bool]]:
    """Indexes of the interfaces that have changed, in order, and whether both ends of each are up now."""
    while True:
        try:
            data = listener.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:  # more than the socket holds: later ones still come
            continue
        while len(data) >= HEADER.size + LINK.size:
            length, kind, *_ = HEADER.unpack_from(data)
            if kind == RTM_NEWLINK:
                _, _, index, flags, _ = LINK.unpack_from(data, HEADER.size)
                yield index, flags & RUNNING == RUNNING
            data = data[max(length + 3 & ~3, HEADER.size) :]
