"""Work in processes of its own."""

from pathlib import Path
from typing import Any

from testbed.harness.pool import Errand, run_all


def _note_threads(folder: Path, experiment: dict[str, Any]) -> None:
    import torch

    (folder / "threads").write_text(str(torch.get_num_threads()))


def test_those_at_once_share_the_cores(tmp_path: Path) -> None:
    """Two that each took all cores for their tests would wait for each other: four times as long."""

    def share(processes: int) -> int:
        run_all([Errand("work", _note_threads, tmp_path, {})], processes)
        return int((tmp_path / "threads").read_text())

    alone = share(1)
    assert share(2) == max(1, alone // 2)
    assert share(alone + 1) == 1
