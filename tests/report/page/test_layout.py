"""The report page and its pictures fit a phone's, a laptop's and a desk's window: nothing cut, nothing covered."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import browser
import pytest
from small_runs import experiment, start, use_small_data

from testbed.report.write import write_report
from testbed.workloads.data.records import Records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"run": {"seeds": [0, 1]}},
    "disturbed": {
        "topology": {"trace": "topologies/traces/outage.csv"},
        "systems": {"baseline": {}, "weightgrad": {}},
        "faults": ["cut us-west-1=us-east-2 at 0.2s for 0.2s", "slow us-east-1/w1 factor=4 at 0s"],
    },
    "timed": {"compute": {"math": "none"}, "systems": {"baseline": {}, "terngrad": {}}},
}


@pytest.fixture(scope="module")
def pages(small_batches: list[Records], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report of a run of each of `KINDS`."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        use_small_data(patch, small_batches, folder / "data")
        for kind, parts in KINDS.items():
            it = experiment(target={"loss": 2.3}, **parts)
            run, _ = write_report(start(it, folder / "runs" / kind))
            shutil.copy(run.folder / "report.html", folder / f"{kind}.html")
    return folder


@pytest.mark.parametrize("look", [(), (browser.DARK,)], ids=["light", "dark"])
def test_a_report_fits_every_window(pages: Path, look: tuple[str, ...]) -> None:
    assert browser.faults(pages, [f"{kind}.html" for kind in KINDS], browser.WIDTHS, *look) == {}


def test_what_does_not_fit_is_found(pages: Path) -> None:
    """The measure itself: text that is cut or covered, a page that is too wide, a table without a sign."""
    page = (pages / "plain.html").read_text()
    for fault, said in {
        "<p style='overflow:hidden;white-space:nowrap;width:3rem'>one two three four</p>": "cut: ",
        "<p style='margin-bottom:-1.6rem'>above</p><p>below</p>": '"above" covers "below"',
        "<p style='width:700px'>wide</p>": "px wide",
        "<div class='wide' style='background:none'><p style='width:90rem'>table</p></div>": "does not show",
    }.items():
        (pages / "wrong.html").write_text(page.replace("<main>", f"<main>{fault}"))
        [found] = browser.faults(pages, ["wrong.html"], [400]).values()
        assert any(said in each for each in found), fault


def test_a_narrow_window_has_the_headline_panels_one_below_the_other(pages: Path) -> None:
    text = (pages / "plain.html").read_text()
    before, _, after = text.partition('<source media="(max-width: 44rem)" srcset="')
    assert before and after.startswith("data:image/png;base64,")
