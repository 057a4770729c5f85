"""The first steps of a system, role by role: who computed what when, and which messages were on their way."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pandas as pd

from testbed.errors import InputError
from testbed.record import lines
from testbed.record.events import Computed, RunEnded
from testbed.record.reader import Result, Run
from testbed.report.numbers.asked import flat
from testbed.roles.ledger import MOST_A_STEP
from testbed.roles.node import MARKER
from testbed.roles.roles import kind_of
from testbed.wan.plan import region_of


@dataclass(frozen=True)
class Timeline:
    """What a record says of the steps of which it has every event.

    Attributes
    ----------
    computed : node, what, begin_s, end_s, codec_s (seconds of it for coding or decoding)
    messages : peer (who sent it), node (who got it), kind, sent_s, arrived_s, nbytes, wan (whether it crossed one)
    steps_s : when each of these steps was done by all workers
    roles : by region, workers before their server, the global server last
    """

    system: str
    seed: int
    computed: pd.DataFrame
    messages: pd.DataFrame
    steps_s: list[float]
    roles: list[str]

    @property
    def workers(self) -> list[str]:
        return [role for role in self.roles if kind_of(role) == "worker"]

    @property
    def end_s(self) -> float:
        return self.steps_s[-1]


def timeline(run: Run, result: Result) -> Timeline | None:
    """The timeline of a run's system and seed; None where the record has none (`run.timeline_steps`)."""
    events, asked = result.events, _asked(run, "timeline_steps")
    whole = min(asked, _asked(run, "checkpoint_steps") or asked)  # nothing is watched beyond the first checkpoint
    done_s = result.steps["time_s"].head(whole).tolist()
    if not len(events) or not done_s or "computed" not in set(events["event"]):
        return None
    computed = events[events["event"] == "computed"].dropna(subset=["time_s", "seconds"])
    computed = pd.DataFrame(
        {
            "node": computed["node"],
            "what": computed["what"],
            "begin_s": computed["time_s"] - computed["seconds"],
            "end_s": computed["time_s"],
            "codec_s": computed["codec_s"].fillna(0.0),
        }
    )
    messages = pd.DataFrame(columns=["peer", "node", "kind", "sent_s", "arrived_s", "nbytes"])
    if "delivered" in set(events["event"]):
        came = events[(events["event"] == "delivered") & (events["kind"] != MARKER)].dropna(subset=["time_s", "sent_s"])
        messages = came.rename(columns={"time_s": "arrived_s"})[list(messages.columns)]
        messages = messages.astype({"nbytes": "int64"})
    messages["wan"] = [region_of(a) != region_of(b) for a, b in zip(messages["peer"], messages["node"], strict=True)]
    known_s = _known_until_s(computed, messages, MOST_A_STEP * asked)
    whole_s = _whole_until_s(result, done_s[-1])
    done_s = [time_s for time_s in done_s if time_s <= known_s and time_s < whole_s]
    if not done_s:
        return None
    computed, messages = computed[computed["begin_s"] < done_s[-1]], messages[messages["sent_s"] < done_s[-1]]
    names = {*computed["node"], *messages["node"], *messages["peer"], *events[events["event"] == "sent"]["node"]}
    order = sorted(names, key=lambda role: (kind_of(role) == "gs", region_of(role), kind_of(role) != "worker", role))
    computed, messages = (frame.reset_index(drop=True) for frame in (computed, messages))
    return Timeline(result.system, result.seed, computed, messages, done_s, order)


def _asked(run: Run, key: str) -> int:
    """How many steps `run.<key>` asks for; 0 of a record from before there was the key, or that is damaged."""
    asked = dict(flat(run.info.experiment)).get(f"run.{key}")
    return asked if isinstance(asked, int) and asked > 0 else 0


def _known_until_s(computed: pd.DataFrame, messages: pd.DataFrame, most: int) -> float:
    """Up to when every role was watched: one is no longer once it has recorded `most` events."""
    seen = pd.concat([computed[["node", "end_s"]], messages[["node", "arrived_s"]].set_axis(["node", "end_s"], axis=1)])
    watched = seen.groupby("node")["end_s"].agg(["size", "max"])
    return float(watched[watched["size"] >= most]["max"].min()) if (watched["size"] >= most).any() else inf


def _whole_until_s(result: Result, past_s: float) -> float:
    """Until when the record has every event, of those up to `past_s`; infinity where none of them is lost."""
    last_s = 0.0
    for line in lines.whole_lines(result.folder / lines.FILE_NAME):
        event = lines.decode(line)
        if event is None:
            return last_s
        if isinstance(event, RunEnded) or last_s > past_s:
            return inf
        if not isinstance(event, Computed):  # which is recorded when it begins, with the time of its end
            last_s = max(last_s, event.time_s)
    return last_s


def chosen(run: Run, system: str = "", seed: int | None = None) -> Timeline:
    """The timeline of one of a run's systems, by default the first's.

    Raises
    ------
    InputError
        The run has no such system or seed, or its record no timeline.
    """
    found = [one for one in run.results if system in ("", one.system) and seed in (None, one.seed)]
    if not found:
        known = ", ".join(f"{one.system} (seed {one.seed})" for one in run.results)
        raise InputError(f"{run.folder}: no {system or 'system'} of seed {seed or 0} in this run; it has {known}")
    if (it := timeline(run, found[0])) is None and _asked(run, "timeline_steps") and found[0].missing:
        raise InputError(f"{found[0].folder}: no step is there whole: {'; '.join(found[0].missing)}")
    if it is None:
        raise InputError(f"{found[0].folder}: no timeline was recorded; --set run.timeline_steps=3 records one")
    return it
