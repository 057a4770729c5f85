"""What comes from outside without end (digits, depth, infinity, NUL) is refused in one line, whatever key it is at."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import PLAIN, plain, toml

from testbed.cli import main
from testbed.errors import LISTED, InputError, nearest
from testbed.experiment.load import from_dict, load
from testbed.wan import plain as outside
from testbed.wan import profile, reading
from testbed.wan.measure import Hosts

DIGITS = "9" * 5_000
DEEP = "[" * 50_000
DOTTED = ".".join("a" * 2_000)


def one_line(error: InputError) -> str:
    text = str(error)
    assert "\n" not in text and len(text) < 1_000
    return text


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (DIGITS, "not valid TOML: Exceeds the limit"),
        (f"0x{'f' * 5_000}", "run.patience_s is a number of 20000 bits: it must fit into 64 bits"),
        (DEEP, "nested too deeply"),
        ("{ a = " * 40 + "1" + "}" * 40, "nested too deeply"),
        ("1e309", "run.patience_s is inf: it must be a finite number"),
        ("nan", "run.patience_s is nan: it must be a finite number"),
        ('"a\\u0000b"', "run.patience_s is 'a\\x00b': no name can have a NUL in it"),
    ],
    ids=["digits", "hexadecimal", "brackets", "tables", "1e309", "nan", "nul"],
)
def test_what_has_no_end_is_refused(tmp_path: Path, value: str, line: str) -> None:
    data = toml({name: table for name, table in PLAIN.items() if name != "run"})
    path = tmp_path / "mine.toml"
    path.write_text(f"{data}\n[run]\nfabric = 'virtual'\npatience_s = {value}\n")
    with pytest.raises(InputError) as error:
        load(str(path))
    assert one_line(error.value).startswith(f"{path}: ") and line in str(error.value)


@pytest.mark.parametrize("text", [f"{DOTTED} = 1", '"a\\u0000b" = 1', f"[{DOTTED}]"], ids=["key", "nul", "table"])
def test_so_is_a_key(text: str) -> None:
    with pytest.raises(InputError) as error:
        outside.toml(text, "mine.toml")
    one_line(error.value)


@pytest.mark.parametrize(
    "setting",
    [
        f"run.patience_s={DIGITS}",
        f"run.patience_s={DEEP}",
        f"{DOTTED}=1",
        "compute.dilation=1e309",
        "run.patience_s=inf",
        "run.patience_s=1e300",
        "run.link_interval_s=1e-9",
        "topology.wan_factor=1e300",
        'faults=["cut a:b at 1e309s"]',
        f'faults=["cut a at {"9" * 400}s"]',
        'topology.trace="a\\u0000b"',
        'data.path="a\\u0000b"',
    ],
    ids=lambda setting: setting[:30],
)
def test_a_setting_is_held_to_the_same(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(plain()))
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--set", setting]) == 2
    error = capsys.readouterr().err
    assert error.startswith("testbed: error: ") and error.count("\n") == 1 and len(error) < 3_000
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [float("inf"), 10**5_000, "a\0b"], ids=["inf", "digits", "nul"])
def test_so_is_an_experiment_out_of_a_record(value: object) -> None:
    with pytest.raises(InputError) as error:
        from_dict({**plain(), "title": value}, "run.json")
    one_line(error.value)


@pytest.mark.parametrize("text", [f"title = {DIGITS}", f"title = {DEEP}", "title = inf", f"{DOTTED} = 1"])
def test_so_is_every_other_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for read in (lambda: profile.load(str(path)), lambda: reading.read_toml(path, Hosts)):
        with pytest.raises(InputError) as error:
            read()
        one_line(error.value)


def test_a_line_does_not_list_names_without_end() -> None:
    known = [f"region-{number}" for number in range(200_000)]
    line = nearest("region-0x", known)
    assert "did you mean 'region-0'?" in line and line.endswith(f" and {200_000 - LISTED:,} more")
    assert len(line) < 2_000
