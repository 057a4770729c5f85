"""The documentation: every command in it runs as printed, the site builds offline, and what it lists is what there is.

A page's blocks are run in order, in a folder like the repository's. Commands stand in blocks marked `sh`. A block that
begins with a comment that names a file (`# sign.py`, `# mine.toml`) is written to that file, as a reader would; other
Python is executed. Training is cut to a few steps of a small model on the virtual fabric. A block that cannot run here
has a comment above it that says why (`<!-- test: skip, WHY -->`); its commands are checked for their options alone, and
so are those inside a line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from own_parts import forget_after

import testbed
from testbed import api
from testbed.cli import command_line, plot
from testbed.cli.needs import Finding
from testbed.experiment import load as experiment
from testbed.report.numbers.summary import COLUMNS
from testbed.report.pictures import PICTURES
from testbed.systems import SYSTEMS
from testbed.workloads.data import cifar

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- test: skip, (?P<why>[^>]+) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)```", re.DOTALL)
INLINE = re.compile(r"`((?:testbed|make) [a-z][^`]*)`")
LEAST = {"training.steps": 3, "run.checkpoint_steps": 3, "run.eval_images": 20, "model.name": "tiny"}
FILE = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
EXTERNAL = re.compile(r"""<(?:link|script|img|iframe)\b[^>]*\b(?:href|src)="(?:https?:)?//[^"]*\"""")
RUN_FROM_PYTHON = api.run
WHOLE = ("testbed doctor", "testbed clean", "make setup", "make help")  # commands; others of two words are talked about
OUTLASTS_A_TEST = ("pip ", "git clone", "tensorboard ")


@dataclass(frozen=True)
class Block:
    """A fenced block; `why_not` is the reason for not running it, "" where it runs."""

    page: str
    language: str
    body: str
    why_not: str

    @property
    def file(self) -> str:
        """The file that the block is; "" where it is to be run."""
        found = FILE.match(self.body)
        return found[1] if found else ""

    @property
    def commands(self) -> list[str]:
        joined = self.body.replace("\\\n", " ")
        return [line for line in map(str.strip, joined.splitlines()) if line and not line.startswith("#")]


def blocks(page: Path, *languages: str) -> list[Block]:
    found = (
        Block(page.name, each["language"], each["body"], each["why"] or "") for each in BLOCK.finditer(page.read_text())
    )
    return [block for block in found if block.language in languages]


def words(command: str, folder: Path) -> list[str]:
    """The command's words as a shell in `folder` makes them."""
    script = f"set -- {command}\nprintf '%s\\0' \"$@\""
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def made(command: str, folder: Path) -> list[str]:
    """The testbed's commands that a `make` command runs."""
    dry = command.replace("make", "make --dry-run", 1)  # first: a comment may end the line
    done = subprocess.run(["bash", "-c", dry], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    lines = done.stdout.replace("\\\n", " ").splitlines()
    return [line.replace(".venv/bin/", "") for line in lines if line.startswith(".venv/bin/testbed ")]


def check(command: str, folder: Path) -> None:
    """The command's target or options exist."""
    command = re.sub(r"<[^>]*>", "X", command)
    if command.startswith("make "):
        for each in made(command, folder):
            check(each, folder)
    elif command.startswith("testbed "):
        try:
            bare = command.partition(" >")[0]  # what it prints may go to a file
            command_line.parsed(shlex.split(bare, comments=True)[1:])
        except SystemExit as end:
            assert not end.code, f"{command}: the command line refuses it"


def run(command: str, folder: Path) -> None:
    """The command succeeds; what trains is cut short."""
    if command.startswith("make "):
        for each in made(command, folder):
            run(each, folder)
    elif command.startswith("testbed "):
        arguments = words(command, folder)[1:]
        if arguments[0] == "run" and "--resume" not in arguments:
            arguments += [] if "--fabric" in arguments else ["--fabric", "virtual"]
            arguments += [] if "--systems" in arguments else ["--systems", "baseline,weightgrad"]
            arguments += ["--jobs", "1"]  # more processes take longer to start than these few steps
            arguments += [word for key, value in LEAST.items() for word in ("--set", f"{key}={value}")]
        assert command_line.main(arguments) == 0, f"`{command}` failed"
    else:
        subprocess.run(["bash", "-ec", command], cwd=folder, check=True, capture_output=True, timeout=60)


def unreachable(*what: object) -> None:
    raise OSError("no network in a test")


def run_cut_short(*experiment: Any, set: Mapping[str, Any] | None = None, **wishes: Any) -> Any:
    """`testbed.run` as `run` runs commands."""
    return RUN_FROM_PYTHON(*experiment, set={**(set or {}), **LEAST}, **{"fabric": "virtual", "jobs": 1, **wishes})


@pytest.fixture
def folder(small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which commands find what they find in the repository; no network, and a machine that is well."""
    forget_after(monkeypatch)
    where = tmp_path / "repository"
    where.mkdir()
    for name in ("Makefile", "setup.cfg", "pyproject.toml", "experiments", "topologies", "benchmarks"):
        (where / name).symlink_to(ROOT / name)
    monkeypatch.chdir(where)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("MAKEFLAGS", "")
    monkeypatch.setattr(cifar, "fetch", unreachable)
    monkeypatch.setattr("testbed.cli.needs.examine", lambda: [Finding("Python", True, "as here")])  # as test_doctor.py
    monkeypatch.setattr(api, "run", run_cut_short)
    return where


FIRST_READ = ("README.md", "extend.md", "ask-first.md", "add-a-system.md", "add-a-workload.md")
FOLLOWED = [page if page.name in FIRST_READ else pytest.param(page, marks=pytest.mark.full) for page in PAGES]


@pytest.mark.slow
@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.name)
def test_a_page_can_be_followed(page: Path, folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "a_page"}  # what one block defines, the next ones use
    for block in blocks(page, "sh", "python", "toml"):
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.body)
        elif block.language == "python":
            exec(compile(block.body, page.name, "exec"), names)
        elif block.language == "sh":
            for command in block.commands:
                (check if block.why_not else run)(command, folder)


def test_what_is_skipped_has_a_reason_and_is_little() -> None:
    every = [block for page in PAGES for block in blocks(page, "sh")]
    skipped = [block for block in every if block.why_not]
    assert len(skipped) < len(every) / 2
    assert all(len(block.why_not.split()) >= 3 for block in skipped)
    for block in every:
        if not block.why_not:
            assert not [command for command in block.commands if command.startswith(OUTLASTS_A_TEST)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_inside_a_line_have_options_that_exist(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text())
    for command in INLINE.findall(prose):
        if ("..." not in command and len(command.split()) > 2) or command in WHOLE:
            check(command, ROOT)


def test_the_systems_page_lists_every_system() -> None:
    table = (ROOT / "docs" / "systems.md").read_text().partition("## What a server")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    assert set(SYSTEMS) == {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_systems_page_lists_every_option_and_its_default() -> None:
    page = (ROOT / "docs" / "systems.md").read_text().partition("## Options")[2]
    rows = {name: row for row in page.splitlines() for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    for name, system in SYSTEMS.items():
        listed = dict(re.findall(r"`(\w+)` ([^,|]+?)(?=,| \|)", rows[name].partition(" | ")[2]))
        fields = {field.name: field.default for field in msgspec.structs.fields(system.options_type)}
        options = {key: value for key, value in fields.items() if value is not msgspec.UNSET}
        assert listed == {key: json.dumps(value).replace("null", "none") for key, value in options.items()}, name


def test_the_codecs_page_names_modules_that_exist() -> None:
    table = (ROOT / "docs" / "codecs.md").read_text().partition("## Rules")[0]
    rows = re.findall(r"^\|.*\| (`[^|]*`) \|$", table, re.MULTILINE)
    assert rows and all(find_spec(f"testbed.codecs.{name}") for row in rows for name in re.findall(r"[\w.]+", row))


@pytest.mark.slow
def test_the_papers_page_lists_every_experiment_and_each_can_be_read() -> None:
    page = (ROOT / "docs" / "papers.md").read_text().partition("## What the papers claim")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)} - {"TARGET"}
    files = {path.stem: path.read_text() for path in (ROOT / "experiments").glob("*.toml")}
    of_no_paper = {name for name, text in files.items() if re.search("Not a paper's|by `testbed tune`", text)}
    assert listed | of_no_paper == files.keys()
    for name in listed:
        for scale in ("", *re.findall(rf"`{name}`.*?`SCALE=([\w-]+)`", page)):
            assert experiment.load(name, scale=scale)


def test_the_results_page_lists_every_column_and_kind_of_figure() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    assert not [column for column in COLUMNS if f"`{column}`" not in page]
    assert "testbed plot --help" in page and all(kind in plot.PLOT_EXAMPLES for kind in PICTURES)


TERMS = (
    *("fabric", "delay line", "dilation", "significant update", "LPS", "goodput", "gate", "profile", "trace", "codec"),
    *("local parameter server", "global server", "modelled device", "stand-in", "error feedback"),
)
NOT_PROSE = re.compile(
    r"```.*?```|<!-- from .*?<!-- end -->|<!--.*?-->|^#.*?$|!\[.*?\]\(.*?\)|`[^`]*`", re.DOTALL | re.MULTILINE
)
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()]*)\)")
STRESSED = re.compile(r"(\*\*?)(?!\s)([^*]+)\1")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "words.md"], ids=lambda page: page.name)
def test_a_term_is_explained_where_a_page_has_it_first(page: Path) -> None:
    """There it is in italics, with an explanation beside it, or a link to the list of words."""
    prose = NOT_PROSE.sub(" ", page.read_text())
    prose = LINK.sub(lambda link: f"*{link[1].strip('*')}*" if "words.md#" in link[2] else link[1], prose)
    stressed = [found.span() for found in STRESSED.finditer(prose)]
    for term in TERMS:
        term_or_terms = r"\s+".join(term.split()) + "s?"
        first = re.search(rf"(?<![\w-]){term_or_terms}(?![\w-])", prose, re.IGNORECASE)
        if first is not None:
            near = " ".join(prose[max(0, first.start() - 60) : first.end() + 60].split())
            assert any(start < first.start() < end for start, end in stressed), f"{term}: ...{near}..."


def test_links_to_the_list_of_words_name_a_word() -> None:
    known = set(re.findall(r'<a id="([\w-]+)">', (ROOT / "docs" / "words.md").read_text()))
    named = {name for page in PAGES for name in re.findall(r"words\.md#([\w-]+)", page.read_text())}
    assert named and not named - known


def test_the_python_page_has_every_public_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert not [name for name in testbed._HOME if not re.search(rf"`(?:testbed\.)?{name}`|testbed\.{name}\b", page)]


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    # Not quietly: what is not told is not counted, and --strict fails by counting.
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {page.stem for page in pages} >= {page.stem for page in PAGES if page.parent.name == "docs"}
    for page in pages:
        assert not EXTERNAL.findall(page.read_text()), page


def test_make_takes_its_own_variables_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def dry(*given: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--dry-run", "experiment", *given]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    wrong = dry("SYSTEM=terngrad", "STEPS=5")
    assert wrong.returncode == 2 and "unknown variable SYSTEM; did you mean SYSTEMS?" in wrong.stderr
    monkeypatch.setenv("OUT", "elsewhere")  # of the environment, where it may be about something else
    assert "elsewhere" not in dry().stdout and "--out there" in dry("OUT=there").stdout.replace('"', "")
    right = dry("SYSTEMS=baseline terngrad", "STEPS=5")
    assert '--systems "baseline terngrad" ' in right.stdout and "training.steps=5" in right.stdout
