"""What TCP itself costs a connection of the virtual network: `[network]` of an experiment file.

By default nothing, because the emulated network is set up so that it costs nothing there: connections are warmed up
before step 0 and keep their window when idle (`tcp_slow_start_after_idle` is 0), and their window is at least 1.5
times what the link holds (`emulation.links.wan_window_bytes`), so a message takes size / rate + delay after
an idle second as well as back to back (`testbed fidelity` holds it to 2 %). With Linux's own settings the first 4 MiB
over 99 Mbit/s and 60 ms took 0.70 s and the next 0.40 s; `slow_start` makes it 0.66 s and 0.37 s here.

The options are for asking what an untuned host would do to a system: many short messages with pauses between them
pay slow start each time, and a window of 64 kB over 60 ms carries 8.7 Mbit/s, whatever the link could.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from testbed.message import SEGMENT_BYTES

INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES  # RFC 6928
LEAST_TIMEOUT_S = 0.2  # Linux's retransmission timeout is the round trip and at least this (TCP_RTO_MIN)
OPENED = 3.0  # round trips until a connection of roles carries its first message: TCP's handshake, ZeroMQ's after it
FILLED = 1.5  # round trip of a path that is filled, against that of an empty one (`emulation.links.wan_window_bytes`)
MOST_TIMEOUT_S = 120.0  # and doubles with every retransmission up to this (TCP_RTO_MAX)


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


def retry_s(since_s: float, now_s: float, rtt_s: float) -> float:
    """When TCP sends again, now or later, what was sent when nothing has been acknowledged since `since_s`.

    The round trip that TCP has measured is that of a path which its window fills, queue included.
    A probe of the last segment goes out after two round trips (RFC 8985, 7.2), the first retransmission a timeout
    after that, and each further one after twice the time of the one before (RFC 6298, 5.5), up to two minutes.
    """
    measured_s = FILLED * rtt_s
    sent_s, wait_s = since_s + 2 * measured_s, measured_s + LEAST_TIMEOUT_S
    while sent_s < now_s:
        sent_s += wait_s
        wait_s = min(2 * wait_s, MOST_TIMEOUT_S)
    return sent_s
