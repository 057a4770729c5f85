"""Files and their paths."""

import shlex
from pathlib import Path

import pytest

from testbed.files import typed_path


def test_a_path_is_typed_as_a_shell_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed_path(tmp_path / "my results" / "run") == "'my results/run'"
    assert shlex.split(f"testbed run --resume {typed_path(Path('/a b/$c'))}")[-1] == "/a b/$c"
    assert typed_path(tmp_path / "results") == "results"
