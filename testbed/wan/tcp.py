"""What TCP itself costs a connection of the virtual network: `[network]` of an experiment file.

By default nothing, because the emulated network is set up so that it costs nothing there: connections are warmed up
before step 0 and keep their window when idle (`tcp_slow_start_after_idle` is 0), and their window is at least 1.5
times what the link holds (`window_bytes`), so a message takes size / rate + delay after
an idle second as well as back to back (`testbed fidelity` holds it to 2 %). With Linux's own settings the first 4 MiB
over 99 Mbit/s and 60 ms took 0.70 s and the next 0.40 s; `slow_start` makes it 0.66 s and 0.37 s here.

The options are for asking what an untuned host would do to a system: many short messages with pauses between them
pay slow start each time, and a window of 64 kB over 60 ms carries 8.7 Mbit/s, whatever the link could.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.message import SEGMENT_BYTES
from testbed.wan.profile import Link

INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES  # RFC 6928
LEAST_TIMEOUT_S = 0.2  # Linux's retransmission timeout is the round trip and at least this (TCP_RTO_MIN)
OPENED = 3.0  # round trips until a connection of roles carries its first message: TCP's handshake, ZeroMQ's after it
MOST_TIMEOUT_S = 120.0  # and doubles with every retransmission up to this (TCP_RTO_MAX)
# Receive windows are 65535 << scale: recent kernels forget a finer bound set on a route, but never the scale.
WINDOW_UNIT_BYTES, MOST_WINDOW_SCALE = 65_535, 13  # 537 MB: four of them are the largest buffer that Linux takes
WINDOW_PRODUCTS, WINDOW_SLACK_S = 1.5, 4e-3  # products; what the end hosts may take to answer


class Tcp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[network]`: TCP as the virtual network models it; the emulated network has a TCP of its own.

    Parameters
    ----------
    tcp_window_kb : window of every connection in units of 1,000 bytes: at most so much is under way at any time, so
        its rate is at most window / RTT; None for no limit
    slow_start : a connection that is new, or has been idle for its retransmission timeout, starts with ten segments a
        round trip and doubles that every round trip (RFC 5681, 6928; Linux with `tcp_slow_start_after_idle` = 1).
        Connections are new at every checkpoint, where real ones would have been idle for the evaluation.
    """

    tcp_window_kb: Annotated[float, msgspec.Meta(ge=SEGMENT_BYTES / 1000)] | None = None
    slow_start: bool = False

    @property
    def is_free(self) -> bool:
        """Whether TCP costs nothing."""
        return not self.asked

    @property
    def asked(self) -> list[str]:
        """The keys that ask for something."""
        return [key for key, value in msgspec.structs.asdict(self).items() if value]


def window_bytes(link: Link) -> int:
    """The receive window of a connection over a WAN link: one that keeps it full, with half in reserve.

    A link that holds more than 358 MB, as 5 Gbit/s over 0.6 s, has the largest there is.
    """
    needed = WINDOW_PRODUCTS * link.bytes_per_s * (link.rtt_ms / 1e3 + WINDOW_SLACK_S)
    scale = 0
    while scale < MOST_WINDOW_SCALE and WINDOW_UNIT_BYTES << scale < needed:
        scale += 1
    return WINDOW_UNIT_BYTES << scale


def measured_s(rtt_s: float, bytes_per_s: float, window: float, nbytes: float) -> float:
    """The round trip that TCP has measured when `nbytes` have gone over an empty path: their queue is part of it.

    The last of them have waited for those before, which were sent at once, as far as the window allows.
    """
    return min(rtt_s + nbytes / bytes_per_s, max(rtt_s, window / bytes_per_s))


def retry_s(since_s: float, now_s: float, round_s: float, alone: bool = False) -> tuple[float, bool]:
    """When TCP sends again, now or later, what was sent when nothing has been acknowledged since `since_s`.

    A probe of the last segment goes out after two of the round trips `round_s` that TCP has measured, or, if that
    segment is `alone`, after a timeout (RFC 8985, 7.2); the first retransmission a timeout after that, and each further
    one after twice the time of the one before (RFC 6298, 5.5), up to two minutes.

    Returns
    -------
    The time, and whether a timeout has run out by then.
    """
    wait_s = round_s + LEAST_TIMEOUT_S
    sent_s, timed_out = since_s + (wait_s if alone else min(2 * round_s, wait_s)), False
    while sent_s < now_s:
        sent_s, timed_out = sent_s + wait_s, True
        wait_s = min(2 * wait_s, MOST_TIMEOUT_S)
    return sent_s, timed_out
