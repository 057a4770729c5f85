"""The critical path adds up to the step, to the last microsecond, and leads to what was made slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from own_parts import forget_after
from small_runs import experiment, start

from testbed.cli import main
from testbed.record.reader import Run, load
from testbed.report.numbers import why
from testbed.report.numbers.summary import summarize
from testbed.report.page.html import page
from testbed.report.page.markdown import markdown

pytestmark = pytest.mark.slow

CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "slow LAN": ({"topology": {"lan_mbit": 1.0}}, "lan-", "us-west-1/lps"),
    "slow WAN": ({"topology": {"wan_factor": 0.01, "rtt_factor": 0.01}}, "wan-transmission", "us-west-1/lps"),
    "long RTT": ({"topology": {"rtt_factor": 20.0, "wan_factor": 50.0}}, "wan-propagation", "us-west-1/lps"),
    "slow compute": ({"faults": ["slow */w* factor=100 at 0s"]}, "computing", ""),
    "straggler": ({"faults": ["slow us-east-1/w1 factor=100 at 0s"]}, "computing", "us-east-1/w1"),
}


def played(tmp_path: Path, **parts: Any) -> Run:
    settings = {"systems": {"baseline": {}}, "training": {"steps": 4}, "run": {"checkpoint_steps": 4}, **parts}
    return load(start(experiment(**settings), tmp_path))


@pytest.mark.parametrize("case", CASES)
def test_what_was_made_slow_is_named(small_data: None, tmp_path: Path, case: str) -> None:
    parts, part, where = CASES[case]
    run = played(tmp_path, **parts)
    [it] = why.of_systems(run)
    assert it.main.startswith(part), it.parts
    assert where in it.sentence
    assert ("times the others'" in it.sentence) == (case == "straggler")


def test_a_role_that_waits_for_a_timer_is_held(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_after(monkeypatch)
    (tmp_path / "late.py").write_text(
        """
from testbed.systems.baseline import Baseline

class Late(Baseline):
    name = "late"

    async def global_server(self, node, state):
        send = node.broadcast
        async def later(peers, message):
            await node.sleep(1.0)
            await send(peers, message)
        node.broadcast = later
        await super().global_server(node, state)
"""
    )
    run = played(tmp_path / "run", systems={"late": {}}, plugins=[str(tmp_path / "late.py")])
    [it] = why.of_systems(run)
    assert it.main == "held" and "held by a timer, a rule, the machine, most at us-east-2/gs" in it.sentence
    assert it.parts["held"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("system", ["baseline", "terngrad", "weightgrad", "gaia", "diloco", "dgc"])
@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_the_parts_add_up_and_those_of_links_are_size_over_rate_and_delay(
    small_data: None, tmp_path: Path, system: str, kind: str
) -> None:
    if kind == "flat" and system in ("weightgrad", "gaia", "diloco"):
        pytest.skip("it has no such topology")
    run = played(tmp_path, systems={system: {}}, topology={"kind": kind})
    [it] = why.of_systems(run)
    taken_s = run.results[0].steps["time_s"].diff()
    assert it.step_s == pytest.approx(taken_s[1:3].mean(), abs=1e-7)
    network = run.info.network
    for piece in it.pieces:
        assert sum(piece.parts.values()) == pytest.approx(piece.end_s - piece.begin_s, abs=1e-12)
        if not piece.peer:
            continue
        here, there = piece.peer.split("/")[0], piece.role.split("/")[0]
        kind_of_link = "lan" if here == there else "wan"
        links = [network["lan"], *([network[f"{here}>{there}"]] if here != there else [])]
        assert piece.parts[f"{kind_of_link}-propagation"] == pytest.approx(sum(link.rtt_ms for link in links) / 2e3)
        alone_s = piece.nbytes * 8e-6 / min(link.goodput_mbit for link in links)
        assert piece.parts[f"{kind_of_link}-transmission"] == pytest.approx(alone_s, abs=1e-7)
        assert piece.parts[f"{kind_of_link}-tcp"] < 1e-3 * (piece.end_s - piece.begin_s) + 1e-7, piece


def test_what_takes_longest_may_be_in_one_of_the_steps_only(small_data: None, tmp_path: Path) -> None:
    """DiLoCo's regions exchange after the second of these three steps, over long round trips."""
    far = {"rtt_factor": 50.0, "wan_factor": 50.0}
    run = played(tmp_path, systems={"diloco": {"local_steps": 2}}, topology=far)
    [it] = why.of_systems(run)
    assert it.main == "wan-propagation" and not any(it.main in piece.parts for piece in it.last)
    assert "propagation across the WAN, most at" in it.sentence and "each way)" in it.sentence


def test_it_is_part_of_the_summary_and_a_command(
    small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two = {"seeds": [0, 1], "checkpoint_steps": 4}
    run = played(tmp_path, systems={"baseline": {}, "terngrad": {}}, run=two)
    assert "Baseline's step takes" in markdown(run, summarize(run)).partition(f"## {why.HEAD}")[2]
    assert "Baseline&#39;s step takes" in page(run, summarize(run), []).partition(why.HEAD)[2]
    capsys.readouterr()
    assert main(["explain", str(run.folder), "terngrad"]) == 0
    told = capsys.readouterr().out
    assert "TernGrad's step takes" in told and "gradient" in told and "Baseline" not in told
    assert main(["explain", str(run.folder)]) == 0
    assert "Baseline's step takes" in capsys.readouterr().out
    assert main(["explain", str(run.folder), "--seed", "1"]) == 0
    told = capsys.readouterr().out
    assert "Baseline's step takes" in told and "TernGrad's step takes" in told
    assert main(["explain", str(run.folder), "--seed", "2"]) == 2
    assert "no system of seed 2 in this run; it has baseline (seed 0)" in capsys.readouterr().err
    assert main(["explain", str(run.folder), "nosuch"]) == 2
