"""Small data sets that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from own_parts import forget_after

from testbed.workloads.data import cifar, standin
from testbed.workloads.data.images import Content, Images, Split
from testbed.workloads.data.labelled import LabelledImages
from testbed.workloads.data.records import Records


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from a second thread, and lose much when its core is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def dataset() -> LabelledImages:
    """600 training and 200 test images of the stand-in."""
    train, test, classes = cifar.content(standin.generate(batches=2, images=600, form=cifar.FORMAT))
    few = Split(Images([test.images.take(np.arange(200)).numpy()]), test.labels[:200])
    return LabelledImages(Content(train, few, classes), real=False, note="test")


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


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and data sets that a test registers are gone after it."""
    forget_after(monkeypatch)
