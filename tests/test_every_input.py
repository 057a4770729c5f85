"""Damaged input, kind by kind: it is read, or refused in one line; no traceback, no hang, no gigabytes.

`FUZZ_INPUTS=100000 FUZZ_SEED=2 pytest tests/test_every_input.py` damages each kind so many times, and otherwise than
any other seed. Records and coded messages have their own: `test_every_record.py`, `test_every_decoder.py`.
"""

from __future__ import annotations

import json
import os
import random
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import process_time

import msgspec
import numpy as np
import pytest
import torch
from small_runs import PLAIN, each_system, toml

from testbed.errors import TestbedError
from testbed.experiment.load import load, read_faults
from testbed.message import Message
from testbed.programs import hosts, starts
from testbed.record import series
from testbed.record.series import SeriesInfo
from testbed.report.numbers import prices
from testbed.roles import state as state_file
from testbed.systems.protocols.replica import Replica
from testbed.wan import import_profile, import_trace, iperf3, measure, profile, trace
from testbed.workloads.optimizer import AdamState

ROOT = Path(__file__).parents[1]
TIMES = int(os.environ.get("FUZZ_INPUTS", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
MOST_BYTES, MOST_S = 100_000_000, 20.0
SIZE = 10_000
NUMBERS = ["0", "-1", "-0.0", "1e309", "-1e309", "nan", "inf", "1e-320", "9" * 40, "9" * 400, "0x7f", "1_0", "2.5.1"]
MARKS = [*"[]{}\"',=#%\n\r\t\0\\", "\x1b[2J", "é", "🙂", "../", "$HOME", "\\u0000"]


@dataclass(frozen=True)
class Case:
    """A kind of input: a sound one, the file it stands in, and what reads it."""

    sound: bytes
    name: str
    read: Callable[[Path], object]


def _saved_state(path: Path) -> bytes:
    state_file.save(path, _state())
    return path.read_bytes()


def _state() -> Replica:
    weights = torch.zeros(300)
    return Replica(3, weights, AdamState(torch.zeros(300), torch.zeros(300), 3), None)


def _iperf3() -> bytes:
    host = {"local_host": "10.0.0.1", "remote_host": "10.0.0.2", "socket": 5}
    each = {"bytes": 11_250_000, "seconds": 1.0, "bits_per_second": 9e7}
    intervals = [{"sum": {**each, "start": float(k), "end": k + 1.0}, "streams": []} for k in range(5)]
    end = {"sum_sent": each, "sum_received": each, "streams": [{"sender": {"mean_rtt": 40_000}}]}
    start = {"connected": [host], "test_start": {"protocol": "TCP"}}
    return json.dumps({"start": start, "intervals": intervals, "end": end}).encode()


def _message() -> bytes:
    """A message's frames, the length of each in a byte before it."""
    frames = [bytes(frame) for frame in Message("mean", 3, [np.zeros(25)], (1.0, 2.0)).frames()]
    return b"".join(bytes([len(frame)]) + frame for frame in frames)


def _received(path: Path) -> Message:
    data, frames = memoryview(path.read_bytes()), []
    while len(data):
        frames.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    return Message.from_frames(frames)


def _sentences(path: Path) -> object:
    with suppress(UnicodeDecodeError):
        return read_faults(path.read_bytes().decode().splitlines(), "test")
    return None


def _state_of(path: Path) -> Replica:
    state = _state()
    state_file.load(path, state)
    return state


def _profile_of(path: Path) -> object:
    return profile.load(path.stem)


def _series() -> bytes:
    """The facts of a series of four runs, without the checksum that would find any damage before they are looked at."""
    points = {f"batch={batch}-lan={lan}": {"training.batch_size": batch} for batch in (16, 32) for lan in (1, 2)}
    places = {label: [{"batch": label[6:8]}, {"lan": label[-1]}] for label in points}
    return msgspec.json.encode(SeriesInfo("it", "virtual", "cpu", ("run",), (), points, False, places))


def _grid(path: Path) -> object:
    labels = series.read(path.parent).points
    return series.grid([path.parent / label for label in labels]) if labels else None


REGIONS = ("us-west-1", "us-east-1", "us-east-2")
SHIPPED = ROOT / "topologies"
PAIR = (REGIONS[0], REGIONS[1])
PLAN = hosts.plan_of(profile.load("weightgrad-ec2"), {"us-west-1": 2, "us-east-1": 1})
HOST = b'[[hosts]]\nregion = "r%d"\naddress = "10.0.0.%d"\ncommand = ["ssh", "h"]\n'
HOSTS = b"".join(HOST % (k, k) for k in range(3))
STARTS = b"""
[[start]]
hosts = "us-east-1-h0"
run = "sh -c 'echo a b'"
ready = "port 8080"
service = true
environment = { WHO = "me" }
[[start]]
hosts = ["us-west-1/h1", "us-west-1"]
run = ["sh", "-c", "true"]
ready = "line listening on 8080"
within_s = 5
"""
SQUARE = b"region,a,b,c\na,0,60,80\nb,60,0,20\nc,80,20,0\n"
COURSE = b"time_s,rate\n" + b"".join(b"%d,%d\n" % (k, 50 + k % 7) for k in range(60))
CSV = b"src,dst,rate\n" + b"".join(f"{a},{b},90\n".encode() for a in REGIONS for b in REGIONS if a != b)
SENTENCES = [
    "partition us-west-1 us-east-2 at 20s for 30s",
    "cut a=b at 1s for 5s every 30s",
    "slow */w0 factor=3 share=0.25 mtbf 5min mttr 20s seed=1",
    "kill us-east-1/lps restart=fresh at 1h for 500ms",
]
CASES: dict[str, Callable[[Path], Case]] = {
    "experiment": lambda folder: Case(toml(PLAIN).encode(), "it.toml", lambda path: load(str(path))),
    "shipped experiment": lambda folder: Case(
        (ROOT / "experiments/faults.toml").read_bytes(), "it.toml", lambda path: load(str(path))
    ),
    "faults": lambda folder: Case("\n".join(SENTENCES).encode(), "faults.txt", _sentences),
    "profile": lambda folder: Case(
        (SHIPPED / "profiles/weightgrad-ec2.toml").read_bytes(), "topologies/profiles/mutant.toml", _profile_of
    ),
    "profile's links": lambda folder: Case(
        (SHIPPED / "profiles/weightgrad-ec2.csv").read_bytes(), "topologies/profiles/mutant.csv", _profile_of
    ),
    "trace": lambda folder: Case(
        (SHIPPED / "traces/outage.csv").read_bytes(), "trace.csv", lambda path: trace.load(path, REGIONS)
    ),
    "prices": lambda folder: Case((SHIPPED / "prices.csv").read_bytes(), "prices.csv", prices.prices.__wrapped__),
    "iperf3": lambda folder: Case(_iperf3(), "log.json", iperf3.read),
    "joined iperf3 logs": lambda folder: Case(
        _iperf3() * 3, "east__west.json", lambda path: import_profile.from_iperf3([path], {})
    ),
    "iperf3's intervals": lambda folder: Case(
        _iperf3(), "east__west.json", lambda path: import_trace.from_iperf3([path], [], {}, 0.1)
    ),
    "mahimahi": lambda folder: Case(
        b"\n".join(b"%d" % (k * 7) for k in range(400)),
        "up.trace",
        lambda path: import_trace.from_mahimahi(path, [PAIR], 1.0, 0.1),
    ),
    "table of rates": lambda folder: Case(
        CSV, "rates.csv", lambda path: import_profile.from_csv(path, "Mbit/s", "rate")
    ),
    "table of round trips": lambda folder: Case(SQUARE, "rtt.csv", import_profile.read_rtt),
    "table of a course": lambda folder: Case(
        COURSE, "course.csv", lambda path: import_trace.from_csv(path, [PAIR], "Mbit/s", "rate", 0.1)
    ),
    "hosts to measure": lambda folder: Case(HOSTS, "hosts.toml", measure.read_hosts),
    "starts": lambda folder: Case(STARTS, "starts.toml", lambda path: starts.load(path, PLAN)),
    "series": lambda folder: Case(_series(), "series.json", _grid),
    "checkpoint": lambda folder: Case(_saved_state(folder / "sound.npz"), "state.npz", _state_of),
    "message": lambda folder: Case(_message(), "message", _received),
}


def damaged(sound: bytes, times: int) -> Iterator[bytes]:
    """The same ones each time, of a seed."""
    pick = random.Random(SEED)
    for _ in range(times):
        data = sound
        for _ in range(pick.choice((1, 1, 1, 2, 3, 8))):
            data = pick.choice((_flipped, _cut, _repeated, _number, _token, _marked, _short))(data, pick)
        yield data[:SIZE]


def _flipped(data: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(data) or 1)
    return data[:at] + bytes([pick.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, pick: random.Random) -> bytes:
    a, b = sorted(pick.randrange(len(data) + 1) for _ in range(2))
    return data[:a] + data[min(b, a + pick.choice((1, 8, 64))) :]


def _repeated(data: bytes, pick: random.Random) -> bytes:
    a, b = sorted(pick.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b] * pick.choice((1, 1, 3, 30)) + data[b:]


def _number(data: bytes, pick: random.Random) -> bytes:
    found = list(re.finditer(rb"\d+(\.\d+)?", data))
    if not found:
        return data
    one = pick.choice(found)
    return data[: one.start()] + pick.choice(NUMBERS).encode() + data[one.end() :]


def _token(data: bytes, pick: random.Random) -> bytes:
    found = list(re.finditer(rb"[\w.-]+", data))
    if not found:
        return data
    one, other = pick.choice(found), pick.choice(found)
    return data[: one.start()] + other[0] + data[one.end() :]


def _marked(data: bytes, pick: random.Random) -> bytes:
    at = pick.randrange(len(data) + 1)
    return data[:at] + pick.choice(MARKS).encode() * pick.choice((1, 1, 1, 500)) + data[at:]


def _short(data: bytes, pick: random.Random) -> bytes:
    return data[: pick.randrange(len(data) + 1)]


QUICK = ("experiment", "faults", "profile", "trace", "iperf3", "starts", "series", "checkpoint", "message")


@pytest.mark.parametrize("kind", each_system(CASES, *QUICK))
def test_it_is_read_or_refused_in_one_line(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[kind](tmp_path)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / case.name
    path.parent.mkdir(parents=True, exist_ok=True)
    for beside in (SHIPPED / "profiles").glob("weightgrad-ec2.*") if path.stem == "mutant" else ():
        path.with_suffix(beside.suffix).write_bytes(beside.read_bytes())
    path.write_bytes(case.sound)
    case.read(path)  # the sound one is read
    refused = 0
    tracemalloc.start()
    try:
        for number, data in enumerate(damaged(case.sound, TIMES)):
            path.write_bytes(data)
            tracemalloc.reset_peak()
            before, began_s = tracemalloc.get_traced_memory()[0], process_time()
            try:
                case.read(path)
            except TestbedError as error:
                refused += 1
                assert str(error).strip() and "\n" not in str(error), (number, str(error))
            except Exception as error:
                raise AssertionError(f"{kind} number {number} of {data!r}") from error
            assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES, (number, data)
            assert process_time() - began_s < MOST_S, (number, data)  # of this process: others may keep it waiting
    finally:
        tracemalloc.stop()
    assert refused > TIMES / 10
