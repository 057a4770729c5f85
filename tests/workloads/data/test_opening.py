"""Data sets: both CIFAR-10 layouts, damaged and hostile files, the download, the stand-in."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import struct
import tarfile
import urllib.request
from dataclasses import replace
from http.client import BadStatusLine, IncompleteRead
from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.errors import InputError
from testbed.workloads.data import base as data
from testbed.workloads.data import cifar, synthetic
from testbed.workloads.data.records import Records, store

pytestmark = pytest.mark.usefixtures("data_root")


def write_binary(folder: Path, batches: list[Records]) -> None:
    folder.mkdir()
    for name, batch in zip(cifar.BINARY_FILES, batches, strict=True):
        batch.tofile(folder / name)


def write_python(folder: Path, batches: list[Records], protocol: int = 2) -> None:
    folder.mkdir()
    for name, batch in zip(cifar.PYTHON_FILES, batches, strict=True):
        content = {b"labels": batch[:, 0].tolist(), b"data": batch[:, 1:], b"filenames": [b"x.png"] * len(batch)}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))


def as_python_2_wrote_it(batch: Records) -> bytes:
    """The official files' own form: protocol 2, byte strings, numpy under its old module name."""

    def string(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    pixels = np.ascontiguousarray(batch[:, 1:])
    shape = b"".join(b"J" + struct.pack("<i", length) for length in pixels.shape) + b"\x86"
    dtype = b"cnumpy\ndtype\n(" + string(b"u1") + b"K\x00K\x01tR"
    dtype += b"(K\x03" + string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + string(b"b") + b"tR"
    array += b"(K\x01" + shape + dtype + b"\x89" + string(pixels.tobytes()) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in batch[:, 0]) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + labels + b"u."


def test_binary_layout_round_trip(tmp_path: Path, batches: list[Records]) -> None:
    write_binary(tmp_path / "set", batches)
    for read, written in zip(cifar.read_binary(tmp_path / "set", records=20), batches, strict=True):
        assert np.array_equal(read, written)
        assert not read.flags.writeable  # mapped, not copied


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_python_layout_round_trip(tmp_path: Path, batches: list[Records], protocol: int) -> None:
    write_python(tmp_path / "set", [np.ascontiguousarray(batch) for batch in batches], protocol)
    for read, written in zip(cifar.read_python(tmp_path / "set", records=20), batches, strict=True):
        assert np.array_equal(read, written)


def test_python_layout_of_the_official_files(tmp_path: Path, batches: list[Records]) -> None:
    for name, batch in zip(cifar.PYTHON_FILES, batches, strict=True):
        (tmp_path / name).write_bytes(as_python_2_wrote_it(batch))
    for read, written in zip(cifar.read_python(tmp_path, records=20), batches, strict=True):
        assert np.array_equal(read, written)


def damaged(tmp_path: Path, batches: list[Records], content: bytes) -> Path:
    write_python(tmp_path / "set", batches)
    (tmp_path / "set" / "data_batch_3").write_bytes(content)
    return tmp_path / "set"


class Hostile:
    def __init__(self, *call) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def test_unpickler_refuses_to_run_a_command(tmp_path: Path, batches: list[Records]) -> None:
    victim = tmp_path / "victim"
    content = pickle.dumps({b"data": Hostile(os.system, f"touch {victim}"), b"labels": []})
    with pytest.raises(InputError, match=r"data_batch_3.*system, which no data set needs"):
        cifar.read_python(damaged(tmp_path, batches, content), records=20)
    assert not victim.exists()


@pytest.mark.parametrize(
    "call",
    [(eval, "1"), (np.zeros, 10), (np.load, "x"), (getattr, "a", "upper")],
    ids=lambda call: call[0].__name__,
)
def test_unpickler_refuses_other_functions(tmp_path: Path, batches: list[Records], call: tuple) -> None:
    with pytest.raises(InputError, match="which no data set needs"):
        cifar.read_python(damaged(tmp_path, batches, pickle.dumps(Hostile(*call))), records=20)


def test_unpickler_does_not_allocate_what_a_file_names(tmp_path: Path, batches: list[Records]) -> None:
    reconstruct = np.empty(0).__reduce__()[0]
    content = pickle.dumps(Hostile(reconstruct, np.ndarray, (2**40,), b"b"))
    with pytest.raises(InputError, match="array of an unexpected kind"):
        cifar.read_python(damaged(tmp_path, batches, content), records=20)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle at all",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.zeros((19, 3072), np.uint8), b"labels": [0] * 19}),
        pickle.dumps({b"data": np.zeros((20, 3072), np.float32), b"labels": [0] * 20}),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 19}),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [10] * 20}),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [-1] * 20}),
        bytes(200_000),
    ],
    ids=["empty", "text", "list", "short", "float", "labels", "label-10", "label-negative", "large"],
)
def test_damaged_python_files_are_named(tmp_path: Path, batches: list[Records], content: bytes) -> None:
    with pytest.raises(InputError, match=r"data_batch_3: "):
        cifar.read_python(damaged(tmp_path, batches, content), records=20)


def test_truncated_binary_file_is_named(tmp_path: Path, batches: list[Records]) -> None:
    write_binary(tmp_path / "set", batches)
    with (tmp_path / "set" / "data_batch_2.bin").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputError, match=r"data_batch_2\.bin: 1000 bytes, expected 61460"):
        cifar.read_binary(tmp_path / "set", records=20)


def test_missing_binary_file_is_named(tmp_path: Path, batches: list[Records]) -> None:
    write_binary(tmp_path / "set", batches)
    (tmp_path / "set" / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"test_batch\.bin: No such file"):
        cifar.read_binary(tmp_path / "set", records=20)


