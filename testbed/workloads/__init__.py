"""What is trained: a model, data addressed by index, a loss, and metrics.

Models are in `models/`, data sets in `data/`, a file for each (or each kind); either can be brought in from outside the
package (docs/add-a-workload.md). `Workload` pairs the two into what systems train: a flat weight vector, a worker's
gradient at it, a test of it. Beside it are the optimizers and the learning-rate schedules.

Nothing here draws from a stateful random generator: every random choice is keyed (`keyed.generator`), so a
resumed run repeats an uninterrupted one and every fabric sees the same batches.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from testbed.workloads.data.base import Data, DataFolder, Dataset, Metric, dataset
from testbed.workloads.models.base import Model, model

if TYPE_CHECKING:
    from testbed.workloads.data.arrays import Arrays
    from testbed.workloads.workload import Workload

__all__ = ["Arrays", "Data", "DataFolder", "Dataset", "Metric", "Model", "Workload", "dataset", "model"]

# These import torch, which reading an experiment file does not need and waits for.
_LATER = {"Arrays": "testbed.workloads.data.arrays", "Workload": "testbed.workloads.workload"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
