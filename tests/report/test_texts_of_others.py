"""Texts from outside (titles, targets, notes) stand in tables and pictures as they are: no formula, HTML or heading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.record.info import RunInfo, read_info, write_info
from testbed.report.numbers.tables import markdown_table, markdown_text
from testbed.report.pictures.style import POWER
from testbed.report.write import write_report
from testbed.wan import profile, store

MakeRun = Callable[..., Path]
SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SCRIPT, r"\<script>alert(1)\</script>"),
        ("one\n# two", "one # two"),
        ("# one", r"\# one"),
        ("> one", r"\> one"),
        ("![x](http://y)", r"!\[x\](http://y)"),
        ("a `b` c", r"a \`b\` c"),
        ("us-east_1, 47.2 % (5.36×)", "us-east_1, 47.2 % (5.36×)"),
    ],
)
def test_a_text_stays_text_in_markdown(text: str, line: str) -> None:
    assert markdown_text(text) == line


def test_a_cell_stays_in_its_table() -> None:
    assert markdown_table(["a", "b"], [["x|y\nz", SCRIPT]]).splitlines()[2:] == [
        r"| x\|y z | \<script>alert(1)\</script> |"
    ]


@pytest.mark.slow
def test_no_raw_html_or_heading_gets_into_a_summary(make_run: MakeRun) -> None:
    finished = make_run()
    facts = read_info(finished, RunInfo)
    facts.target = facts.profile = f"# {SCRIPT}\n# mine"
    facts.notes = facts.command = [f"{SCRIPT}\n\n# a heading `code`"]
    facts.data.note = f"{SCRIPT}\n# a heading"
    facts.environment.commit = facts.environment.cpu = f"{SCRIPT}\n# a heading"
    write_info(finished, facts)
    write_report(finished)
    text = (finished / "summary.md").read_text()
    inside_code = "\n".join(line for line in text.splitlines() if not line.startswith("- command: `"))
    assert "alert(1)" in text
    assert "<script" not in inside_code.replace(r"\<script", "")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert all(heading.startswith(("# \\#", "## ", "### ")) for heading in headings) and "# a heading" not in headings


@pytest.mark.slow
@pytest.mark.parametrize("title", ["$", "costs 5$ or 6$", r"$\frac{$", "$$", r"$\mathdefault{\x$"])
def test_a_title_with_dollars_can_be_drawn(title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = profile.load("weightgrad-ec2")
    path = store.save_profile(profile.Profile(**{**vars(found), "title": title, "name": "mine"}), tmp_path)
    png = tmp_path / "mine.png"
    assert main(["profile", "show", str(path), "--png", str(png)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("label", [r"$\mathdefault{10^{2}}$", r"$\mathdefault{2\times10^{-1}}$", r"$\mathdefault{5}$"])
def test_the_powers_of_a_logarithmic_axis_are_still_set_as_such(label: str) -> None:
    assert POWER.fullmatch(label)


@pytest.mark.parametrize("label", [r"$\mathdefault{\frac{$", r"$x^2$", r"$\mathdefault{10^{2}}$ and $", "$"])
def test_any_other_formula_is_text(label: str) -> None:
    assert not POWER.fullmatch(label)
