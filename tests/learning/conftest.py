"""Small data sets that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.learning import cifar, standin
from testbed.learning.data import Dataset, Images


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
    train, test = standin.generate(batches=2, images=600)
    test = test[:200]
    parts = [Images([batch[:, 1:].reshape(-1, *cifar.SHAPE)]) for batch in (train, test)]
    labels = [batch[:, 0].astype(np.int64) for batch in (train, test)]
    return Dataset("small", parts[0], labels[0], parts[1], labels[1], 10, real=False, note="test")


@pytest.fixture
def batches() -> list[cifar.Records]:
    """Six batches of 20 records with random pixels and labels."""
    random = np.random.default_rng(0)
    content = random.integers(0, 256, (6, 20, cifar.RECORD_BYTES), dtype=np.uint8)
    content[:, :, 0] %= 10
    return list(content)


@pytest.fixture
def data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that `$TESTBED_DATA` names."""
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path))
    return tmp_path
