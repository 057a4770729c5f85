"""A timeline is the record of the first steps, whole: spans that do not overlap, messages that were sent and came."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import experiment, start

from testbed.cli import main
from testbed.errors import InputError
from testbed.record.reader import Run, load
from testbed.report.numbers import why
from testbed.report.numbers.timeline import chosen
from testbed.report.trace_events import trace_events

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, small_data: None) -> Run:
    return load(start(experiment(run={"checkpoint_steps": 6}), tmp_path))


@pytest.mark.parametrize("system", ["baseline", "terngrad", "weightgrad"])
def test_it_has_every_event_of_the_first_steps(run: Run, system: str) -> None:
    it = chosen(run, system)
    [result] = [one for one in run.results if one.system == system]
    assert it.steps_s == result.steps["time_s"].tolist()[:3]
    spans = it.computed.sort_values(["node", "begin_s"])
    same = spans["node"].to_numpy()[1:] == spans["node"].to_numpy()[:-1]
    assert (spans["begin_s"].to_numpy()[1:][same] >= spans["end_s"].to_numpy()[:-1][same] - 1e-8).all()
    worker = spans[spans["node"] == "us-west-1/w0"]
    assert (worker["what"] == "gradient").sum() == 3
    spent = (worker["end_s"] - worker["begin_s"]).sum()
    assert spent == pytest.approx(result.steps[["compute_s", "codec_s"]].head(3).sum().sum(), rel=1e-6)
    assert (it.messages["arrived_s"] > it.messages["sent_s"]).all()
    sent = it.messages[it.messages["peer"] == "us-west-1/w0"]
    assert len(sent) in (3, 6) and not sent["wan"].any()  # TernGrad's workers send a scale, too
    assert set(sent["node"]) == {"us-west-1/lps"}
    assert set(it.messages.loc[it.messages["wan"], "node"]) <= {"us-west-1/lps", "us-east-1/lps", "us-east-2/gs"}
    assert it.roles[-1] == "us-east-2/gs" and len(it.roles) == 7


def test_nothing_is_recorded_of_later_steps_or_where_it_is_not_asked_for(small_data: None, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"systems": {"baseline": {}}, "training": {"steps": 8}}
    for steps, messages in ((0, 0), (2, 2), (5, 5)):
        folder = start(experiment(**parts, run={"timeline_steps": steps, "checkpoint_steps": 4}), tmp_path / f"{steps}")
        events = load(folder).results[0].events
        came = events[events["event"] == "delivered"] if steps else events[:0]
        # A checkpoint ends it: what comes after one begins with no past.
        assert (came["kind"] == "gradient").sum() == min(messages, 4) * 4 if steps else not len(came)


def test_steps_beyond_the_first_checkpoint_are_none_of_it(small_data: None, tmp_path: Path) -> None:
    """Nothing is recorded of them, which is not the same as that nothing was done."""
    few = {"checkpoint_steps": 4, "timeline_steps": 6}
    it = experiment(systems={"baseline": {}}, compute={"math": "none"}, run=few)
    run = load(start(it, tmp_path))
    assert chosen(run).steps_s == run.results[0].steps["time_s"].tolist()[:4]
    [path] = why.of_systems(run)
    assert "held" not in path.parts


def test_the_trace_file_has_a_track_a_role_and_an_arrow_a_message(run: Run, tmp_path: Path) -> None:
    it = chosen(run, "terngrad")
    [result] = [one for one in run.results if one.system == "terngrad"]
    events = trace_events(it, result.links)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(it.roles) <= set(names.values())
    steps = [e["dur"] / 1e6 for e in events if e["ph"] == "X" and names[e["pid"], e["tid"]] == "steps"]
    assert steps == pytest.approx(list(np.diff([0.0, *it.steps_s])))
    arrows = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert arrows.keys() == ends.keys() and len(arrows) == len(it.messages)
    for number, message in enumerate(it.messages.to_dict("records"), start=1):
        begun, ended = arrows[number], ends[number]
        assert (names[begun["pid"], begun["tid"]], names[ended["pid"], ended["tid"]]) == (
            message["peer"],
            message["node"],
        )
        assert ended["ts"] - begun["ts"] == pytest.approx(1e6 * (message["arrived_s"] - message["sent_s"]))
    # Slices of a track lie side by side: viewers nest those that overlap.
    for role in it.roles:
        own = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and names[e["pid"], e["tid"]] == role)
        assert all(a + took <= b for (a, took), (b, _) in pairwise(own)), role


def test_perfettos_own_types_read_the_same_steps(run: Run, tmp_path: Path) -> None:
    pb = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = tmp_path / "it.perfetto-trace"
    assert main(["timeline", str(run.folder), "terngrad", "-o", str(path)]) == 0
    trace = pb.Trace.FromString(path.read_bytes())
    names = {packet.track_descriptor.uuid: packet.track_descriptor for packet in trace.packet}
    open_s: dict[int, list[tuple[str, float]]] = {}
    slices: dict[str, list[tuple[str, float]]] = {}
    flows: dict[int, list[float]] = {}
    for packet in trace.packet:
        event, at_s = packet.track_event, packet.timestamp / 1e9
        if event.type == event.TYPE_SLICE_BEGIN:
            open_s.setdefault(event.track_uuid, []).append((event.name, at_s))
        elif event.type == event.TYPE_SLICE_END:
            name, since_s = open_s[event.track_uuid].pop()
            slices.setdefault(names[event.track_uuid].name, []).append((name, at_s - since_s))
        for number in (*event.flow_ids, *event.terminating_flow_ids):
            flows.setdefault(number, []).append(at_s)
    assert not any(open_s.values())
    [result] = [one for one in run.results if one.system == "terngrad"]
    steps_s = np.diff([0.0, *result.steps["time_s"][:3]])
    assert [took_s for _, took_s in slices["steps"]] == pytest.approx(list(steps_s), abs=1e-8)
    it = chosen(run, "terngrad")
    expected = sorted(it.messages["arrived_s"] - it.messages["sent_s"])
    assert sorted(end - begin for begin, end in flows.values()) == pytest.approx(expected, abs=1e-8)


def test_the_command_writes_it_and_refuses_what_is_not_there(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", str(run.folder), "weightgrad"]) == 0
    assert "3 steps" in capsys.readouterr().out
    assert json.loads((run.folder / "timeline-weightgrad.json").read_text())["otherData"] == {"system": "weightgrad"}
    assert main(["timeline", str(run.folder), "weihgtgrad"]) == 2
    assert "baseline (seed 0), terngrad (seed 0)" in capsys.readouterr().err
    with pytest.raises(InputError, match="seed 5"):
        chosen(run, seed=5)
