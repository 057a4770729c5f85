"""Models of which the layers are known and nothing else: they can be timed and not trained.

`known.toml` has those of the literature. `[model] name = "layers"` with `file = "mine.toml"` takes one of your own: the
same keys, `layers` and `forward_gflop` being enough. An `nn.Module` needs neither, whatever its size: registered as any
model is (`testbed.workloads.models.base`), it is built without memory for its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from torch import nn

from testbed.errors import InputError
from testbed.layout import Layout
from testbed.types import Count, Positive
from testbed.workloads.models.base import MODELS, Model, ModelSpec

TABLE = Path(__file__).with_name("known.toml")
MOST_LAYERS, MOST_PARAMETERS = 100_000, 10**14
FILE_BYTES = 10**7
WIDTH = 4096  # of the matrix that a model of so many parameters is taken for

Size = Annotated[int, msgspec.Meta(ge=1, le=10**11)]


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer, or several that come `repeat` times; see the head of `known.toml`."""

    name: str
    shape: Annotated[list[Size], msgspec.Meta(max_length=8)] = []
    beside: Literal["bias", "norm", "shift"] | None = msgspec.field(default=None, name="with")
    repeat: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    layers: list[Part] = []

    def __post_init__(self) -> None:
        if bool(self.shape) == bool(self.layers):
            raise ValueError(f"layer '{self.name}' has a shape, or layers inside it: one of the two")

    def tensors(self, before: str = "") -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each parameter tensor."""
        name = f"{before}{self.name}"
        if self.shape:
            yield f"{name}.weight", tuple(self.shape)
            if self.beside == "norm":
                yield f"{name}.norm.weight", (self.shape[0],)
            if self.beside is not None:
                yield f"{name}.{'norm.' if self.beside == 'norm' else ''}bias", (self.shape[0],)
        for k in range(self.repeat if self.layers else 0):
            inside = f"{name}.{k}." if self.repeat > 1 else f"{name}."
            for part in self.layers:
                yield from part.tensors(inside)


class Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model by its layers.

    Parameters
    ----------
    layers : in order
    forward_gflop : of one example's forward pass, in 10^9 operations
    examples : that make an epoch
    example : what one is
    parameters : in all, where it is to be checked
    """

    layers: Annotated[list[Part], msgspec.Meta(min_length=1)]
    forward_gflop: Positive
    examples: Count = 1_000_000
    example: str = "an example"
    parameters: int | None = None
    source: str = ""

    def layout(self) -> Layout:
        """How its parameters lie in a flat vector.

        Raises
        ------
        InputError
            There are too many, or not as many as stated.
        """
        tensors = list(_at_most(MOST_LAYERS, (tensor for part in self.layers for tensor in part.tensors())))
        total = sum(prod(shape) for _, shape in tensors)
        if total > MOST_PARAMETERS:
            raise InputError(f"the layers have {total:,} parameters; at most {MOST_PARAMETERS:,} are believed")
        if self.parameters not in (None, total):
            raise InputError(f"the layers have {total:,} parameters, not the {self.parameters:,} stated")
        return Layout.of(tensors)


def _at_most(count: int, tensors: Iterator[tuple[str, tuple[int, ...]]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for k, tensor in enumerate(tensors):
        if k == count:
            raise InputError(f"more than {count:,} layers")
        yield tensor


@dataclass(frozen=True)
class KnownSpec(ModelSpec):
    """A model that can be named for a timing-only run; `known` finds its layers, of the `[model]` table."""

    known: Any = None


def known_of(model: Model) -> Known | None:
    """The layers of a model that is known by them alone, None of one that can be built.

    Raises
    ------
    InputError
        They stand in a file that is not there, or is not such a file.
    """
    spec = MODELS.find(model.name)
    return spec.known(model) if isinstance(spec, KnownSpec) else None


class Layers(Model, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[model] name = "layers"`; `file` holds one model, as `known.toml` holds several."""

    file: str


class Vector(Model, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[model] name = "vector"`: so many parameters, as a matrix, and what an example's forward pass takes."""

    parameters: Annotated[int, msgspec.Meta(ge=1, le=MOST_PARAMETERS)]
    forward_gflop: Positive = 1.0


def _vector(model: Vector) -> Known:
    rows, rest = divmod(model.parameters - 1, WIDTH)
    whole = [Part("matrix", [rows, WIDTH])] if rows else []
    return Known([*whole, Part("rest", [rest + 1])], model.forward_gflop)


def _read(model: Layers) -> Known:
    path = Path(model.file)
    try:
        if path.stat().st_size > FILE_BYTES:
            raise InputError(f"{path}: larger than {FILE_BYTES:,} bytes, which is no list of layers")
        known = msgspec.toml.decode(path.read_bytes(), type=Known)
        known.layout()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; model.file is to name a file of layers") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return known


def cannot_train(name: str) -> InputError:
    """What to say where such a model is to be trained."""
    return InputError(f"model '{name}': only its layers are known, so it can be timed and not trained: --timing-only")


def _cannot_build(name: str, outputs: int, **options: Any) -> nn.Module:
    raise cannot_train(name)


_TABLE: dict[str, Known] = msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, Known])


def names() -> Sequence[str]:
    """Those of `known.toml`."""
    return tuple(_TABLE)


for _name, _known in _TABLE.items():
    _spec = KnownSpec(partial(_cannot_build, _name), None, Model, lambda model, known=_known: known)
    MODELS.add(_name, _spec, __name__)
MODELS.add("layers", KnownSpec(partial(_cannot_build, "layers"), None, Layers, _read), __name__)
MODELS.add("vector", KnownSpec(partial(_cannot_build, "vector"), None, Vector, _vector), __name__)
