"""MNIST: packed and unpacked files in both usual folders, damaged ones, the download."""

from __future__ import annotations

import gzip
import hashlib
import io
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.workloads.data import base as data
from testbed.workloads.data import mnist

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
Files = dict[str, bytes]


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Files:
    """The four files, of 30 training and 20 test images."""
    monkeypatch.setattr(mnist, "TRAIN", 30)
    monkeypatch.setattr(mnist, "TEST", 20)
    random, content = np.random.default_rng(0), {}
    for name in mnist.FILES:
        count = 30 if name.startswith("train") else 20
        shape, limit = ((count, 28, 28), 256) if "images" in name else ((count,), 10)
        header = b"\0\0\x08" + bytes([len(shape)]) + np.array(shape, ">u4").tobytes()
        content[name] = header + random.integers(0, limit, shape, dtype=np.uint8).tobytes()
    return content


def write(folder: Path, files: Files, packed: bool) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content, 1) if packed else content)
    return folder


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
@pytest.mark.parametrize("packed", [False, True])
def test_its_images_and_labels_are_read(data_root: Path, files: Files, folder: str, packed: bool) -> None:
    write(data_root / folder, files, packed)
    notices: list[str] = []
    for _ in range(2):  # from the given files, then from what was made of them
        loaded = data.load("mnist", allow_download=False, on_notice=notices.append)
        assert (loaded.real, loaded.outputs) == (True, 10)
        assert loaded.train_images.shape == (30, 1, 28, 28)
        assert loaded.test_images.shape == (20, 1, 28, 28)
        assert loaded.train_labels.tolist() == list(files[LABELS][8:])
        pixels = loaded.train_images.take(np.array([7])).flatten().tolist()
        assert pixels == list(files[IMAGES][16 + 7 * 784 : 16 + 8 * 784])
    assert len(notices) == packed
    assert (data_root / "mnist-idx").is_dir() == packed


def test_packed_files_where_unpacked_ones_belong_are_read_as_they_are(data_root: Path, files: Files) -> None:
    write(data_root / "mnist-idx", files, packed=True)
    assert data.load("mnist", allow_download=False).train_images.shape == (30, 1, 28, 28)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "longer", "header", "empty", "missing"])
def test_a_damaged_file_is_named(data_root: Path, files: Files, packed: bool, damage: str) -> None:
    whole = files[IMAGES]
    content = {"truncated": whole[:-1], "longer": whole + b"\0", "header": b"\1" + whole[1:], "empty": b""}
    path = write(data_root / "mnist", files, packed) / (f"{IMAGES}.gz" if packed else IMAGES)
    path.unlink()
    if damage != "missing":
        path.write_bytes(gzip.compress(content[damage]) if packed else content[damage])
    with pytest.raises(InputError, match=rf"{IMAGES}(\.gz)?: .*; put a whole copy there"):
        data.load("mnist", allow_download=False)
    assert not (data_root / "mnist-idx").exists()


@pytest.mark.parametrize("keep", [0, 5, 30, -5])
def test_a_damaged_archive_is_named(data_root: Path, files: Files, keep: int) -> None:
    path = write(data_root / "mnist", files, packed=True) / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:keep] + (b"" if keep < 0 else b"no gzip"))
    with pytest.raises(InputError, match=rf"{IMAGES}\.gz: .*; put a whole copy there"):
        data.load("mnist", allow_download=False)


def test_a_file_that_unpacks_to_gigabytes_is_not_unpacked(data_root: Path, files: Files) -> None:
    path = write(data_root / "mnist", files, packed=True) / f"{IMAGES}.gz"
    path.write_bytes(gzip.compress(bytes(100_000_000), 1))
    with pytest.raises(InputError, match=r"not MNIST's file of 23536 bytes"):
        data.load("mnist", allow_download=False)


@pytest.mark.parametrize("packed", [False, True])
def test_an_impossible_label_is_named(data_root: Path, files: Files, packed: bool) -> None:
    files[LABELS] = files[LABELS][:-1] + b"\x0a"
    write(data_root / "mnist", files, packed)
    with pytest.raises(InputError, match=rf"{LABELS}.*: holds label 10, MNIST has 0 to 9"):
        data.load("mnist", allow_download=False)


@pytest.fixture
def served(files: Files, monkeypatch: pytest.MonkeyPatch) -> Files:
    """The packed files behind the download's address."""
    packed = {f"{mnist.URL}{name}.gz": gzip.compress(content) for name, content in files.items()}
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, **_: io.BytesIO(packed[url]))
    md5 = {name: hashlib.md5(packed[f"{mnist.URL}{name}.gz"]).hexdigest() for name in mnist.FILES}
    sha256 = {name: hashlib.sha256(packed[f"{mnist.URL}{name}.gz"]).hexdigest() for name in mnist.FILES}
    monkeypatch.setattr(mnist, "MD5", md5)
    monkeypatch.setattr(mnist, "SHA256", sha256)
    return packed


@pytest.mark.usefixtures("served")
def test_download(data_root: Path, files: Files) -> None:
    loaded = data.load("mnist")
    assert loaded.real
    assert loaded.train_labels.tolist() == list(files[LABELS][8:])
    assert sorted(path.name for path in data_root.iterdir()) == ["mnist", "mnist-idx"]


def test_a_download_of_something_else_leaves_nothing_behind(data_root: Path, served: Files) -> None:
    served[f"{mnist.URL}{LABELS}.gz"] = b"<html>moved</html>"
    with pytest.raises(OSError, match=rf"md5 of .*{LABELS}"):
        mnist.download(data_root)
    assert not list(data_root.iterdir())


def test_a_download_of_the_same_md5_and_another_sha256_leaves_nothing_behind(
    data_root: Path, served: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "SHA256", dict.fromkeys(mnist.FILES, "0" * 64))
    with pytest.raises(OSError, match=r"sha256 of .*idx3"):
        mnist.download(data_root)
    assert not list(data_root.iterdir())
