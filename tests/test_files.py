"""Files and their paths."""

import re
import shlex
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.files import typed_path, write_whole


def test_a_path_is_typed_as_a_shell_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert typed_path(tmp_path / "my results" / "run") == "'my results/run'"
    assert shlex.split(f"testbed run --resume {typed_path(Path('/a b/$c'))}")[-1] == "/a b/$c"
    assert typed_path(tmp_path / "results") == "results"


@pytest.mark.parametrize("path", [".", "/", "there"])
def test_a_folder_is_not_replaced_by_a_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match=rf"^{re.escape(path)}: is a directory; name a file$"):
        write_whole(Path(path), "")
    assert [each.name for each in tmp_path.iterdir()] == ["there"]