def test_binary_file_with_an_impossible_label_is_named(tmp_path: Path, batches: list[Records]) -> None:
    batches[4][7, 0] = 10
    write_binary(tmp_path / "set", batches)
    with pytest.raises(InputError, match=r"data_batch_5\.bin: holds label 10"):
        cifar.read_binary(tmp_path / "set", records=20)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sets of 20 records a batch, so that a whole folder is 0.4 MB."""
    for function in (cifar.read_binary, cifar.read_python):
        monkeypatch.setattr(function, "__defaults__", (20,))
    small_stand_in = replace(cifar.STAND_IN, images=20)
    for module in (cifar, synthetic):
        monkeypatch.setattr(module, "SOURCE", replace(module.SOURCE, stand_in=small_stand_in))
    monkeypatch.setattr(cifar, "RECORDS", 20)


@pytest.mark.usefixtures("small")
class TestLoad:
    def test_binary(self, data_root: Path, batches: list[Records]) -> None:
        write_binary(data_root / cifar.BINARY, batches)
        loaded = data.load("cifar10", allow_download=False, on_notice=pytest.fail)
        assert loaded.real
        assert loaded.train_images.shape == (100, 3, 32, 32)
        assert loaded.test_images.shape == (20, 3, 32, 32)
        assert loaded.train_labels.tolist() == np.concatenate(batches[:5])[:, 0].tolist()
        assert loaded.test_labels.tolist() == batches[5][:, 0].tolist()
        pixels = loaded.train_images.take(np.array([45]))[0]
        assert pixels.flatten().tolist() == batches[2][5, 1:].tolist()

    def test_python_is_converted_once_so_that_workers_share_it(self, data_root: Path, batches: list[Records]) -> None:
        write_python(data_root / cifar.PYTHON, batches)
        notices: list[str] = []
        first = data.load("cifar10", allow_download=False, on_notice=notices.append)
        assert "converted" in notices[0]
        again = data.load("cifar10", allow_download=False, on_notice=pytest.fail)
        everything = np.arange(100)
        assert torch.equal(first.train_images.take(everything), again.train_images.take(everything))
        assert first.real
        assert again.real

    def test_missing_is_a_labelled_stand_in(self, data_root: Path) -> None:
        notices: list[str] = []
        loaded = data.load("cifar10", allow_download=False, on_notice=notices.append)
        assert not loaded.real
        assert "stand-in" in loaded.note
        assert len(notices) == 1
        assert "stand-in" in notices[0]
        assert str(data_root) in notices[0]

    def test_a_generated_set_that_was_asked_for_goes_without_notice(self) -> None:
        loaded = data.load("synthetic", on_notice=pytest.fail)
        assert (loaded.real, loaded.note) == (False, "generated images")

    def test_truncated_file_does_not_fall_back_to_the_stand_in(self, data_root: Path, batches: list[Records]) -> None:
        write_binary(data_root / cifar.BINARY, batches)
        (data_root / cifar.BINARY / "data_batch_1.bin").write_bytes(b"")
        with pytest.raises(InputError, match=r"data_batch_1\.bin"):
            data.load("cifar10")

    @pytest.mark.parametrize(
        "error", [OSError("no route to host"), BadStatusLine("no route to host"), IncompleteRead(b"", 9)]
    )
    def test_no_network_is_said_and_answered_with_the_stand_in(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def unreachable(*_, **__):
            raise error

        monkeypatch.setattr(urllib.request, "urlopen", unreachable)
        notices: list[str] = []
        assert not data.load("cifar10", on_notice=notices.append).real
        assert "cannot be downloaded" in notices[1] and str(error) in notices[1]

    def test_download(self, data_root: Path, batches: list[Records], monkeypatch: pytest.MonkeyPatch) -> None:
        serve(monkeypatch, archive_of(batches))
        loaded = data.load("cifar10")
        assert loaded.real
        assert loaded.test_labels.tolist() == batches[5][:, 0].tolist()
        assert sorted(path.name for path in data_root.iterdir()) == [cifar.BINARY]

    def test_download_with_a_wrong_checksum_leaves_nothing_behind(
        self, data_root: Path, batches: list[Records], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve(monkeypatch, archive_of(batches), md5="0" * 32)
        with pytest.raises(OSError, match="md5"):
            cifar.download(data_root)
        assert not list(data_root.iterdir())

    def test_download_that_lacks_a_batch_leaves_nothing_behind(
        self, data_root: Path, batches: list[Records], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        serve(monkeypatch, archive_of(batches[:3]))
        with pytest.raises(OSError, match="cannot be read"):
            cifar.download(data_root)
        assert not list(data_root.iterdir())


def archive_of(batches: list[Records]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, batch in zip(cifar.BINARY_FILES, batches, strict=False):
            member = tarfile.TarInfo(f"{cifar.BINARY}/{name}")
            member.size = batch.nbytes
            tar.addfile(member, io.BytesIO(batch.tobytes()))
        outside = tarfile.TarInfo("../outside")
        tar.addfile(outside, io.BytesIO())
    return buffer.getvalue()


def serve(monkeypatch: pytest.MonkeyPatch, archive: bytes, md5: str | None = None) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(archive))
    monkeypatch.setattr(cifar, "ARCHIVE_MD5", md5 or hashlib.md5(archive).hexdigest())


def test_the_loser_of_a_race_takes_the_winners_folder(tmp_path: Path, batches: list[Records]) -> None:
    assert store(batches, cifar.BINARY_FILES, tmp_path / "set")
    assert store(batches, cifar.BINARY_FILES, tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_unknown_data_set_names_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        data.load("cifar")
