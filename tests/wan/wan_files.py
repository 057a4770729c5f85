"""Logs and tables as other tools write them, for the tests of the importers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")  # iperf3 3.12 over loopback, without the machine's name


def log(
    mbit: float | list[float],
    client: str = "10.0.0.1",
    server: str = "10.0.0.2",
    *,
    streams: int = 1,
    reverse: bool = False,
    rtt_us: int = 12_000,
) -> dict[str, Any]:
    """A client's log with the keys that matter; `mbit` is what the receiver counted, or that of each second."""
    course = mbit if isinstance(mbit, list) else [mbit]

    def rate(value: float, start: float, end: float) -> dict[str, Any]:
        size = value * 1e6 / 8 * (end - start)
        return {"start": start, "end": end, "seconds": end - start, "bytes": size, "bits_per_second": value * 1e6}

    total = rate(sum(course) / len(course), 0.0, float(len(course)))
    sender = {"min_rtt": 0 if reverse else rtt_us, "sender": not reverse}
    connection = {"local_host": client, "remote_host": server, "socket": 5}
    return {
        "start": {
            "connected": [connection] * streams,
            "version": "iperf 3.12",
            "test_start": {"protocol": "TCP", "num_streams": streams, "reverse": int(reverse)},
        },
        "intervals": [{"sum": {**rate(value, k, k + 1.0), "omitted": False}} for k, value in enumerate(course)],
        "end": {"streams": [{"sender": sender}] * streams, "sum_sent": total, "sum_received": total},
    }


def write_log(path: Path, *logs: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(each, indent=1) for each in logs))
    return path
