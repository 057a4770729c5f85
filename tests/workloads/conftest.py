"""Small data sets that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.workloads.data import cifar, standin
from testbed.workloads.data.base import Dataset
from testbed.workloads.data.images import Images
from testbed.workloads.data.records import Records


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from a second thread, and lose much when its core is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """600 training and 200 test images of the stand-in."""
    train, test, classes = cifar.content(standin.generate(batches=2, images=600))
    few = test.images.take(np.arange(200)).numpy()
    return Dataset(
        "small", train.images, train.labels, Images([few]), test.labels[:200], classes, real=False, note="test"
    )


@pytest.fixture
def batches() -> list[Records]:
    """Six batches of 20 records with random pixels and labels."""
    random = np.random.default_rng(0)
    content = random.integers(0, 256, (6, 20, cifar.FORMAT.record_bytes), dtype=np.uint8)
    content[:, :, 0] %= 10
    return list(content)


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that `$TESTBED_DATA` names."""
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path))
    return tmp_path
