"""The events of one system and seed as pandas frames, and the Parquet files that keep them.

steps (one row per step)
    `step`; `time_s` when the last worker finished it; `loss`, `compute_s`, `codec_s`, `lan_s`, `wan_s`, means over
    the workers (`testbed.record.events.StepDone`; NaN where not recorded); `workers` that reported it (fewer in the
    last step of a killed run).
links (one row per directed link and second of the run's clock)
    `link` "src>dst"; `second`: the row covers [second, second + 1); `wire_bytes`. An interval that crosses a
    second is shared out in proportion. A link that was idle has 0; of a pause of over an hour (LONGEST_PAUSE_S), and
    before it was first measured, it has no row.
evaluations (one row per test of a model)
    `step`, `time_s`, `model` ("full", "quantized", "ema", with "@region"), `loss`, `accuracy` (fraction), `images`
    (test examples of whatever kind), `probe` and `train_loss` (`testbed.record.events.Evaluated`), and a column for
    each other metric of the data set, e.g. `bits_per_character`.
events (everything else)
    `event`, `time_s`, `node`, and the fields of the events that occur.

A NaN loss is one that was recorded and was not finite.

A Parquet file is checked by its CRC-32, which `run.json` (of a program, `exec.json`) holds once the run has ended;
before that, and in older records, by the CRC-32 of its pages where they have one, and by the size of the events.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from testbed.errors import InputError
from testbed.files import crc32_of, replacing
from testbed.record import lines
from testbed.record.events import LONGEST_INTERVAL_S, LONGEST_RUN_S, Evaluated, LinkBytes, StepDone

LONGEST_PAUSE_S = 3600.0  # of a link, whose seconds have rows
LOST_EVENTS = f"{lines.FILE_NAME} is not as long as the run left it: single workers and events are not all known"
SPENT = ("compute_s", "codec_s", "lan_s", "wan_s")  # of StepDone
# Parquet metadata: size of the events.jsonl that a frame was made from; each link's bytes over the whole run, as JSON
EVENTS_BYTES, LINK_BYTES = b"events_bytes", b"link_bytes"

DTYPES: dict[str, dict[str, str]] = {
    "steps": {
        "step": "int64",
        "time_s": "float64",
        "loss": "float64",
        "compute_s": "float64",
        "codec_s": "float64",
        "lan_s": "float64",
        "wan_s": "float64",
        "workers": "int32",
    },
    "links": {"link": "category", "second": "int32", "wire_bytes": "int64"},
    "evaluations": {
        "step": "int64",
        "time_s": "float64",
        "model": "object",
        "loss": "float64",
        "accuracy": "float64",
        "images": "int64",
        "probe": "bool",
        "train_loss": "float64",
    },
}
# Of each frame those that every version wrote, which tell it from the others.
FIRST_COLUMNS = {name: list(dtypes)[:4] for name, dtypes in DTYPES.items()}
UNREADABLE = (OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, msgspec.DecodeError)


@dataclass
class Frames:
    """The frames of one record, and how many of its lines could not be read."""

    steps: pd.DataFrame
    links: pd.DataFrame
    evaluations: pd.DataFrame
    unreadable: int = 0


def empty(name: str) -> pd.DataFrame:
    """The frame `name` of DTYPES without rows."""
    return pd.DataFrame({column: pd.Series(dtype=dtype) for column, dtype in DTYPES[name].items()})


def parse(path: Path) -> Frames:
    """Make the frames from an `events.jsonl`.

    Raises
    ------
    InputError
        A link's time lies outside the longest run that is believed (LONGEST_RUN_S), or its interval is no interval.
    """
    step, workers = array("q"), array("q")
    time_s, loss, spent = array("d"), array("d"), array("d")
    links: dict[str, tuple[array[float], array[float], array[int]]] = {}
    evaluations: list[Evaluated] = []
    unreadable = 0
    for line in lines.whole_lines(path):
        match lines.decode(line):
            case StepDone() as done:
                step.append(done.step)
                workers.append(done.workers)
                time_s.append(done.time_s)
                loss.append(done.loss)
                spent.extend(math.nan if (s := getattr(done, name)) is None else s for name in SPENT)
            case LinkBytes() as sent:
                for link, wire_bytes in sent.wire_bytes.items():
                    ends, intervals, sizes = links.setdefault(link, (array("d"), array("d"), array("q")))
                    ends.append(sent.time_s)
                    intervals.append(sent.interval_s)
                    sizes.append(wire_bytes)
            case Evaluated() as evaluated:
                evaluations.append(evaluated)
            case None:
                unreadable += 1
    return Frames(
        steps=_steps(
            np.asarray(step),
            np.asarray(workers),
            np.asarray(time_s),
            np.asarray(loss),
            np.asarray(spent).reshape(-1, len(SPENT)),
        ),
        links=_links({link: tuple(map(np.asarray, columns)) for link, columns in links.items()}, path),
        evaluations=_evaluations(evaluations),
        unreadable=unreadable,
    )


def _steps(
    step: np.ndarray, workers: np.ndarray, time_s: np.ndarray, loss: np.ndarray, spent: np.ndarray
) -> pd.DataFrame:
    """The means are over events: within a step all stand for equally many workers."""
    if not len(step):
        return empty("steps")
    reports = pd.DataFrame({"step": step, "time_s": time_s, "loss": loss, "workers": workers})
    reports[list(SPENT)] = spent
    # A worker whose loss is not finite makes the step's mean so: skipping it would hide a divergence.
    reports["lost"] = ~np.isfinite(loss)
    by_step = reports.groupby("step", sort=True)
    frame = by_step.agg(
        time_s=("time_s", "max"),
        loss=("loss", "mean"),
        **{name: (name, "mean") for name in SPENT},
        workers=("workers", "sum"),
        lost=("lost", "any"),
    ).reset_index()
    frame.loc[frame["lost"], "loss"] = np.nan
    return frame[list(DTYPES["steps"])].astype(DTYPES["steps"])


def _links(links: dict[str, tuple[np.ndarray, ...]], path: Path) -> pd.DataFrame:
    parts = []
    for link, (time_s, interval_s, wire_bytes) in links.items():
        _require_times(time_s, interval_s, f"{path}: link {link}")
        second, per_second = _per_second(time_s, interval_s, wire_bytes)
        parts.append(pd.DataFrame({"link": link, "second": second, "wire_bytes": per_second}))
    if not parts:
        return empty("links")
    frame = pd.concat(parts, ignore_index=True)
    frame["link"] = pd.Categorical(frame["link"], categories=list(links))
    return frame.astype({k: v for k, v in DTYPES["links"].items() if k != "link"})


def _require_times(end_s: np.ndarray, interval_s: np.ndarray, where: str) -> None:
    """Raise InputError for times that no record has, before memory is taken for their seconds."""
    if not (np.abs(end_s).max() < LONGEST_RUN_S and (end_s - interval_s).min() >= -1.0):
        raise InputError(f"{where}: a time lies before the run or beyond {LONGEST_RUN_S:g} s; the record is damaged")
    if not (interval_s.min() >= 0.0 and interval_s.max() <= LONGEST_INTERVAL_S * (1 + 1e-6)):  # but for rounding
        raise InputError(f"{where}: an interval is not of 0 to {LONGEST_INTERVAL_S:g} s; the record is damaged")


def _per_second(end_s: np.ndarray, interval_s: np.ndarray, wire_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share the bytes of intervals out to whole seconds; the total is kept to the byte."""
    order = np.argsort(end_s, kind="stable")
    columns = end_s[order], interval_s[order], wire_bytes[order]
    pauses = np.flatnonzero(np.diff(columns[0]) - columns[1][1:] > LONGEST_PAUSE_S) + 1
    parts = [_shared_out(*part) for part in zip(*(np.split(column, pauses) for column in columns), strict=True)]
    seconds, per_second = zip(*parts, strict=True)
    return np.concatenate(seconds), np.concatenate(per_second)


