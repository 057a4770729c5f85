"""TCP's window, where it costs something on the virtual network: with options of `wan.tcp`, and after an outage."""

from __future__ import annotations

from math import inf

from testbed.message import SEGMENT_BYTES
from testbed.wan.tcp import INITIAL_WINDOW_BYTES, LEAST_TIMEOUT_S, Tcp


class Window:
    """What a connection may send before it hears from the receiver.

    Bytes go in rounds of at most the window, as fast as the links let them; a round begins when the first bytes
    of the one before are acknowledged, a round trip after it began, or when it has been sent, if that is later.
    With slow start, as after a loss in any case, the window grows by what a round sent, unless less than half of it was
    used or, where nothing was lost, the round filled the path for its whole time. With slow start it halves with every
    retransmission timeout without traffic. After a loss slow start ends at half of what the window was, and from there
    on it grows by a segment a round that uses all of it (Reno, as the emulated network has it; RFC 5681, 3.1).

    Parameters
    ----------
    rtt_s : the path's round trip

    Attributes
    ----------
    sent_s : when the last that was taken was sent
    size : in bytes
    """

    __slots__ = ("_began_s", "_forgets", "_grows", "_left", "_limit", "_threshold", "rtt_s", "sent_s", "size")

    def __init__(self, tcp: Tcp, rtt_s: float) -> None:
        self.rtt_s = rtt_s
        self._grows = self._forgets = tcp.slow_start
        self._limit = inf if tcp.tcp_window_kb is None else 1e3 * tcp.tcp_window_kb
        self.size = min(INITIAL_WINDOW_BYTES, self._limit) if self._grows else self._limit
        self._threshold = inf
        self._left = self.size
        self._began_s = self.sent_s = -inf

    @property
    def next_round_s(self) -> float:
        return self._began_s + self.rtt_s

    def take(self, nbytes: float, now_s: float) -> float:
        """How many of `nbytes` may be sent now; none before `next_round_s` when that is 0."""
        if now_s >= self.next_round_s:
            if self._grows and self._began_s > -inf:
                self._resize(now_s)
            self._began_s, self._left = now_s, self.size
        taken = min(nbytes, self._left)
        self._left -= taken
        return taken

    def lose(self, begins_anew: bool, most: float) -> None:
        """Something that was sent is lost: begin with one segment, or go on with half the window.

        `most`: what a window can have come to that nothing has limited yet.
        """
        self._threshold = max(min(self.size, most) / 2, 2.0 * SEGMENT_BYTES)
        self.size = float(SEGMENT_BYTES) if begins_anew else self._threshold
        self._grows = True
        self._began_s = self.sent_s = -inf

    def begin(self) -> None:
        """A connection that is new, whatever a warmed-up one costs: slow start from ten segments (RFC 6928)."""
        self._grows, self.size, self._threshold = True, min(INITIAL_WINDOW_BYTES, self._limit), inf

    def sent(self, now_s: float) -> None:
        """What was taken has been sent."""
        self.sent_s = now_s

    def _resize(self, now_s: float) -> None:
        used = self.size - self._left
        if self.size >= self._threshold:
            self.size += SEGMENT_BYTES if not self._left else 0
        elif 2 * used > self.size and (self.sent_s < self.next_round_s or self._threshold < inf):
            self.size = min(self.size + used, self._threshold)
        self.size = min(self.size, self._limit)
        if not self._forgets:
            return
        timeouts = (now_s - self.sent_s) / (self.rtt_s + LEAST_TIMEOUT_S)
        if timeouts >= 1:
            least = min(INITIAL_WINDOW_BYTES, self._limit)
            self.size = max(least, self.size * 0.5 ** min(timeouts // 1, 64))
