"""The data sets by name, and what a data set is.

A data set is a function that opens it:

    @dataset("two-moons")
    def two_moons(folder: DataFolder, noise: float = 0.1) -> Dataset: ...

Its parameters after the first are keys of `[data]`, beside the name and how the data is divided.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError, code_of, naming
from testbed.plugins import Registry
from testbed.workloads import options as named
from testbed.workloads import shards
from testbed.workloads.models.base import Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Notice = Callable[[str], None]  # takes a line that the user should read
Indices = NDArray[np.int64]


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[data]`: what is trained on, and how it is divided. A data set that has options has a subclass of this.

    Attributes
    ----------
    dataset
        A key of `DATASETS`.
    split
        "iid", or "dirichlet": labels skewed over the regions.
    alpha
        The Dirichlet concentration: 0.1 gives a region a few classes, 100 is close to IID.
    """

    dataset: str = "cifar10"
    split: Literal["iid", "dirichlet"] = "iid"
    alpha: Annotated[float, msgspec.Meta(ge=1e-3, le=1e6)] | None = None

    def __post_init__(self) -> None:
        if self.split == "dirichlet" and self.alpha is None:
            raise ValueError("alpha: needed with split = 'dirichlet' (0.1 skews strongly, 100 hardly)")
        if self.split == "iid" and self.alpha is not None:
            raise ValueError("alpha: only goes with split = 'dirichlet'; remove it or set the split")

    def check(self, dataset: Dataset) -> None:
        """Raise InputError where labels are to be skewed and `dataset` has none."""
        if self.alpha is not None and dataset.labels is None:
            raise InputError(f"data.split is 'dirichlet', but data set '{dataset.name}' has no labels; use 'iid'")

    def shards(self, dataset: Dataset, workers: list[int], seed: int) -> list[list[Indices]]:
        """Divide the training examples among `workers` of each region: `result[region][worker]` (see `shards`).

        Raises
        ------
        InputError
            There are more workers than examples.
        """
        self.check(dataset)
        with naming(f"data set '{dataset.name}'"):
            if self.alpha is None:
                return shards.iid(dataset.train_examples, workers, seed)
            assert dataset.labels is not None, "checked"
            return shards.dirichlet(dataset.labels, workers, seed, self.alpha)


@dataclass(frozen=True)
class Metric:
    """A figure of how good a model is, from a test.

    Attributes
    ----------
    label
        As a table heads it: "bits per character".
    measure
        (outputs, targets) of a batch -> the sum over its examples; a test divides by the number of all.
    unit
        Behind a value: "°C"; "fraction" is shown in percent.
    better
        Which values are.
    """

    label: str
    measure: Callable[[Tensor, Tensor], Tensor | float]
    unit: str = ""
    better: Literal["higher", "lower"] = "higher"


def right(outputs: Tensor, targets: Tensor) -> float:
    """How many of a batch's answers are right; where an example asks for several, the share of them."""
    return int((outputs.argmax(-1) == targets).sum()) * len(targets) / targets.numel()


def among_first_five(outputs: Tensor, targets: Tensor) -> float:
    """How many of a batch's classes are among the five with the highest scores."""
    return int((outputs.topk(5, -1).indices == targets.unsqueeze(-1)).sum())


ACCURACY = Metric("accuracy", right, unit="fraction")
TOP5 = Metric("top-5 accuracy", among_first_five, unit="fraction")