def _shared_out(end_s: np.ndarray, interval_s: np.ndarray, wire_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every second from the first of these intervals, which are in order and do not overlap, to the last.

    The bytes sent so far are a piecewise linear function of time; its values at whole seconds are rounded and
    differenced.
    """
    sent = np.cumsum(wire_bytes)
    times = np.column_stack((end_s - interval_s, end_s)).ravel()
    values = np.column_stack((sent - wire_bytes, sent)).ravel()
    times = np.maximum.accumulate(times)  # a start that lies before the last end by a rounding error
    first, last = int(np.floor(times[0])), int(np.ceil(times[-1]))
    edges = np.arange(first, max(last, first + 1) + 1)
    at_edges = np.rint(np.interp(edges, times, values)).astype(np.int64)
    at_edges[0], at_edges[-1] = 0, sent[-1]
    return edges[:-1], np.diff(at_edges)


def _evaluations(evaluations: list[Evaluated]) -> pd.DataFrame:
    rows = [[getattr(e, column) for column in DTYPES["evaluations"]] for e in evaluations]
    frame = pd.DataFrame(rows, columns=list(DTYPES["evaluations"])).astype(DTYPES["evaluations"])
    for name in dict.fromkeys(name for e in evaluations for name in e.metrics):
        frame[name] = pd.Series([e.metrics.get(name) for e in evaluations], dtype="float64")
    return frame


def other_events(path: Path) -> tuple[pd.DataFrame, int]:
    """The events of an `events.jsonl` that are in no other frame, one row each, in order; how many are unreadable."""
    unreadable = 0
    rows: list[dict[str, Any]] = [{"event": None, "time_s": None, "node": None}]
    for line in lines.whole_lines(path):
        if line.startswith((lines.STEP_PREFIX, *lines.LINK_PREFIXES)):
            continue
        event = lines.decode(line)
        if event is None:
            unreadable += 1
        elif not isinstance(event, Evaluated):
            rows.append({"event": type(event).__struct_config__.tag, **msgspec.structs.asdict(event)})
    frame = pd.DataFrame.from_records(rows)[1:].reset_index(drop=True)  # the first row names the columns
    return frame.astype({"time_s": "float64"}), unreadable


def write(folder: Path) -> dict[str, str]:
    """Write the three frames of `folder/events.jsonl` beside it, each whole or not at all; the CRC-32 of each file."""
    path = folder / lines.FILE_NAME
    size_bytes = path.stat().st_size
    parsed = parse(path)
    checksums = {}
    for name in DTYPES:
        frame = getattr(parsed, name)
        facts, groups = {EVENTS_BYTES: str(size_bytes).encode()}, [frame]
        if name == "links":  # a row group for each, so that some of them can be read alone
            groups = [group for _, group in frame.groupby("link", observed=True, sort=False)] or groups
            totals = {str(group["link"].iloc[0]): int(group["wire_bytes"].sum()) for group in groups if len(group)}
            facts[LINK_BYTES] = msgspec.json.encode(totals)
        schema = pa.Schema.from_pandas(frame, preserve_index=False)
        schema = schema.with_metadata({**(schema.metadata or {}), **facts})
        with replacing(folder / file_name(name)) as temporary:
            with pq.ParquetWriter(temporary, schema, write_page_checksum=True) as writer:
                for group in groups:
                    writer.write_table(pa.Table.from_pandas(group, schema, preserve_index=False))
            checksums[file_name(name)] = crc32_of(temporary)
    return checksums


def file_name(name: str) -> str:
    """Of the frame `name`."""
    return f"{name}.parquet"


def fault(folder: Path, name: str, checksums: Mapping[str, str] | None = None) -> str:
    """Why the Parquet file of the frame `name` does not serve: "missing", "damaged", "out of date"; "" where it does.

    Parameters
    ----------
    checksums : of the files that the run has ended with, by name
    """
    path, events = folder / file_name(name), folder / lines.FILE_NAME
    if not path.is_file():
        return "missing"
    try:
        if (checksum := (checksums or {}).get(path.name)) is not None:
            return "" if crc32_of(path) == checksum else "damaged"
        file = _open(path)
        if events.exists() and _made_from(file) != events.stat().st_size:
            return "out of date"
        if not set(FIRST_COLUMNS[name]) <= set(file.schema_arrow.names):
            return "damaged"
        _read(file, name, None)
    except UNREADABLE:
        return "damaged"
    return ""


def read(folder: Path, name: str, columns: list[str] | None = None) -> pd.DataFrame:
    """Read the frame `name` from its Parquet file, which has no `fault`.

    A column that an older testbed did not write is there, without values. Metrics beyond DTYPES are there where the
    events have them.

    Raises
    ------
    InputError
        It cannot be read.
    """
    path = folder / file_name(name)
    try:
        return _read(_open(path), name, columns)
    except FileNotFoundError:
        raise InputError(f"{path}: taken away while it was to be read") from None
    except UNREADABLE as error:
        raise InputError(f"{path}: cannot be read ({type(error).__name__}); take it away to read the events") from None


def lost_events(folder: Path) -> bool:
    """Whether a run that has ended left more events, or fewer, than there are now."""
    for name in DTYPES:
        with suppress(*UNREADABLE):
            made_from = _made_from(_open(folder / file_name(name)))
            return made_from is not None and made_from != (folder / lines.FILE_NAME).stat().st_size
    return False


def _made_from(file: pq.ParquetFile) -> int | None:
    """Size in bytes of the events that a file was made from, where it says so."""
    size = (file.schema_arrow.metadata or {}).get(EVENTS_BYTES)
    return None if size is None else int(size)


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, page_checksum_verification=True)


def _read(file: pq.ParquetFile, name: str, columns: list[str] | None) -> pd.DataFrame:
    wanted = list(dict.fromkeys([*DTYPES[name], *file.schema_arrow.names])) if columns is None else columns
    frame = file.read(columns=wanted).to_pandas(ignore_metadata=True).reindex(columns=wanted)
    if "probe" in frame and frame["probe"].dtype != bool:  # a record from before there were any
        frame["probe"] = False
    return frame


def link_totals(folder: Path) -> dict[str, int] | None:
    """Bytes of each link over the whole run, from the metadata of `links.parquet`; None where they are not there."""
    try:
        return _link_bytes(_open(folder / file_name("links")))
    except UNREADABLE:
        return None


def link_bytes_until(folder: Path, links: Sequence[str], until_s: float) -> dict[str, int] | None:
    """Bytes of some links up to a time on the run's clock from `links.parquet`, or None; only those links are read."""
    try:
        file = _open(folder / file_name("links"))
        groups = {link: group for group, link in enumerate(_link_bytes(file))}
        chosen = file.read_row_groups([groups[link] for link in links if link in groups])
    except UNREADABLE:
        return None
    return bytes_until(chosen.to_pandas(), until_s)


def _link_bytes(file: pq.ParquetFile) -> dict[str, int]:
    """The links of a `links.parquet` in the order of its row groups, one for each, and their bytes."""
    return msgspec.json.decode((file.schema_arrow.metadata or {})[LINK_BYTES], type=dict[str, int])


def bytes_until(frame: pd.DataFrame, until_s: float) -> dict[str, int]:
    """Bytes of each link of a frame `links` up to a time: of the second in which it lies, its share."""
    share = (until_s - frame["second"]).clip(0.0, 1.0)
    sums = (frame["wire_bytes"] * share).groupby(frame["link"], observed=True, sort=False).sum()
    return {str(link): round(total) for link, total in sums.items()}
