"""A picture of one's own is one new file outside the package, and any picture is a figure like any other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from testbed import plugins
from testbed.cli import main
from testbed.errors import InputError
from testbed.record.reader import load
from testbed.report.numbers.summary import summarize
from testbed.report.page.html import pictures as pictures_of_the_page
from testbed.report.pictures import PICTURES, draw, write
from testbed.report.pictures.registry import gallery
from testbed.report.pictures.style import COLUMN, FORMATS, WIDE

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]
OWN = '''
"""How long each step took."""

from testbed.report.looks import look
from testbed.report.pictures import picture, sheet


@picture("steps")
def steps(run, frame):
    """How long each step took, of those who took any."""
    results = [result for result in run.results if len(result.steps) > 1]
    if not results:
        return None
    figure = sheet(2.0, [run])
    axes = figure.subplots()
    for result in results:
        axes.plot(result.steps["time_s"].diff(), color=look(result.system).color, label=look(result.system).label)
    axes.legend()
    return figure
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is loaded; what it registered is forgotten after the test."""
    assert len(PICTURES) > 0  # the testbed's own are there
    for registered in ("_found", "_origins"):
        monkeypatch.setattr(PICTURES, registered, dict(getattr(PICTURES, registered)))
    monkeypatch.setattr(plugins, "_loaded", {})
    (tmp_path / "steps.py").write_text(OWN)
    plugins.load(["./steps.py"], tmp_path)


def test_one_file_is_enough_for_a_picture_of_ones_own(own: None, make_run: MakeRun, tmp_path: Path) -> None:
    run = load(make_run())
    axes = draw(run, "steps").axes[0]
    assert [line.get_label() for line in axes.lines] == ["Baseline", "TernGrad", "WeightGrad"]
    assert main(["plot", str(run.folder), "--kind", "steps", "--format", "png", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "steps.png").stat().st_size > 5_000


def test_it_stands_behind_the_testbeds_own_on_the_page(own: None, make_run: MakeRun) -> None:
    run = load(make_run())
    shown = pictures_of_the_page(run, summarize(run))
    assert gallery()[-1].name == "steps"
    assert shown[-1][:2] == ("steps", "How long each step took, of those who took any.")


def test_where_the_records_do_not_have_its_data_it_is_left_out_or_refused(own: None, make_run: MakeRun) -> None:
    run = load(make_run(steps=1))
    with pytest.raises(InputError, match="hold nothing for 'steps': How long each step took"):
        draw(run, "steps")
    assert "steps" not in {path.stem for path in write([run], run.folder / "plots", formats=["png"])}


def test_a_kind_that_nobody_registered_is_refused_with_the_nearest(make_run: MakeRun) -> None:
    run = load(make_run(steps=5))
    with pytest.raises(InputError, match=r"unknown kind of picture 'los'; did you mean 'loss'\?.*plug-in"):
        draw(run, "los")
    with pytest.raises(InputError, match="'loss' is of one run; these are 2"):
        draw([run, run], "loss")


def test_a_picture_keeps_its_style_wherever_it_is_shown(make_run: MakeRun, tmp_path: Path) -> None:
    run = load(make_run(steps=20))
    figure = draw(run, "loss")
    assert isinstance(figure, Figure)
    shown = figure._repr_png_()
    with matplotlib.rc_context({"font.size": 30, "pdf.fonttype": 3, "axes.grid": False}):
        assert figure._repr_png_() == shown
        figure.savefig(tmp_path / "loss.pdf")
    assert b"/FontFile2" in (tmp_path / "loss.pdf").read_bytes()


def test_drawing_needs_no_pyplot_and_leaves_the_users_settings_alone(make_run: MakeRun) -> None:
    folder = make_run(steps=20)
    code = (
        "import sys, matplotlib\n"
        "from testbed.record.reader import load\n"
        "from testbed.report.pictures import draw\n"
        "matplotlib.rcParams['font.size'] = 31\n"
        f"draw(load({str(folder)!r}), 'comparison')\n"
        "assert 'matplotlib.pyplot' not in sys.modules and matplotlib.rcParams['font.size'] == 31\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_styles_are_matplotlibs_parameters_and_the_column_keeps_what_the_page_fixes() -> None:
    assert set(WIDE.params) < set(COLUMN.params) <= set(matplotlib.rcParams)
    assert COLUMN.params["font.family"] == WIDE.params["font.family"] and FORMATS == ("png", "pdf")
