"""What a data set is told by: whether another machine has the same one."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from testbed.workloads.data.base import Dataset, one_of

SAMPLE = 256  # examples of either kind, spread evenly: another version of a set differs in all, or in how many


def fingerprint(dataset: Dataset) -> str:
    """SHA-256 (hex) of a data set's sizes, all its labels, and a sample of its examples as they are trained on.

    Whatever its files are called and however they lie, the same examples give the same answer. One damaged example
    among many can go unnoticed: against that sets have checksums of their own.
    """
    digest = hashlib.sha256(f"{dataset.train_examples} {dataset.test_examples} {dataset.outputs}".encode())
    if dataset.labels is not None:
        digest.update(np.ascontiguousarray(dataset.labels, dtype="<i8").tobytes())
    fitted = dataset.fit(None, torch.device("cpu"))
    one_of(fitted, "train_batch")
    one_of(fitted, "test_batch")
    kinds = ((fitted.train_batch, dataset.train_examples), (fitted.test_batch, dataset.test_examples))
    for batch, examples in kinds:
        indices = np.unique(np.linspace(0, examples - 1, min(SAMPLE, examples)).astype(np.int64))
        for index in indices:
            for part in batch(index[None]):
                digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
