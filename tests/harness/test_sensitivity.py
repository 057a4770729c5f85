"""One thing is varied at a time, and what is mapped is the speedup of a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import experiment

from testbed.cli.command_line import main
from testbed.errors import InputError
from testbed.harness import sensitivity
from testbed.harness.sensitivity import AXES, Axis

WAN = Axis("wan", "topology.wan_factor", (0.5, 1.0, 20.0), "WAN goodput")
SYSTEMS = {"baseline": {}, "fp16": {}}


@pytest.mark.slow
def test_a_slower_wan_is_worth_more_to_who_sends_less(small_data: None, tmp_path: Path) -> None:
    frame = sensitivity.play(experiment(systems=SYSTEMS), [WAN], 4, tmp_path, jobs=1)
    assert list(frame.columns) == ["axis", "value", "system", "step_s", "speedup"]
    speedups = frame[frame["system"] == "fp16"].set_index("value")["speedup"]
    assert speedups[0.5] > speedups[1.0] > speedups[20.0]
    assert (frame.loc[frame["system"] == "baseline", "speedup"] == 1).all()
    assert (tmp_path / sensitivity.TABLE).is_file()
    again = sensitivity.play(experiment(systems=SYSTEMS), [WAN], 4, tmp_path, jobs=1)
    assert again.equals(frame), "what was played is not played again"
    with pytest.raises(InputError, match="holds runs of another experiment; name another folder with --out"):
        sensitivity.play(experiment(systems=SYSTEMS), [WAN], 6, tmp_path, jobs=1)


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_every_axis_can_be_played(axis: Axis) -> None:
    points = sensitivity.points(experiment(systems=SYSTEMS), axis, 4, Path("nowhere"))
    assert len({point.label for point in points}) == len(axis.values)
    for point in points:
        assert point.experiment.training.steps == 4 and point.experiment.run.probe_steps == 0
        assert point.experiment.compute.timing_only
        assert point.experiment.plan.wan


def test_what_if_changes_lan_wan_and_round_trips() -> None:
    plain = experiment().plan.profile
    asked = experiment(topology={"lan_mbit": 10_000.0, "wan_factor": 2.0, "rtt_factor": 0.5}).plan.profile
    assert asked.lan.goodput_mbit == 10_000 and asked.lan.rtt_ms == plain.lan.rtt_ms
    for pair, link in plain.pairs.items():
        assert asked.link(*pair).goodput_mbit == 2 * link.goodput_mbit
        assert asked.link(*pair).rtt_ms == link.rtt_ms / 2


@pytest.mark.slow
def test_the_command_draws_the_map(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--systems", "baseline,fp16", "--steps", "4"]
    command = ["sensitivity", "cifarnet", *few, "--set", "data.dataset=synthetic", "--set", "model.name=tiny", "--axes"]
    assert main([*command, "rtt,device"]) == 0
    assert "sensitivity.png" in capsys.readouterr().out
    assert (tmp_path / "results" / "sensitivity" / "cifarnet" / "sensitivity.png").stat().st_size > 10_000
    table = (tmp_path / "results" / "sensitivity" / "cifarnet" / "sensitivity.md").read_text()
    assert "| WAN round trip (times the profile's) | 0.1 |" in table and "| Baseline: a step |" in table
    assert main([*command, "lam"]) == 2
    assert "--axes lam: no such axis; did you mean 'lan'?" in capsys.readouterr().err
