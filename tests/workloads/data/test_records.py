"""Files of records: what is written is read, and what is damaged is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.workloads.data.records import Format, store

FORM = Format("Somewhat", (3, 4, 5), classes=300, label_bytes=2)


def records(labels: list[int]) -> np.ndarray:
    batch = np.random.default_rng(0).integers(0, 256, (len(labels), FORM.record_bytes), dtype=np.uint8)
    batch[:, :2] = np.array(labels, "<u2")[:, None].view(np.uint8)
    return batch


def test_round_trip(tmp_path: Path) -> None:
    batches = [records([0, 255, 256]), records([299])]
    assert store(batches, ["a", "b"], tmp_path / "set")
    mapped = [FORM.map(tmp_path / "set" / name) for name in "ab"]
    assert not mapped[0].flags.writeable
    split = FORM.split(mapped)
    assert split.labels.tolist() == [0, 255, 256, 299]
    assert split.images.shape == (4, 3, 4, 5)
    assert split.images.take(np.array([3])).flatten().tolist() == batches[1][0, 2:].tolist()


@pytest.mark.parametrize("size_bytes", [0, 1, 61, 63, 200])
def test_a_file_of_no_whole_number_of_records_is_named(tmp_path: Path, size_bytes: int) -> None:
    (tmp_path / "a").write_bytes(bytes(size_bytes))
    with pytest.raises(InputError, match=rf"a: {size_bytes} bytes, expected (62|186); the file is damaged"):
        FORM.map(tmp_path / "a")


def test_a_file_of_another_number_of_records_is_named(tmp_path: Path) -> None:
    records([1, 2]).tofile(tmp_path / "a")
    with pytest.raises(InputError, match="a: 124 bytes, expected 186"):
        FORM.map(tmp_path / "a", records=3)


def test_a_label_that_is_no_class_is_named(tmp_path: Path) -> None:
    records([1, 300]).tofile(tmp_path / "a")
    with pytest.raises(InputError, match="a: holds label 300, Somewhat has 0 to 299"):
        FORM.map(tmp_path / "a")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a: No such file or directory; put a whole copy of Somewhat there"):
        FORM.map(tmp_path / "a")


def test_where_nothing_can_be_written_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not store([records([1])], ["a"], tmp_path / "file" / "set")
