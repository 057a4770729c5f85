"""ImageNet folders and Tiny-ImageNet: trees of small JPEGs, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from testbed.errors import InputError
from testbed.workloads.data import base as data
from testbed.workloads.data import folders, tinyimagenet
from testbed.workloads.data.records import Format

CLASSES = ("n01440764", "n01443537", "n01484850")


def save(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (60, 40)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, quality=95)
    return path


@pytest.fixture
def tree(data_root: Path) -> Path:
    """Three classes, with 2, 3 and 4 training images, and 4 validation images each; the class is the red value."""
    for number, name in enumerate(CLASSES):
        for part, count in (("train", 2 + number), ("val", 4)):
            for image in range(count):
                save(data_root / "imagenet" / part / name / f"{name}_{image}.JPEG", (80 * number, 7, 9))
    return data_root / "imagenet"


def test_labels_are_the_folders_in_alphabetical_order(tree: Path) -> None:
    loaded = data.load("imagenet", on_notice=pytest.fail)
    assert (loaded.real, loaded.outputs) == (True, 3)
    assert loaded.train_labels.tolist() == [0] * 2 + [1] * 3 + [2] * 4
    assert sorted(loaded.test_labels) == [0] * 4 + [1] * 4 + [2] * 4
    for images, labels in (
        (loaded.train_images, loaded.train_labels),
        (loaded.test_images, loaded.test_labels),
    ):
        assert images.shape == (len(labels), 3, 256, 256)
        pixels = images.take(np.arange(len(labels))[::-1]).float()
        reds = pixels[:, 0].mean((1, 2)).tolist()
        assert reds == pytest.approx((80 * labels[::-1]).tolist(), abs=4)


def test_the_middle_is_cut_out_and_scaled(tmp_path: Path) -> None:
    picture = np.zeros((20, 100, 3), np.uint8)
    picture[:, 40:60] = (200, 100, 50)  # the middle square
    Image.fromarray(picture).save(tmp_path / "a.png")
    square = folders.decoded(tmp_path / "a.png", 32)
    assert square.shape == (3, 32, 32)
    assert (square[:, :, 1:-1] == np.array([200, 100, 50])[:, None, None]).all()


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_every_kind_of_jpeg_becomes_three_channels(tmp_path: Path, mode: str) -> None:
    Image.new(mode, (30, 20)).save(tmp_path / "a.jpeg")
    assert folders.decoded(tmp_path / "a.jpeg", 16).shape == (3, 16, 16)


def test_a_damaged_image_is_named_when_it_is_taken(tree: Path) -> None:
    victim = tree / "train" / CLASSES[1] / f"{CLASSES[1]}_1.JPEG"
    whole = save(victim, (1, 2, 3), (600, 400)).read_bytes()
    loaded = data.load("imagenet")
    for content in (whole[: len(whole) // 2], b"", b"no image", whole[:20]):
        victim.write_bytes(content)
        with pytest.raises(InputError, match=rf"{victim.name}: .*; replace the file or remove it"):
            loaded.train_images.take(np.array([0, 3]))
    victim.unlink()
    with pytest.raises(InputError, match=rf"{victim.name}: .*No such file"):
        loaded.train_images.take(np.array([3]))


def test_validation_images_in_one_heap_are_refused(tree: Path) -> None:
    for name in CLASSES:
        for path in list((tree / "val" / name).iterdir()):
            path.rename(tree / "val" / path.name)
        (tree / "val" / name).rmdir()
    with pytest.raises(InputError, match=r"val: holds no class folders; .* sorted by their ground truth first"):
        data.load("imagenet")


def test_classes_of_one_part_alone_are_named(tree: Path) -> None:
    (tree / "val" / CLASSES[2]).rename(tree / "val" / "n99999999")
    with pytest.raises(InputError, match=rf"class {CLASSES[2]} is in one of train/ and val/ only"):
        data.load("imagenet")


def test_an_empty_class_and_a_missing_part_are_named(tree: Path) -> None:
    for path in (tree / "val" / CLASSES[0]).iterdir():
        path.unlink()
    with pytest.raises(InputError, match=rf"val/{CLASSES[0]}: holds no image"):
        data.load("imagenet")
    (tree / "val").rename(tree / "validation")
    with pytest.raises(InputError, match=r"val: no such folder; ImageNet is laid out as"):
        data.load("imagenet")


@pytest.fixture
def official(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny-ImageNet's own layout, of three classes."""
    monkeypatch.setattr(tinyimagenet, "FORMAT", Format("Tiny-ImageNet", (3, 32, 32), 3, label_bytes=2))
    folder, rows = data_root / "tiny-imagenet-200", []
    for number, name in enumerate(CLASSES):
        for image in range(2):
            save(folder / "train" / name / "images" / f"{name}_{image}.JPEG", (80 * number, 0, 0), (64, 64))
            val = save(folder / "val" / "images" / f"val_{2 * number + image}.JPEG", (80 * number, 0, 0), (64, 64))
            rows.append(f"{val.name}\t{name}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    return folder


def test_tiny_imagenet_is_converted_once(data_root: Path, official: Path) -> None:
    notices: list[str] = []
    for _ in range(2):
        loaded = data.load("tiny-imagenet-32", on_notice=notices.append)
        assert (loaded.real, loaded.outputs) == (True, 3)
        assert loaded.train_labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert loaded.test_images.shape == (6, 3, 32, 32)
        for images, labels in (
            (loaded.train_images, loaded.train_labels),
            (loaded.test_images, loaded.test_labels),
        ):
            reds = images.take(np.arange(6))[:, 0].float().mean((1, 2)).tolist()
            assert reds == pytest.approx((80 * labels).tolist(), abs=4)
    assert len(notices) == 1
    assert (data_root / "tiny-imagenet-32" / "train.bin").stat().st_size == 6 * 3074


@pytest.mark.parametrize("table", ["val_0.JPEG\tn00000000\t0\n", "val_0.JPEG\n", None])
def test_a_damaged_table_of_tiny_imagenet_is_named(official: Path, table: str | None) -> None:
    path = official / "val" / "val_annotations.txt"
    path.unlink() if table is None else path.write_text(table)
    with pytest.raises(InputError, match=r"val_annotations\.txt: .*; put a whole copy of the data set there"):
        data.load("tiny-imagenet-32")


def test_tiny_imagenet_with_a_class_missing_is_named(official: Path) -> None:
    (official / "train" / CLASSES[0]).rename(official / CLASSES[0])
    with pytest.raises(InputError, match="train: 2 class folders, expected 3"):
        data.load("tiny-imagenet-32")


def test_a_truncated_record_file_of_tiny_imagenet_is_named(data_root: Path) -> None:
    folder = data_root / "tiny-imagenet-32"
    folder.mkdir()
    (folder / "train.bin").write_bytes(bytes(3074 * 5 - 1))
    with pytest.raises(InputError, match=r"train\.bin: 15369 bytes, expected 15370"):
        data.load("tiny-imagenet-32")
