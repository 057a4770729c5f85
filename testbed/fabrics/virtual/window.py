"""TCP's window, where it costs something on the virtual network: with options of `wan.tcp`, and after an outage."""

from __future__ import annotations

from math import inf

from testbed.message import SEGMENT_BYTES
from testbed.wan.tcp import INITIAL_WINDOW_BYTES, LEAST_TIMEOUT_S, Tcp


class Window:
    """What a connection may send before it hears from the receiver.

    Bytes go in rounds of at most the window, as fast as the links let them; a round begins when the first bytes
    of the one before are acknowledged, a round trip after it began, or when it has been sent, if that is later.
    With slow start, as after a retransmission timeout in any case, the window grows by what a round sent, unless less
    than half of it was used or the round filled the path for its whole time. With slow start it halves with every
    retransmission timeout without traffic.

    Parameters
    ----------
    rtt_s : the path's round trip
    """

    __slots__ = ("_began_s", "_forgets", "_grows", "_left", "_limit", "_sent_s", "_size", "rtt_s")

    def __init__(self, tcp: Tcp, rtt_s: float) -> None:
        self.rtt_s = rtt_s
        self._grows = self._forgets = tcp.slow_start
        self._limit = inf if tcp.tcp_window_kb is None else 1e3 * tcp.tcp_window_kb
        self._size = min(INITIAL_WINDOW_BYTES, self._limit) if self._grows else self._limit
        self._left = self._size
        self._began_s = self._sent_s = -inf

    @property
    def next_round_s(self) -> float:
        return self._began_s + self.rtt_s

    def take(self, nbytes: float, now_s: float) -> float:
        """How many of `nbytes` may be sent now; none before `next_round_s` when that is 0."""
        if now_s >= self.next_round_s:
            if self._grows and self._began_s > -inf:
                self._resize(now_s)
            self._began_s, self._left = now_s, self._size
        taken = min(nbytes, self._left)
        self._left -= taken
        return taken

    def restart(self) -> None:
        """A retransmission timeout: begin with one segment (RFC 5681, 3.1)."""
        self._grows, self._size = True, float(SEGMENT_BYTES)
        self._began_s = self._sent_s = -inf

    def begin(self) -> None:
        """A connection that is new, whatever a warmed-up one costs: slow start from ten segments (RFC 6928)."""
        self._grows, self._size = True, min(INITIAL_WINDOW_BYTES, self._limit)

    def sent(self, now_s: float) -> None:
        """What was taken has been sent."""
        self._sent_s = now_s

    def _resize(self, now_s: float) -> None:
        used = self._size - self._left
        if 2 * used > self._size and self._sent_s < self.next_round_s:
            self._size = min(self._size + used, self._limit)
        if not self._forgets:
            return
        timeouts = (now_s - self._sent_s) / (self.rtt_s + LEAST_TIMEOUT_S)
        if timeouts >= 1:
            least = min(INITIAL_WINDOW_BYTES, self._limit)
            self._size = max(least, self._size * 0.5 ** min(timeouts // 1, 64))
