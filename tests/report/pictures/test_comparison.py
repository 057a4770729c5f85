"""The picture is drawn from the records alone, always the same, whatever state they are in."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from testbed.record.info import DataInfo
from testbed.record.reader import load
from testbed.report import pictures
from testbed.report.looks import look
from testbed.report.numbers import curves
from testbed.report.numbers.curves import curves_of
from testbed.report.numbers.summary import summarize
from testbed.report.pictures import parts
from testbed.report.pictures.kinds import comparison
from testbed.report.pictures.style import png

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]


def draw(folder: Path) -> Figure:
    return pictures.draw(load(folder), "comparison")


def pixels(folder: Path) -> np.ndarray:
    return imread(BytesIO(png(draw(folder))))


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def heading(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.subfigs[0].texts)


def test_the_same_records_make_the_same_picture_whatever_the_users_settings(make_run: MakeRun) -> None:
    folder = make_run()
    first = png(draw(folder))
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}):
        assert png(draw(folder)) == first


def test_drawing_leaves_the_users_settings_alone(make_run: MakeRun) -> None:
    with matplotlib.rc_context({"font.size": 30}):
        draw(make_run())
        assert matplotlib.rcParams["font.size"] == 30


def test_bars_carry_their_values_and_each_system_its_look(make_run: MakeRun) -> None:
    figure = draw(make_run())
    _, _, speedup, wan = figure.axes
    assert texts(speedup)[0].startswith("1.00×") and "×" in texts(speedup)[2]
    assert texts(wan)[0] == "2.06 GB" and texts(wan)[2] == "50.4 MB  (41.0× less)"
    assert [t.get_text() for t in wan.get_yticklabels()] == ["Baseline", "TernGrad", "WeightGrad"]
    colors = [matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in speedup.patches]
    assert colors == [look(system).color.upper() for system in ("baseline", "terngrad", "weightgrad")]


def test_the_drawn_speedup_is_the_summarys(make_run: MakeRun) -> None:
    folder = make_run()
    figure = draw(folder)
    frame = summarize(load(folder))
    assert [bar.get_width() for bar in figure.axes[2].patches] == pytest.approx(list(frame["speedup_vs_baseline"]))


def test_a_smoothed_line_crosses_the_target_where_the_table_says(make_run: MakeRun) -> None:
    run = load(make_run())
    frame = summarize(run).set_index("system")
    for curve in curves_of(run):
        first = np.flatnonzero(curve.smooth <= 1.8)[0]
        assert curve.time_s[first] == frame.loc[curve.system, "time_to_target_s"]
        assert curve.step[first] == frame.loc[curve.system, "steps_to_target"]


def test_a_target_out_of_reach_is_written_not_drawn_as_a_bar(make_run: MakeRun) -> None:
    figure = draw(make_run(ends={"terngrad": (20, "interrupted")}))
    speedup = figure.axes[2]
    assert texts(speedup)[1] == "not reached" and speedup.patches[1].get_width() == 0
    assert "2 of 3 finished" in heading(figure)
    assert "per step" in figure.axes[3].get_title(loc="left")  # totals of unequal runs would mislead


def test_a_seed_that_was_stopped_or_has_not_begun_changes_no_line_and_no_bar(make_run: MakeRun) -> None:
    """Means are of what is done: a stopped seed has not missed the target, and its bytes are those of a part."""
    systems = ["baseline", "terngrad"]
    whole = draw(make_run("whole", systems=systems, seeds=(0, 1)))
    ends: dict[str | tuple[str, int], tuple[int, str | None]] = {("terngrad", 2): (20, "interrupted")}
    part = draw(
        make_run("part", systems=[*systems, "weightgrad"], seeds=(0, 1, 2), ends={**ends, "weightgrad": (0, None)})
    )
    other = draw(make_run("other", systems=systems, seeds=(0, 1, 2)))
    for k in (2, 3):
        assert texts(part.axes[k])[1] == texts(whole.axes[k])[1]
        assert len(part.axes[k].get_yticklabels()) == 2
    assert texts(other.axes[2])[1] != texts(whole.axes[2])[1]  # a whole third seed does change the bar
    line = part.axes[0].lines[1].get_xydata()
    assert np.array_equal(line, whole.axes[0].lines[1].get_xydata(), equal_nan=True) and line[-1][0] == 120
    assert "5 of 9 finished" in heading(part)


def test_without_a_baseline_the_times_are_drawn(make_run: MakeRun) -> None:
    figure = draw(make_run(systems=["weightgrad", "terngrad"]))
    assert figure.axes[2].get_title(loc="left") == "Time to loss ≤ 1.8"
    assert texts(figure.axes[2])[0].endswith(" s")


def test_stand_in_data_is_marked_on_the_picture(make_run: MakeRun) -> None:
    figure = draw(make_run(data=DataInfo(dataset="CIFAR-10", stand_in=True)))
    assert "STAND-IN DATA, not CIFAR-10" in heading(figure)


def test_a_wide_spread_takes_logarithmic_axes_and_still_says_what_was_not_reached(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LOG_TIME_RATIO", 2.0)
    monkeypatch.setattr(parts, "LOG_BAR_RATIO", 2.0)
    figure = draw(make_run(ends={"terngrad": (20, "interrupted")}))
    _, by_time, speedup, wan = figure.axes
    assert [axes.get_xscale() for axes in (by_time, speedup, wan)] == ["log", "log", "linear"]
    label = speedup.texts[1]
    assert label.get_text() == "not reached" and label.xy[0] >= speedup.get_xlim()[0] > 0


def test_several_seeds_are_one_line_with_its_interval(make_run: MakeRun) -> None:
    figure = draw(make_run(systems=["baseline", "weightgrad"], seeds=(0, 1, 2)))
    loss = figure.axes[0]
    assert len(loss.lines) == 3  # two systems and the target
    band = loss.collections[0].get_paths()[0].vertices[:, 1]
    assert np.nanmax(band) - np.nanmin(band) > 0


def test_a_long_run_is_thinned_and_keeps_its_end() -> None:
    column = np.arange(50_000)
    thin = curves.thinned(column)
    assert len(thin) <= curves.POINTS and thin[-1] == 49_999
    assert curves.thinned(column[:7]).tolist() == list(range(7))


@pytest.mark.parametrize(
    "options",
    [
        {"systems": ["weightgrad"], "steps": 30},
        {
            "systems": ["baseline", "terngrad", "weightgrad", "gaia", "dgc", "diloco", "qsgd", "something-new"],
            "steps": 60,
        },
        {"steps": 1},
        {"steps": 0},
        pytest.param({"target": {}}, marks=pytest.mark.slow),
        pytest.param({"target": {"accuracy": 0.4}}, marks=pytest.mark.slow),
        pytest.param({"target": {"loss": 9.0, "window": 500}}, marks=pytest.mark.slow),
        {"systems": []},
        pytest.param({"experiment": {"target": 3, "data": None}, "topology": {"regions": []}}, marks=pytest.mark.slow),
    ],
    ids=["one", "eight", "step", "none", "no-target", "accuracy", "window", "empty", "nonsense"],
)
def test_every_run_has_a_picture(make_run: MakeRun, options: dict[str, Any]) -> None:
    picture = pixels(make_run(**options))
    second_row_of_the_legend = 36 if len(options.get("systems", [])) > 7 else 0
    assert picture.shape[:2] == (1200 + second_row_of_the_legend, 1650)
    assert picture.std() > 0.02


def test_many_systems_make_the_picture_taller_not_the_bars_thinner(make_run: MakeRun) -> None:
    systems = ["baseline", *(f"system-{k}" for k in range(19))]
    height, width = pixels(make_run(systems=systems, steps=5)).shape[:2]
    assert width == 1650 and height > 1500


LONG = ["baseline", "hierarchical-allreduce", *(f"a-system-with-a-long-name-{k}" for k in range(7))]
WIDE = [
    "baseline",
    "weightgrad",
    "local-sgd",
    "concord",
    *(f"{part}-momentum-mmmm" for part in ("no", "more", "mean", "a")),
]


@pytest.mark.parametrize("systems", [LONG, WIDE], ids=["long", "wide letters"])
@pytest.mark.parametrize("kind", ["comparison", "stacked"])
def test_a_legend_of_long_names_is_no_wider_than_the_picture(make_run: MakeRun, kind: str, systems: list[str]) -> None:
    figure = pictures.draw(load(make_run(systems=systems, steps=5)), kind)
    png(figure)
    [legend] = [legend for part in (figure, *figure.subfigs) for legend in part.legends]
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_long_headline_is_no_wider_than_the_picture(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "; ".join(f"a-system-with-a-long-name-{k} reaches accuracy ≥ 65 % first, in 12 min 34 s" for k in range(4))
    monkeypatch.setattr(comparison, "verdict", lambda *what: said)
    figure = draw(make_run(steps=5))
    png(figure)
    [line] = [text for part in figure.subfigs for text in part.texts if text.get_text() == said]
    assert 0.9 * figure.bbox.x1 < line.get_window_extent().x1 <= figure.bbox.x1
