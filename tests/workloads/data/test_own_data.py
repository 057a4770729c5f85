"""A data set of a plug-in's that is none, or only half of one, is refused with a line that names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_parts import forget_after

from testbed.errors import InputError
from testbed.workloads import Arrays, Dataset, dataset
from testbed.workloads.data import base as data
from testbed.workloads.fingerprint import fingerprint

X, Y = np.zeros((4, 2)), np.zeros(4, int)
NONE = np.array([None] * 4, dtype=object)


def batch(made: Any) -> type[Dataset]:
    """A data set whose training batches are `made`."""
    members = {"train_examples": 4, "test_examples": 4, "input": (2,), "outputs": 2}
    tested = lambda self, indices: (torch.zeros(len(indices), 2), torch.zeros(len(indices)))  # noqa: E731
    return type("Own", (Dataset,), {**members, "train_batch": made, "test_batch": tested})


@pytest.mark.parametrize(
    ("opens", "line"),
    [
        (lambda folder: 1 / 0, "its function failed: ZeroDivisionError: division by zero"),
        (lambda folder: Path("gone.csv").read_text(), "its function failed: FileNotFoundError: gone.csv: No such file"),
        (lambda folder: Arrays(NONE, NONE, NONE, NONE), "its function failed: TypeError: "),
        (lambda folder: Arrays(X[:0], Y[:0], X, Y), "0 training and 4 test examples: there must be some of both"),
        (lambda folder: Arrays(X, Y[:3], X, Y), "4 and 4 inputs, 3 and 4 targets: one for each"),
        (lambda folder: Arrays(X, Y, X, Y, metrics={"e": 3}), "its metrics are {'e': 3}; give a "),  # type: ignore
        (lambda folder: batch(lambda *_: 5)(), "its train_batch returned int; it is to return inputs and targets"),
        (lambda folder: batch(lambda *_: 1 / 0)(), "its train_batch failed: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_no_data_set_is_named(monkeypatch: pytest.MonkeyPatch, opens: Any, line: str) -> None:
    forget_after(monkeypatch)
    opens.__module__ = __name__
    dataset("own")(opens)
    with pytest.raises(InputError, match=rf"^data set 'own': {re.escape(line)}"):
        fingerprint(data.load("own"))
