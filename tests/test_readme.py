"""The README's numbers are those of the reference run, which `make reference` makes anew."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference" / "cifarnet"
BEGIN, END = "<!-- reference:begin -->\n", "<!-- reference:end -->"


def excerpt() -> str:
    """The result table of the reference run and what it was run on."""
    lines = (REFERENCE / "summary.md").read_text().splitlines()
    table = [line for line in lines[: lines.index("## Beside the papers")] if line.startswith("|")]
    machine = next(line.partition(": ")[2] for line in lines if line.startswith("- machine"))
    conditions = next(line for line in lines if "·" in line)
    return f"The default run ({conditions}), on {machine}:\n\n" + "\n".join(table) + "\n"


def test_the_readme_shows_the_reference_run(request: pytest.FixtureRequest) -> None:
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    if request.config.getoption("--rewrite-golden"):
        readme.write_text(f"{before}{BEGIN}{excerpt()}{END}{after}")
        return
    assert shown == excerpt()
    assert (REFERENCE / "comparison.png").is_file()


def test_the_readme_begins_with_the_two_commands() -> None:
    commands = [line.split("#")[0].strip() for line in (ROOT / "README.md").read_text().splitlines()[:6]]
    assert "make experiment TARGET=cifarnet" in commands
    assert "make test" in commands
