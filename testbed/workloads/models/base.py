"""The models by name, each with the options it has.

A model is a function (or a class) that is given the number of outputs and returns an `nn.Module`:

    @model("mlp", input=(16,))
    def mlp(outputs: int, hidden: int = 64) -> nn.Module: ...

Its other parameters are keys of `[model]`, beside the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from testbed.errors import InputError, code_of
from testbed.layout import Layout
from testbed.plugins import Registry
from testbed.workloads import options as named

if TYPE_CHECKING:
    from torch import Tensor, nn

Shape = tuple[int, ...]
Build = TypeVar("Build", bound="Callable[..., nn.Module]")


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[model]`: a model by its name. A model that has options has a subclass of this, with a field for each."""

    name: str = "cifarnet"

    @property
    def input(self) -> Shape | None:
        """The shape of one example as the model takes it, e.g. (3, 24, 24); None where it takes any."""
        spec = named.find(MODELS, self.name)
        given = self if isinstance(self, spec.options) else of(self.name)
        return spec.input(given) if callable(spec.input) else spec.input

    def build(self, outputs: int) -> nn.Module:
        """Build the network with random weights from torch's global generator (`initial_weights` repeats).

        Raises
        ------
        InputError
            The function registered by that name fails, or returns no network, or one that has nothing to train or does
            not fit into memory.
        """
        from torch import nn  # here, so that reading an experiment file needs no torch

        build = named.find(MODELS, self.name).build
        with code_of(f"model '{self.name}': its function failed"):
            try:
                built = build(outputs, **named.beyond(self, Model))
            except (MemoryError, RuntimeError) as error:
                if isinstance(error, RuntimeError) and "allocate" not in str(error):
                    raise
                raise InputError(f"model '{self.name}': it does not fit into memory; make it smaller") from None
        if not isinstance(built, nn.Module):
            raise InputError(f"model '{self.name}': its function returned a {type(built).__name__}, not an nn.Module")
        if not trained(built):
            raise InputError(f"model '{self.name}': it has no parameter to train; one that is has requires_grad")
        return built


@dataclass(frozen=True)
class ModelSpec:
    """A model that can be named.

    Attributes
    ----------
    build
        Number of outputs (and the options) -> network.
    input
        As `Model.input`; a function of the options where it depends on them.
    options
        What `[model]` may hold.
    """

    build: Callable[..., nn.Module]
    input: Shape | Callable[[Any], Shape] | None
    options: type[Model]


MODELS: Registry[ModelSpec] = Registry("model", "testbed.workloads.models")


def model(
    name: str, input: Shape | Callable[[Any], Shape] | None = None, options: type[Model] | None = None
) -> Callable[[Build], Build]:
    """Register a network under a name that `[model]` can then state.

    Parameters
    ----------
    name
        For the experiment file.
    input
        The shape of one example as the network takes it; None: whatever shape the data has.
    options
        A struct of its options; None: they are the parameters of the function after the first.
    """

    def register(build: Build) -> Build:
        spec = ModelSpec(build, input, options or named.extended(Model, build))
        MODELS.add(name, spec, build.__module__)
        return build

    return register


def kind_of(table: Mapping[str, Any]) -> type[Model]:
    """The struct that a `[model]` table is to be read as, by the name in it."""
    name = table.get("name", Model().name)
    return named.find(MODELS, name).options if isinstance(name, str) else Model


def of(name: str, **options: Any) -> Model:
    """Return what `[model]` with this name and these options is.

    Raises
    ------
    InputError
        There is no model of that name.
    msgspec.ValidationError
        An option that the model does not have, or a value that it cannot have.
    """
    return msgspec.convert({"name": name, **options}, kind_of({"name": name}))


def trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that are trained, by name; one that is frozen (`requires_grad_(False)`) is part of the code."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def layout(module: nn.Module) -> Layout:
    """Where each of the network's parameters lies in its flat vector."""
    return Layout.of((name, tuple(parameter.shape)) for name, parameter in trained(module))


def parameter_count(model: Model, outputs: int) -> int:
    """The number of a model's parameters, without room for them."""
    import torch

    with torch.device("meta"):
        return layout(model.build(outputs)).size


def initial_weights(model: Model, seed: int, outputs: int) -> Tensor:
    """Return the weights every system of an experiment starts from: flat float32, the same for the same seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed looks for GPUs, too: 100x as long
        module = model.build(outputs)
    return torch.cat([parameter.detach().flatten() for _, parameter in trained(module)])
