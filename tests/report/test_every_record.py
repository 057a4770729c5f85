"""Damaged records, file by file: the same numbers, or a line that names the file; no traceback, no gigabytes.

`FUZZ_RECORDS=2000 pytest tests/report/test_every_record.py` damages each kind of file so many times.
"""

from __future__ import annotations

import os
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from small_runs import EXCHANGING, experiment, start, use_small_data

from testbed.errors import InputError
from testbed.harness import checkpoint
from testbed.harness.checkpoint import Clock
from testbed.record import frames, program
from testbed.record.events import Capacity, Cut, Event, LinkBytes, Mark
from testbed.record.info import LinkInfo, MetricInfo, RunInfo, read_info, write_info
from testbed.record.program import ProgramInfo
from testbed.record.recorder import Recorder
from testbed.report.numbers import carried, courses
from testbed.report.numbers.curves import curves_of
from testbed.report.numbers.summary import read
from testbed.report.numbers.tables import csv
from testbed.report.numbers.traffic import sent_by_workers, traffic
from testbed.report.page import write_page
from testbed.report.write import write_report
from testbed.workloads.data.records import Records

TIMES = int(os.environ.get("FUZZ_RECORDS", "12"))
MOST_BYTES = 100_000_000
Told = tuple[str, list[str]]
Report = Callable[[Path], Told]
"""What is made of a record: its numbers as text, and what it is said to lack."""


def of_run(folder: Path) -> Told:
    run, frame = read(folder)
    lines = [csv(frame), traffic(run).to_csv(), str(sent_by_workers(run)), str(run.info.network)]
    lines += [f"{curve.system} {curve.raw} {curve.smooth}" for curve in curves_of(run)]
    finished = [result for result in run.results if len(result.steps)]
    lines += [str(course) for course in courses.courses_of(run, finished)] if finished else []
    lines += [result.events.to_csv() for result in run.results]
    return "\n".join(lines), run.missing


def of_program(folder: Path) -> Told:
    found = carried.read(folder)
    lines = [carried.sentence(found.info), str(carried.link_cells(found)), str(carried.host_cells(found))]
    lines += [str(found.rate(link)) for link in found.info.network] + [str(found.marks)]
    return "\n".join(lines), found.missing


def of_clock(folder: Path) -> Told:
    return str(checkpoint.latest(folder)), []