class Dataset(ABC):
    """Examples to train on and to test with, each addressed by its index; what is learnt from them.

    A subclass sets the attributes without a default and defines the two batches. As it stands, it is a task of
    classification: outputs are scores, [n, classes], or [n, places, classes] where an example asks for several.

    Attributes
    ----------
    name
        As in the experiment file (filled in when it is opened by that name).
    train_examples, test_examples
        How many there are.
    input
        The shape of one example.
    outputs
        How many a model must have: classes, letters of the alphabet.
    labels
        The class of each training example, int64 [train_examples]; None where there is none, then labels cannot be
        skewed over the regions.
    metrics
        By name; the first one is the main one.
    tested_at_once
        Examples of a test in a batch, fewer where they are large: bounds the activations held.
    real
        False where the data is generated in place of what was asked for; every result then has to say so.
    note
        One line for results and plots: what the data is.
    """

    name: str = ""
    train_examples: int
    test_examples: int
    input: Shape
    outputs: int
    labels: Indices | None = None
    metrics: Mapping[str, Metric] = {"accuracy": ACCURACY}
    tested_at_once: int = 250
    real: bool = True
    note: str = ""

    @abstractmethod
    def train_batch(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these training examples, distorted by the draws of `random` if it is given.

        What an index stands for never changes, so that a batch is a function of the arguments alone.
        """

    @abstractmethod
    def test_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of these test examples."""

    # On a device other than the CPU, where `train_batch` is in two parts

    def drawn(self, indices: Indices, random: np.random.Generator | None = None) -> tuple[Tensor, ...]:
        """What must come to the device for `train_batch`, as tensors on the CPU: here the batch itself.

        A data set that can lie on the device draws what the batch is made of; `made` then makes it there.
        """
        return self.train_batch(indices, random)

    def made(self, drawn: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Inputs and targets on the device from what has come there; waits for nothing."""
        inputs, targets = drawn
        return inputs, targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What training makes small, as a mean over the batch: the cross-entropy."""
        from torch.nn import functional  # here, so that reading an experiment file needs no torch

        return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    def losses(self, outputs: Tensor, targets: Tensor, parts: int) -> Tensor:
        """The `loss` of each of so many equal parts of a batch, one after another: [parts]."""
        import torch
        from torch.nn import functional

        if type(self).loss is Dataset.loss:
            each = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
            return each.view(parts, -1).mean(1)
        return torch.stack(list(map(self.loss, outputs.chunk(parts), targets.chunk(parts))))

    def total_loss(self, outputs: Tensor, targets: Tensor) -> float:
        """The loss summed over a batch's examples."""
        return len(targets) * self.loss(outputs, targets).item()

    def fit(self, input: Shape | None, device: torch.device) -> Self:
        """Return this data set with its examples as a model takes them, of shape `input`, made on `device`.

        Raises
        ------
        InputError
            They cannot be made so.
        """
        if input is not None and tuple(input) != tuple(self.input):
            raise InputError(
                f"data set '{self.name}' has examples of shape {size_text(self.input)}, "
                f"the model takes {size_text(input)}; choose another of the two"
            )
        return copy(self)


def size_text(size: Sequence[int]) -> str:
    """A shape as people write it: 3x32x32."""
    return "x".join(map(str, size))


@dataclass(frozen=True)
class Source:
    """Where a data set's files are looked for, for `testbed doctor`.

    Attributes
    ----------
    title
        Its proper name; "" for one that is generated.
    folder
        What to put into the data folder, for whoever has the set.
    folders
        Names there under which it is found.
    download
        Fetches it to the data folder; None where that cannot be done.
    url
        From where.
    """

    title: str = ""
    folder: str = ""
    folders: tuple[str, ...] = ()
    download: Callable[[Path], None] | None = None
    url: str = ""


@dataclass(frozen=True)
class DataFolder:
    """Where data sets lie, as one that is opened sees it.

    Attributes
    ----------
    path
        The folder; it need not exist.
    allow_download
        Whether a missing set may be fetched from its official site.
    notice
        Called with a line about anything the user should know (a download, a stand-in).
    """

    path: Path = field(default_factory=lambda: root())
    allow_download: bool = False
    notice: Notice = lambda line: None


@dataclass(frozen=True)
class DatasetSpec:
    """A data set that can be named.

    Attributes
    ----------
    open
        Data folder (and the options) -> data set.
    options
        What `[data]` may hold.
    input, outputs, examples
        As the data set's, `examples` being those to train on; None where only the data says it.
    source
        Where its files are looked for.
    """

    open: Callable[..., Dataset]
    options: type[Data]
    input: Shape | None = None
    outputs: int | None = None
    source: Source = Source()
    examples: int | None = None


DATASETS: Registry[DatasetSpec] = Registry("data set", "testbed.workloads.data")
Open = TypeVar("Open", bound=Callable[..., Dataset])


def dataset(
    name: str,
    options: type[Data] | None = None,
    *,
    input: Shape | None = None,
    outputs: int | None = None,
    source: Source = Source(),
    examples: int | None = None,
) -> Callable[[Open], Open]:
    """Register a function that opens a data set, under a name that `[data]` can then state.

    Parameters
    ----------
    name
        For the experiment file.
    options
        A struct of its options; None: they are the parameters of the function after the first.
    input, outputs, source, examples
        What is known of it before it is opened, see `DatasetSpec`.
    """

    def register(open: Open) -> Open:
        kind = options or named.extended(Data, open)
        DATASETS.add(name, DatasetSpec(open, kind, input, outputs, source, examples), open.__module__)
        return open

    return register


def kind_of(table: Mapping[str, Any]) -> type[Data]:
    """The struct that a `[data]` table is to be read as, by the name in it."""
    name = table.get("dataset", Data().dataset)
    return named.find(DATASETS, name).options if isinstance(name, str) else Data


def of(name: str, **keys: Any) -> Data:
    """Return what `[data]` with this data set and these keys is.

    Raises
    ------
    InputError
        There is no data set of that name.
    msgspec.ValidationError
        A key that the data set does not have, or a value that it cannot have.
    """
    return msgspec.convert({"dataset": name, **keys}, kind_of({"dataset": name}))


def root() -> Path:
    """Return the folder data sets lie in: `$TESTBED_DATA`, by default `~/.cache/wan-testbed`."""
    return Path(os.environ.get("TESTBED_DATA") or "~/.cache/wan-testbed").expanduser()


def load(data: Data | str, *, allow_download: bool = True, on_notice: Notice = lambda line: None) -> Dataset:
    """Open a data set, obtaining or generating it first where it is missing.

    Several processes may do so at once, but only the first call need do the work: open a data set in the
    parent before workers start.

    Parameters
    ----------
    data
        `[data]`, or the name alone.
    allow_download, on_notice
        As `DataFolder`'s.

    Raises
    ------
    InputError
        No such data set, or its function fails, or a file of it is missing, truncated or corrupt; the message names
        the file.
    """
    data = of(data) if isinstance(data, str) else data
    spec = named.find(DATASETS, data.dataset)
    folder = DataFolder(root(), allow_download, on_notice)
    with naming(f"data set '{data.dataset}'"), code_of("its function failed"):
        opened = spec.open(folder, **named.beyond(data, Data))
        _check_opened(opened)
    opened.name = data.dataset
    return opened


def _check_opened(opened: object) -> None:
    """Raise InputError where what a function has opened is no data set, or only half of one."""
    if not isinstance(opened, Dataset):
        raise InputError(f"its function returned a {type(opened).__name__}, not a Dataset such as Arrays(...)")
    if missing := [key for key in ("train_examples", "test_examples", "input", "outputs") if not hasattr(opened, key)]:
        raise InputError(f"it says nothing of its {missing[0]}; set the attribute")
    if not isinstance(opened.metrics, Mapping) or not all(isinstance(each, Metric) for each in opened.metrics.values()):
        raise InputError(f"its metrics are {opened.metrics!r}; give a testbed.workloads.Metric for each name")


def one_of(dataset: Dataset, which: Literal["train_batch", "test_batch"]) -> tuple[Tensor, Tensor]:
    """The first example of a kind, as a batch of one.

    Raises
    ------
    InputError
        The data set fails to make it, or makes no batch of it.
    """
    from torch import Tensor  # here, so that reading an experiment file needs no torch

    what = f"data set '{dataset.name}': its {which}"
    with code_of(f"{what} failed"):
        made: Any = getattr(dataset, which)(np.arange(1))
    parts = made if isinstance(made, tuple | list) else (made,)
    if [isinstance(part, Tensor) and len(part.shape) > 0 and len(part) == 1 for part in parts] != [True, True]:
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise InputError(f"{what} returned {kinds}; it is to return inputs and targets, tensors of a row an index")
    return made
