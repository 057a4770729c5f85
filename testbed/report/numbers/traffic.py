"""What roles send each other a step, hop by hop, against float32 and against the baseline.

The last segment of a run counts (`run.checkpoint_steps`): what a warm-up sent before is over.
"""

from __future__ import annotations

import pandas as pd

from testbed.record.reader import Result, Run
from testbed.report.looks import look
from testbed.report.numbers.asked import experiment_of, timing_only
from testbed.report.numbers.summary import BASELINE, is_exchange
from testbed.report.numbers.wording import NONE, is_missing, size, times
from testbed.roles.roles import kind_of
from testbed.wan.plan import region_of

HOPS = ("worker up", "worker down", "WAN up", "WAN down")


def traffic(run: Run) -> pd.DataFrame:
    """Bytes of messages a step on each hop, as TCP carries them (headers of TCP and IP not counted).

    Returns
    -------
    One row per system that has ended a segment, index "system", columns `HOPS`: the mean over the senders, over steps
    of the last segment and over seeds. "worker up" is what a worker sends, "worker down" what it gets; "WAN up" what a
    sender (an LPS; a worker in the flat topology) sends to other regions, "WAN down" what it gets from there. NaN where
    a system has no such hop.
    """
    rows: dict[str, list[dict[str, float]]] = {}
    for result in run.results:
        if (row := _of(run, result)) is not None:
            rows.setdefault(result.system, []).append(row)
    frames = {system: pd.DataFrame(found).mean() for system, found in rows.items()}
    return pd.DataFrame(frames, index=list(HOPS)).T.rename_axis("system")


def _of(run: Run, result: Result) -> dict[str, float] | None:
    if "nbytes" not in result.events:
        return None
    last, steps = _last_uncomputed(run, result) if timing_only(run.info) else _last_saved(result.events)
    if last.empty:
        return None
    workers = last["node"].map(kind_of) == "worker"
    of_workers = last["peer"].map(kind_of) == "worker"
    across = last["node"].map(region_of) != last["peer"].map(region_of)
    from_server = last["node"].map(kind_of) == "gs"
    found = {
        "worker up": last[workers],
        "worker down": last[of_workers],
        "WAN up": _exchanged(last[across & ~from_server]),
        "WAN down": _exchanged(last[across & from_server]),
    }
    return {
        hop: float("nan") if part is None or part.empty else part["nbytes"].sum() / len(_ends_of(hop, part)) / steps
        for hop, part in found.items()
    }


def _last_saved(events: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """What was sent in the last segment that was saved, and its steps."""
    saved = events[events["event"] == "checkpointed"].drop_duplicates("step")  # in the order of the record
    if saved.empty:
        return saved, 0
    began, ended = [0, *saved.index][-2:]
    segment = events.loc[began:ended]  # what came later is of a segment that did not end
    before, steps = [0, *saved["step"]][-2:]
    return segment[segment["event"] == "sent"], steps - before


def _last_uncomputed(run: Run, result: Result) -> tuple[pd.DataFrame, int]:
    """The same where nothing is computed and so nothing saved: each role says at a segment's end what it has sent."""
    asked = experiment_of(run.info)
    every, total = asked.run.checkpoint_steps, asked.training.steps
    ends = [0, *(step for step in (*range(every, total, every), total) if 0 < step <= len(result.steps))]
    sent = result.events[result.events["event"] == "sent"]
    segments = sent.groupby(["node", "peer"]).cumcount() + 1
    return sent[segments == len(ends) - 1], ends[-1] - ends[max(len(ends) - 2, 0)]


def _exchanged(sent: pd.DataFrame) -> pd.DataFrame | None:
    """None where no one has sent more than the mark that ends a segment."""
    return sent if is_exchange(sent) else None


def sent_by_workers(run: Run) -> dict[str, float]:
    """Bytes that all workers of each system have sent in a whole run, as in `traffic`; the mean over the seeds."""
    totals: dict[str, list[float]] = {}
    for result in run.results:
        events = result.events
        if "nbytes" in events:
            sent = events[events["event"] == "sent"]
            of_workers = sent.loc[sent["node"].map(kind_of) == "worker", "nbytes"]
            totals.setdefault(result.system, []).append(float(of_workers.sum()))
    return {system: sum(each) / len(each) for system, each in totals.items()}


def _ends_of(hop: str, part: pd.DataFrame) -> pd.Series:
    """The senders of what goes up, the receivers of what comes down, each once."""
    return part["node" if hop.endswith("up") else "peer"].drop_duplicates()


def rows(frame: pd.DataFrame, parameters: int) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table: bytes a step, how many times fewer than float32, and than the baseline's."""
    base = frame.loc[BASELINE] if BASELINE in frame.index else None
    heads = ["system", *(text for hop in HOPS for text in (hop, "of float32", "of baseline"))]
    cells = []
    for system, row in frame.iterrows():
        line = [look(str(system)).label]
        for hop in HOPS:
            value = row[hop]
            line.append(NONE if is_missing(value) else size(value))
            line.append(NONE if is_missing(value) else times(4 * parameters / value))
            line.append(
                NONE if base is None or is_missing(value) or is_missing(base[hop]) else times(base[hop] / value)
            )
        cells.append(line)
    return heads, cells