@pytest.fixture(scope="module")
def run(small_batches: list[Records], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of two systems."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        use_small_data(patch, small_batches, folder / "data")
        systems = {"baseline": {}, "weightgrad": EXCHANGING}
        yield start(experiment(systems=systems, target={"loss": 2.5}), folder)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The record of a program."""
    folder, link, host = tmp_path_factory.mktemp("exec"), "us-west-1>us-east-1", "us-west-1/h0"
    events: list[Event] = [
        *(LinkBytes(time_s=k + 1.0, interval_s=1.0, wire_bytes={link: 12_000_000 + k}) for k in range(20)),
        *(LinkBytes(time_s=k + 1.0, interval_s=1.0, wire_bytes={f"{host}>us-west-1": 12_000_000}) for k in range(9)),
        Capacity(time_s=2.0, link=link, goodput_mbit=20.0),
        Cut(time_s=4.5, link=link),
        Mark(time_s=4.5, node=host, text="epoch 3"),
        Cut(time_s=7.0, link=link, healed=True),
    ]
    recorder = Recorder(folder)
    for event in events:
        recorder.record(event)
    facts = ProgramInfo(title="a program", network={link: LinkInfo(goodput_mbit=100.0, rtt_ms=60.0)}, took_s=21.0)
    facts.hosts, facts.statuses, facts.wan_bytes = {host: "10.1.0.2"}, {host: 3}, {link: 240_000_190}
    facts.checksums = recorder.finish()
    program.write(folder, facts)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A system and seed with a checkpoint."""
    folder = tmp_path_factory.mktemp("stopped")
    checkpoint.write(folder, Clock(50, 12.125), lambda path: None, lambda path: None)
    return folder


def deep(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


def damaged(content: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """A bit or a few bytes changed, a piece cut out or off, put in twice, or swapped; or another file in its place."""
    changed = bytearray(content)
    first, second = sorted(int(place) for place in random.integers(len(content), size=2))
    match random.integers(9):
        case 0 | 1 | 2 | 3:
            changed[first] ^= 1 << int(random.integers(8))
        case 4:
            changed[first] = int(random.integers(256))
        case 5:
            del changed[first:]
        case 6:
            del changed[first : first + int(random.integers(1, 200))]
        case 7:
            changed[second:second] = changed[first : first + 50]
        case 8:
            return other
    return bytes(changed)


def harm(report: Report, record: Path, file: str, times: int, copy: Path, checked: bool = True) -> None:
    """Damage `file` of a copy of the record `times` times; hold what is made of it to what it should be.

    Of a record without checksums (`checked`) it is enough that all errors are typed, in one line.
    """
    expected, before = report(record)
    assert before == []
    shutil.copytree(record, copy)
    path = copy / file
    content, others = path.read_bytes(), sorted(copy.rglob(f"*{path.suffix}"))
    random = np.random.default_rng([7, *file.encode()])
    harmful = 0
    for _ in range(times):
        path.write_bytes(damaged(content, random.choice(others).read_bytes(), random))
        same_bytes = path.read_bytes() == content
        try:
            numbers, told = report(copy)
        except InputError as error:
            numbers, told = "", [str(error)]
        same = numbers.replace(str(copy), str(record)) == expected
        named = any(path.name in line or "events.jsonl" in line for line in told)
        assert same or named or not checked, f"{file}: silently other numbers"
        assert not any("\n" in line for line in told)
        harmful += not same_bytes and bool(told)
        path.write_bytes(content)
    assert not checked or harmful > times // 6  # much is told even where the numbers are the same


def within_memory(work: Callable[[], None]) -> None:
    tracemalloc.start()
    try:
        work()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes + pa.default_memory_pool().max_memory() < MOST_BYTES


RUN_FILES = (
    "run.json",
    *(f"weightgrad/seed-0/{name}" for name in ("run.json", "events.jsonl", "steps.parquet")),
    *(f"baseline/seed-0/{name}.parquet" for name in ("links", "evaluations")),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", [*RUN_FILES[:3], *(pytest.param(file, marks=pytest.mark.full) for file in RUN_FILES[3:])]
)
def test_a_damaged_run_has_the_same_numbers_or_says_which_file(run: Path, file: str, tmp_path: Path) -> None:
    within_memory(lambda: harm(of_run, run, file, TIMES, tmp_path / "copy"))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("file", RUN_FILES)
def test_a_damaged_record_of_an_older_testbed_ends_in_a_line(run: Path, file: str, tmp_path: Path) -> None:
    """Without checksums, damage may go unseen; it still ends in a report or a line."""
    old = shutil.copytree(run, tmp_path / "old")
    for path in (*old.rglob("events.jsonl"), *old.rglob("run.json")):
        path.write_bytes(
            re.sub(rb',\s*"crc": ?"[0-9a-f]{8}"|"[a-z]+\.parquet": "[0-9a-f]{8}",?', b"", path.read_bytes())
        )
    for path in old.rglob("events.jsonl"):
        frames.write(path.parent)
        for table in path.parent.glob("*.parquet"):
            parquet.write_table(parquet.read_table(table), table)
    within_memory(lambda: harm(of_run, old, file, TIMES, tmp_path / "copy", checked=False))


ABSURD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "dilation": {"dilation": -1e308},
    "integers beyond 64 bits": {"parameters": 10**40, "seeds": [10**40], "format": 10**40},
    "systems and seeds by the million": {"systems": [str(k) for k in range(3000)], "seeds": list(range(3000))},
    "no rate": {"network": {"us-east-1>us-east-2": LinkInfo(goodput_mbit=0.0, rtt_ms=-1.0)}},
    "names": {"network": {">": LinkInfo(goodput_mbit=1.0, rtt_ms=1.0)}, "profile": "\0$\\x", "target": "../../x"},
    "times": {"started_at": "yesterday", "device": "", "compute": "\n", "fabric": "none of these"},
    "gate": {"gate": {"figures": [1, {"ok": 3, "asked": "x", "measured": []}]}},
    "fidelity": {"fidelity": {"date": 3}, "delay_mechanism": "netem", "fabric": "mininet"},
    "half of a fidelity": {"fidelity": {"figures": 3}, "delay_mechanism": "netem", "fabric": "mininet"},
    "delay": {"delay_report": {"lateness_p99_ms": "late"}, "topology": {"regions": 4, "workers_per_region": "x"}},
    "experiment": {"experiment": {name: 3 for name in ("topology", "model", "training", "target", "run", "systems")}},
    "steps": {"experiment": {"training": {"steps": 10**30, "batch_size": -1}, "target": {"loss": 10**400}}},
    "window": {"experiment": {"target": {"loss": 2.0, "window": 2**62}, "compute": {"math": [], "device": 5}}},
    "no window": {"experiment": {"target": {"loss": 2.0, "window": -3}}},
    "systems": {"experiment": {"systems": {"baseline": 3, "weightgrad": []}}, "systems": ["weightgrad", "weightgrad"]},
    "deep": {"experiment": {"data": deep(200)}},
    "metric": {"metric": MetricInfo(name="", unit="?"), "experiment": {"target": {"metric": "x", "value": 1e300}}},
}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("facts", ABSURD.values(), ids=ABSURD)
def test_absurd_facts_end_in_a_report_or_in_a_line(run: Path, facts: dict[str, Any], tmp_path: Path) -> None:
    """Facts of the right types that no run has, in a record that is otherwise whole."""
    copy = shutil.copytree(run, tmp_path / "copy")
    known = read_info(run, RunInfo)
    write_info(copy, msgspec.structs.replace(known, **facts) if facts else RunInfo())
    try:
        write_report(copy)
        write_page(copy)
    except InputError as error:
        assert "run.json" in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("file", ["exec.json", "events.jsonl", pytest.param("links.parquet", marks=pytest.mark.slow)])
def test_a_damaged_record_of_a_program_has_the_same_numbers_or_says_which_file(
    ran: Path, file: str, tmp_path: Path
) -> None:
    within_memory(lambda: harm(of_program, ran, file, TIMES, tmp_path / "copy"))


def test_a_damaged_clock_is_named_rather_than_taken_for_no_checkpoint(stopped: Path, tmp_path: Path) -> None:
    within_memory(lambda: harm(of_clock, stopped, "checkpoint-50/clock.json", TIMES, tmp_path / "copy"))
