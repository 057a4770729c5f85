"""What a table, a sentence or a picture must not let a reader believe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from small_runs import experiment, start

from testbed.errors import InputError
from testbed.record.reader import Run, load
from testbed.report.numbers.columns import table as shown
from testbed.report.numbers.columns import traffic
from testbed.report.numbers.sentences import caveats, headlines, verdict
from testbed.report.numbers.summary import read, relate, summarize
from testbed.report.numbers.tables import rows
from testbed.report.numbers.traffic import traffic as hops
from testbed.report.numbers.wording import percent
from testbed.report.page.markdown import markdown
from testbed.report.pictures import draw

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]


def titles(figure: Figure) -> set[str]:
    return {axes.get_title(loc=place) for axes in figure.axes for place in ("left", "center")} - {""}


@pytest.fixture
def short(small_data: None, tmp_path: Path) -> Run:
    """Of three systems, two that seldom exchange anything, stopped before they do."""
    systems = {"baseline": {}, "weightgrad": {}, "diloco": {}}
    return load(start(experiment(systems=systems, training={"steps": 3}), tmp_path))


def test_a_system_that_has_exchanged_nothing_has_no_compression(short: Run) -> None:
    frame = summarize(short)
    assert list(frame["exchanged"]) == [True, False, False]
    assert frame["compression"].notna().tolist() == [True, False, False]
    heads, cells = rows(frame)
    assert [line[heads.index("compression")] for line in cells] == ["1.00×", "no exchange yet", "no exchange yet"]
    assert all("no exchange yet between regions" in said for said in headlines(short, frame))
    assert draw(short, "comparison").axes[-1].texts[-1].get_text().endswith("(no exchange yet)")
    assert "fewer WAN bytes" not in markdown(short, frame)
    assert hops(short).loc["weightgrad", ["WAN up", "WAN down"]].isna().all()


def test_one_seed_of_two_that_has_exchanged_nothing_is_counted(short: Run) -> None:
    frame = summarize(short)
    other = frame.assign(seed=1, exchanged=True, compression=10.0)
    heads, cells = shown(pd.concat([frame, other]), ["system"], traffic(frame))
    assert [line[heads.index("compression")] for line in cells][1:] == ["no exchange yet by 1"] * 2


def test_where_no_system_reached_the_target_nothing_is_said_to_be_faster_to_it(make_run: MakeRun) -> None:
    run, frame = read(make_run(target={"loss": 0.1, "window": 10}))
    assert verdict(run, frame) == "No system reached loss ≤ 0.1 in 120 steps; raise training.steps (make: STEPS)"
    assert titles(draw(run, "comparison")) == {
        "Training loss by step",
        "Training loss by emulated time",
        "Time of a step",
        "Bytes on the WAN",
    }
    for kind in ("pareto", "speedup"):
        with pytest.raises(InputError, match=f"hold nothing for '{kind}'"):
            draw(run, kind)
    reached, frame = read(make_run("reached"))
    assert any(title.startswith("Speedup over baseline") for title in titles(draw(reached, "comparison")))
    assert draw(reached, "pareto") and "No system" not in verdict(reached, frame)


@pytest.mark.parametrize(
    ("others_s", "said"),
    [
        ([11.0, 11.3, 11.1], ""),  # never sooner, and by much the same part
        ([9.0, 30.0, 11.0], "; its lead over TernGrad is not significant"),
        ([10.0, 10.0, 10.1], "; its lead over TernGrad is not significant"),
        ([11.0], ""),  # of one seed there is no interval
        ([np.nan, 10.1, 10.2], ""),  # one that a seed misses is no rival
    ],
)
def test_a_lead_that_seeds_do_not_bear_out_is_not_claimed(make_run: MakeRun, others_s: list[float], said: str) -> None:
    run, frame = read(make_run("reached"))
    own = {"weightgrad": [10.0] * len(others_s), "terngrad": others_s, "baseline": [100.0, 90.0, 110.0]}
    seeds = [
        frame.assign(seed=seed, time_to_target_s=[own[name][seed] for name in frame["system"]])
        for seed in range(len(others_s))
    ]
    sentence = verdict(run, relate(pd.concat(seeds, ignore_index=True)))
    assert sentence.startswith("WeightGrad reaches loss")
    assert sentence.partition(" sooner than baseline")[2] == said


def test_frames_that_left_late_are_told_by_what_they_do_to_a_step(small_data: None, tmp_path: Path) -> None:
    run = load(start(experiment(systems={"baseline": {}}, training={"steps": 4}), tmp_path))
    frame = summarize(run)
    assert not [said for said in caveats(run, frame) if "late" in said]
    run.info.delay_report = {"lateness_p99_ms": 2.0}
    [said] = [said for said in caveats(run, frame) if "late" in said]
    step_s = run.results[0].steps["time_s"].diff()[1:3].mean()
    assert "one frame in a hundred more than 2.0 ms late" in said
    assert f"Baseline up to {percent(4 * 2e-3 / step_s)} (4 messages one after the other)" in said
    run.info.dilation = 4.0  # what is late by the machine's clock is less so on the run's
    assert f"Baseline up to {percent(2e-3 / step_s)} " in " ".join(caveats(run, frame))


def test_a_run_that_was_stopped_is_not_told_to_take_more_steps(make_run: MakeRun) -> None:
    run, frame = read(make_run(target={"loss": 0.1, "window": 10}, ends={"terngrad": (30, "interrupted")}))
    assert verdict(run, frame) == "No system reached loss ≤ 0.1 in 120 steps"
