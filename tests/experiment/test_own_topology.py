"""A system past the LPSs, beside those that go by way of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import experiment, start

import testbed


def played(folder: Path, kind: str, **systems: dict[str, str]) -> testbed.Run:
    run = testbed.load(start(experiment(topology={"kind": kind}, systems=systems), folder))
    assert isinstance(run, testbed.Run)
    return run


@pytest.mark.parametrize("system", ["terngrad", "muloco", "concord"])
def test_it_does_what_it_does_where_all_are_flat(small_data: None, tmp_path: Path, system: str) -> None:
    beside = played(tmp_path / "tree", "tree", baseline={}, past={"of": system, "topology": "flat"})
    flat = played(tmp_path / "flat", "flat", past={"of": system})
    alone = played(tmp_path / "alone", "tree", baseline={}, past={"of": system})
    known = {result.system: result for result in beside.results}
    pairs = ((known["past"], flat.results[0]), (known["baseline"], alone.results[0]))
    for here, there in pairs:
        assert here.steps[["time_s", "loss"]].equals(there.steps[["time_s", "loss"]])
    sent = beside.summary.set_index("system")["lan_bytes"]
    assert sent["past"] == flat.summary["lan_bytes"].item() < alone.summary["lan_bytes"].iloc[1]


def test_no_host_is_missing_where_all_systems_go_past_the_lpss(small_data: None, tmp_path: Path) -> None:
    run = played(tmp_path, "tree", baseline={"topology": "flat"})
    assert run.results[0].status == "finished"
