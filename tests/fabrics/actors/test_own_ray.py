"""Ray's start: its words about itself are kept from the user, but where it fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.errors import RunError
from testbed.fabrics.actors.own_ray import _starting


def test_what_libraries_say_meanwhile_goes_to_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with _starting(tmp_path / "log"):
        os.write(2, b"a warning\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"
    assert (tmp_path / "log").read_text() == "a warning\n"


def test_a_start_that_fails_is_one_line_and_what_was_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(RunError) as failure, _starting(tmp_path / "log"):
        os.write(2, b"bind: address in use\n")
        raise OSError("no port is free\nand more")
    assert str(failure.value) == "Ray does not start: no port is free"
    assert failure.value.__notes__ == ["bind: address in use\n"]
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"
