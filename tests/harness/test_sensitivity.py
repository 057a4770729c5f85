"""One thing is varied at a time, and what is mapped is the speedup of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import experiment

from testbed.cli.command_line import main
from testbed.errors import InputError
from testbed.harness import sensitivity
from testbed.harness.not_finite import Diverged
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


@pytest.mark.slow
def test_it_goes_on_where_the_target_is_another_one_on_generated_data(small_data: None, tmp_path: Path) -> None:
    it = experiment(systems=SYSTEMS, target={"loss": 1.9, "stand_in_loss": 2.2})
    frame = sensitivity.play(it, [WAN], 4, tmp_path, jobs=1)
    assert sensitivity.play(it, [WAN], 4, tmp_path, jobs=1).equals(frame)


@pytest.mark.slow
def test_nothing_is_mapped_with_the_sizes_of_a_run_that_diverged(small_data: None, tmp_path: Path) -> None:
    """Neither at once nor when it goes on."""
    it = experiment(systems={"baseline": {}, "fp16": {"rate": 1e6}})
    for _ in range(2):
        with pytest.raises(Diverged, match="fp16/seed-0"):
            sensitivity.play(it, [WAN], 8, tmp_path, jobs=1)
    assert not (tmp_path / WAN.name).exists()


def test_batches_that_do_not_divide_are_left_out_and_it_is_said() -> None:
    said: list[str] = []
    six = experiment(topology={"workers_per_region": 3}, training={"batch_size": 48})
    batch = Axis("batch", "training.batch_size", (32, 48, 64, 96), "batch")
    assert sensitivity.fitting(six, [WAN, batch], said.append) == [WAN, replace(batch, values=(48, 96))]
    assert said == ["left out: batch 32, 64, which the workers cannot share equally"]
    with pytest.raises(InputError, match="--axes batch: the workers can share none"):
        sensitivity.fitting(six, [replace(batch, values=(32,))], said.append)


@pytest.mark.parametrize(
    ("parts", "steps", "line"),
    [
        ({}, 1, "--steps 1: the second half of a run's steps counts; give at least 2"),
        ({"compute": {"device": "measured"}}, 4, "compute.device: a timing-only run computes nothing"),
        ({"systems": {"fp16": {}}}, 4, "--systems: speedups are over the baseline; name it, too"),
    ],
)
def test_what_cannot_be_is_found_before_anything_is_played(
    tmp_path: Path, parts: dict[str, Any], steps: int, line: str
) -> None:
    axes = [AXES[3], WAN]  # the first one has devices of its own
    with pytest.raises(InputError, match=line):
        sensitivity.play(experiment(**{"systems": SYSTEMS, **parts}), axes, steps, tmp_path, jobs=1)
    assert not list(tmp_path.iterdir())


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
    assert main([*command, "rtt,device,rtt"]) == 0
    assert "sensitivity.png" in capsys.readouterr().out
    assert (tmp_path / "results" / "sensitivity" / "cifarnet" / "sensitivity.png").stat().st_size > 10_000
    table = (tmp_path / "results" / "sensitivity" / "cifarnet" / "sensitivity.md").read_text()
    assert "| WAN round trip (times the profile's) | 0.1 |" in table and "| Baseline: a step |" in table
    assert main([*command, "lam"]) == 2
    assert "--axes lam: no such axis; did you mean 'lan'?" in capsys.readouterr().err
