"""What is no run's folder is refused, and the one that was meant is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.record.info import FILE_NAME
from testbed.record.place import check


@pytest.mark.parametrize(("part", "kind"), [("baseline/seed-0", "a seed"), ("baseline", "a system")])
def test_a_part_of_a_run_is_told_from_the_run(
    part: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("results/mine/one/baseline/seed-0")
    place.mkdir(parents=True)
    for folder in (place, place.parents[1]):
        (folder / FILE_NAME).write_text("{}")
    run = place.parents[1]
    check(run)
    for given in (run / part, (run / part).resolve()):
        with pytest.raises(InputError, match=f"it is the folder of {kind} in the run {run}; give that"):
            check(given)
