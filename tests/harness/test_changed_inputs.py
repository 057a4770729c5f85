"""A run goes on only with the network, the trace and the data that it began with: else one curve would be of two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import experiment, start

from testbed.errors import InputError
from testbed.harness import session
from testbed.record import info as info_file
from testbed.record.info import RunInfo

TRACE = "topologies/traces/early-outage.csv"


@pytest.fixture
def run(small_data: None, tmp_path: Path) -> Path:
    trace = tmp_path / "mine.csv"
    trace.write_text(Path(TRACE).read_text())
    parts: dict[str, Any] = {"systems": {"baseline": {}}, "topology": {"trace": str(trace)}}
    return start(experiment(**parts), tmp_path / "results")


def test_what_has_not_changed_goes_on(run: Path) -> None:
    facts = info_file.read_info(run, RunInfo)
    assert len(facts.trace) == len(facts.data.fingerprint) == 64
    session.ready(run)()


def test_a_changed_trace_is_not_resumed(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(path.read_text().replace("1.19", "2.38"))
    with pytest.raises(InputError, match=rf"^{re.escape(str(run))}: the trace {path} is not what the run began with"):
        session.ready(run)


def test_a_changed_profile_is_not_resumed(run: Path) -> None:
    facts = info_file.read_info(run, RunInfo)
    facts.network["lan"].goodput_mbit *= 2
    info_file.write_info(run, facts)
    with pytest.raises(InputError, match=f"the profile {facts.profile} is not what the run began with; start a new"):
        session.ready(run)


def test_changed_data_are_not_resumed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "fingerprint", lambda dataset: "0" * 64)
    with pytest.raises(InputError, match=r"the data set .* is not what the run began with; start a new run"):
        session.ready(run)


def test_a_record_that_says_nothing_of_them_goes_on(run: Path) -> None:
    facts = info_file.read_info(run, RunInfo)
    facts.network, facts.trace, facts.data.fingerprint = {}, "", ""
    info_file.write_info(run, facts)
    session.ready(run)()
