"""A run of a series lies in a folder called by its label: one plain name, where it is made and where it is read."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from small_runs import plain, toml

from testbed.cli import main
from testbed.errors import InputError
from testbed.experiment.load import load
from testbed.files import plain_name
from testbed.harness import lock, session, sweep

OUTSIDE = ["../outside", "/tmp/outside", "..", ".", "", "a/b", "a\0b", "a\nb", "x" * 256]


def series(values: str) -> str:
    return toml(plain(systems={"baseline": {}}, training={"steps": 2})) + f"\n[sweep]\n{values}\n"


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leads_elsewhere_is_none(name: str) -> None:
    with pytest.raises(InputError) as error:
        plain_name(name, "here:")
    assert str(error.value).startswith("here: ") and "\n" not in str(error.value)


def test_values_with_slashes_have_labels_without(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(series('"title" = ["one/two", "three"]\n"training.batch_size" = [8, 16]'))
    assert [point.label for point in load(str(path))] == ["title=one-two-batch_size=8", "title=three-batch_size=16"]


@pytest.mark.parametrize("values", ['"title" = ["a/b", "a-b"]', '"training.batch_size" = [8, 8]'])
def test_two_runs_of_one_name_are_refused(tmp_path: Path, values: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(series(values))
    with pytest.raises(InputError, match="two of its runs would be called"):
        load(str(path))


def test_a_name_too_long_for_a_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(series(f'"title" = ["{"x" * 300}", "short"]'))
    with pytest.raises(InputError, match="255 are possible"):
        load(str(path))


@pytest.fixture
def begun(small_data: None, tmp_path: Path) -> Path:
    """A series of which nothing has been played."""
    path = tmp_path / "mine.toml"
    path.write_text(series('"training.batch_size" = [8, 16]'))
    request = session.Request("mine", "virtual", results=tmp_path)
    return sweep.begin(load(str(path)), request, tmp_path / "results" / "mine" / "series")


CHECKSUM = re.compile(r',\s*"crc": ?"[0-9a-f]{8}"')  # whoever changes a file on purpose leaves it out


def doctored(folder: Path, change: dict[str, str]) -> None:
    """Put other texts into the series' file."""
    path = folder / sweep.FILE_NAME
    text = path.read_text()
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(CHECKSUM.sub("", text))


@pytest.mark.parametrize("label", ["../outside", "/tmp/outside-testbed", "..", "a/b"])
def test_a_changed_label_does_not_lead_outside(
    begun: Path, label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctored(begun, {"batch_size=16": label})
    before = sorted(tmp_path.rglob("*"))
    assert main(["run", "--resume", str(begun)]) == 2
    assert "points: " in (error := capsys.readouterr().err) and "no plain name" in error
    assert sorted(path for path in tmp_path.rglob("*") if path.name != lock.FILE_NAME) == before


def test_a_changed_system_does_not_lead_outside(
    begun: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doctored(begun, {'"baseline"': '"../../outside"'})
    before = sorted(tmp_path.rglob("*"))
    assert main(["run", "--resume", str(begun)]) == 2
    assert "unknown system '../../outside'" in capsys.readouterr().err
    assert sorted(path for path in tmp_path.rglob("*") if path.name != lock.FILE_NAME) == before


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b"[" * 100_000, b'{"points": ' + b"9" * 5000 + b"}"])
def test_a_damaged_series_is_one_line(begun: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (begun / sweep.FILE_NAME).write_bytes(content)
    assert main(["run", "--resume", str(begun)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"testbed: error: {begun / sweep.FILE_NAME}: ") and error.count("\n") == 1


def test_a_series_without_its_parts_is_one_line(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = msgspec.json.decode((begun / sweep.FILE_NAME).read_bytes())
    stored["points"] = {label: {} for label in stored["points"]}
    (begun / sweep.FILE_NAME).write_bytes(msgspec.json.encode(stored))
    assert main(["run", "--resume", str(begun)]) == 2
    assert "topology is missing" in capsys.readouterr().err
