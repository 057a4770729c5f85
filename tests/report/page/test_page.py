"""The report page is one file that needs nothing else, and its numbers are the records'."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from testbed.record.info import DataInfo, Environment, LinkInfo
from testbed.record.reader import load
from testbed.report.numbers.compare import compare
from testbed.report.numbers.sentences import headlines, verdict
from testbed.report.numbers.summary import summarize
from testbed.report.numbers.tables import compared_tables
from testbed.report.page.html import page, write_page
from testbed.report.page.markdown import markdown
from testbed.report.papers.beside import paper_rows

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
PROBE = {"section": "round trip", "name": "us-east-1<>us-west-1", "unit": "ms", "asked": 59.5, "bound": "± 2 %"}
FACTS = {
    "network": {"us-west-1>us-east-2": LinkInfo(goodput_mbit=119.0, rtt_ms=49.0)},
    "gate": {"figures": [{**PROBE, "measured": 59.6, "ok": True}, {**PROBE, "measured": 91.0, "ok": False}]},
    "command": ["run", "cifarnet", "--seeds", "0 1"],
    "environment": Environment(commit="0123abc", dirty=True, cpu="Some CPU", cores=2, packages={"torch": "2.13.0"}),
}


class Page(HTMLParser):
    """What a reader sees of a page: words, cells of tables, what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.cells, self.loads, self._open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self._open):
            self.words.append(data)
        if "td" in self._open:
            self.cells[-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page_of(folder: Path) -> Page:
    run = load(folder)
    return Page(page(run, summarize(run), pictures=[]))


def test_the_pages_numbers_are_the_records(make_run: MakeRun) -> None:
    folder = make_run(seeds=(0, 1, 2), **FACTS)
    run, frame = load(folder), summarize(load(folder))
    shown = page_of(folder)
    for _, rows in compared_tables(compare([run])).values():
        for row in rows:
            assert all(cell in shown.cells for cell in row)
    assert all(cell in shown.cells for row in paper_rows(run, frame) for cell in row)
    assert verdict(run, frame) in shown.text
    assert all(sentence in shown.text for sentence in headlines(run, frame))


def test_the_page_needs_no_other_file_and_runs_no_script(make_run: MakeRun) -> None:
    path = write_page(make_run(**FACTS))
    shown = Page(path.read_text())
    assert path.name == "report.html" and len(shown.loads) >= 4
    assert all(load.startswith(("data:image/png;base64,", "data:,")) for load in shown.loads)
    assert not re.search(r"<script|https?://|@import|url\(", path.read_text())


def test_the_page_holds_the_network_and_what_was_measured_of_it(make_run: MakeRun) -> None:
    shown = page_of(make_run(**FACTS))
    assert "1 of 2 measurements before the run kept their bounds" in shown.text
    assert {"us-west-1 → us-east-2", "119", "59.5 ms", "91.0 ms", "✗"} <= set(shown.cells)
    assert "NOT CHECKED" in page_of(make_run("unchecked", gate={"skipped": True})).text
    assert (
        "modelled on a virtual clock" in page_of(make_run("virtual", fabric="virtual", delay_mechanism="modelled")).text
    )


def test_the_page_says_how_to_repeat_the_run_and_on_what_it_ran(make_run: MakeRun) -> None:
    shown = page_of(make_run(**FACTS))
    assert "testbed run cifarnet --seeds '0 1'" in shown.text
    assert "git checkout 0123abc # and the changes" in shown.text
    assert "training.batch_size 128" in shown.text and "torch 2.13.0" in shown.text


@pytest.mark.parametrize(
    ("typed", "on_the_page", "in_the_summary"),
    [
        (
            ["run", "a", "--set", 'title="a $HOME title"', "--fault", "pause b at 1s"],
            """testbed run a --set 'title="a $HOME title"' --fault 'pause b at 1s'""",
            """`testbed run a --set 'title="a $HOME title"' --fault 'pause b at 1s'`""",
        ),
        (["mine.py", "two words"], "python mine.py 'two words'", "`python mine.py 'two words'`"),
        ([], "# from Python, with the settings below", "from Python, with the settings in run.json"),
    ],
)
def test_the_command_is_what_was_typed(
    make_run: MakeRun, typed: list[str], on_the_page: str, in_the_summary: str
) -> None:
    folder = make_run(systems=["baseline"], command=typed)
    assert on_the_page in page_of(folder).text and "testbed run cifarnet" not in page_of(folder).text
    run = load(folder)
    assert f"\n- command: {in_the_summary}\n" in markdown(run, summarize(run))


def test_what_the_records_hold_is_text_never_markup(make_run: MakeRun) -> None:
    evil = "<script>alert('x')</script>"
    folder = make_run(notes=[evil], command=["run", evil], data=DataInfo(dataset=evil))
    text = page(load(folder), summarize(load(folder)), pictures=[])
    assert "<script" not in text and html.escape(evil, quote=False).split("(")[0] in text


def test_a_killed_run_has_a_page_that_says_what_is_missing(make_run: MakeRun) -> None:
    folder = make_run(ends={"terngrad": (30, None)})
    path = folder / "terngrad" / "seed-0" / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    (folder / "weightgrad" / "seed-0" / "run.json").unlink()
    shown = page_of(folder)
    assert "What the record lacks" in shown.text
    assert "terngrad seed 0: the last line of events.jsonl is cut off" in shown.text
    assert "terngrad seed 0: it did not end: killed, or still running" in shown.text
    assert "TernGrad (unfinished)" in shown.cells and "not reached" in shown.cells


@pytest.mark.parametrize("options", [{"systems": []}, {"target": {}}, {"experiment": {}, "network": {}}])
def test_every_run_has_a_page(make_run: MakeRun, options: dict) -> None:
    assert "How to repeat it" in page_of(make_run(**options)).text


def test_a_run_without_facts_has_a_page(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "run.json").unlink()
    assert "the facts of the run are not known" in page_of(folder).text


DARK = pytest.param("dark", 1200, ("--blink-settings=preferredColorScheme=0",), marks=pytest.mark.full)
PHONE = pytest.param("phone", 500, (), marks=pytest.mark.full)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")
@pytest.mark.parametrize(
    ("look", "width", "options"),
    [("light", 1200, ()), DARK, PHONE],
)
def test_a_browser_shows_the_page_without_an_error(
    make_run: MakeRun, tmp_path: Path, look: str, width: int, options: tuple[str, ...]
) -> None:
    from matplotlib.image import imread

    path = write_page(make_run(seeds=(0, 1, 2), **FACTS))
    shot = Path(os.environ.get("TESTBED_ARTIFACTS", tmp_path)) / f"report-{look}.png"
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--enable-logging=stderr",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1600", f"--screenshot={shot}"]
    done = subprocess.run([*command, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    pixels = imread(shot)[..., :3]
    corner = pixels[:8, :8].mean()
    assert corner < 0.2 if look == "dark" else corner > 0.95
    # The overview is there: the colours of the systems' bars fill more than text ever does.
    orange = (abs(pixels - [0xE6 / 255, 0x9F / 255, 0]) < 0.02).all(axis=-1)
    assert orange.sum() > 500


def test_the_newest_fidelity_record_is_named(make_run: MakeRun) -> None:
    folder = make_run()
    info = json.loads((folder / "run.json").read_text()) | {"fabric": "mininet"}
    for known, said in (
        ({}, "not measured on this kernel"),
        ({"path": "x.json", "date": "2026-11-21T01:02", "figures": 309, "missed": 0}, "all 309 figures"),
        ({"path": "x", "date": "2026-11-21", "figures": 309, "missed": 2}, "2 of 309 figures beyond their bounds"),
    ):
        (folder / "run.json").write_text(json.dumps(info | {"fidelity": known}))
        assert said in page_of(folder).text
