"""A gradient in which the linear layers' are factors: how it is taken, and how it lies in one vector.

A linear layer's gradient is Delta^T X / L, of its input X and the loss's derivative Delta by its output (isgq, eq. 1
and 11); its bias's is the mean of Delta's rows, as if each row of X ended in a 1 (eq. 10). Both are at hand in the
backward pass that the other parameters' gradients take; no product of them is made. Nothing here waits for a device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from testbed.errors import InputError
from testbed.layout import Factors, Layout
from testbed.workloads.flat import FlatModel


class Factored(NamedTuple):
    """A gradient.

    Parameters
    ----------
    others : of the parameters of `layout.rest`, one after another
    factors : (X [L, inputs], Delta [L, outputs]) of each layer of `layout.linear`, for a batch of L
    """

    others: Tensor
    factors: list[Factors]

    @property
    def flat(self) -> Tensor:
        """All of it, one after the other; see `parted`."""
        return torch.cat([self.others, *(part.reshape(-1) for pair in self.factors for part in pair)])


def size_of(layout: Layout, rows: int) -> int:
    """Elements of a gradient of so many examples."""
    return layout.rest.size + rows * sum(layer.inputs + layer.outputs for layer in layout.linear)


def parted(flat: Tensor, layout: Layout, rows: int) -> Factored:
    """The inverse of `Factored.flat`, without a copy."""
    widths = [width for layer in layout.linear for width in (layer.inputs, layer.outputs)]
    others, *parts = flat.split([layout.rest.size, *(rows * width for width in widths)])
    signals = [part.view(rows, width) for part, width in zip(parts, widths, strict=True)]
    return Factored(others, list(zip(signals[::2], signals[1::2], strict=True)))


def factored(
    model: FlatModel, parameters: Sequence[Tensor], rows: int, loss: Callable[[], Tensor], bound: float | None
) -> tuple[Tensor, Factored]:
    """The loss and its gradient.

    Parameters
    ----------
    parameters : of the model, by which the loss is derived
    rows : L, examples of the batch
    loss : computes it, by `parameters`
    bound : of the gradient's norm

    Raises
    ------
    InputError
        The model does not put each linear layer exactly once to the batch, row by row.
    """
    linear, rest = _parts(model, parameters)
    with _recorded(linear, rows) as calls:
        value = loss()
    outputs = [calls[name][1] for name in linear]
    derivatives = torch.autograd.grad(value, [*outputs, *rest], allow_unused=True, materialize_grads=True)
    backward = [rows * part for part in derivatives[: len(outputs)]]
    none = torch.empty(0, device=model.device)
    others = torch.cat([none, *(part.reshape(-1) for part in derivatives[len(outputs) :])])
    factors = [(calls[name][0], delta) for name, delta in zip(linear, backward, strict=True)]
    if bound is not None:
        norm = _norm(factors, [layer.bias is not None for layer in model.layout.linear], others)
        share = torch.where(norm > bound, bound / norm, 1.0)
        for part in (others, *backward):
            part.mul_(share)
    return value.detach(), Factored(others, factors)


def _parts(model: FlatModel, parameters: Sequence[Tensor]) -> tuple[dict[str, nn.Module], list[Tensor]]:
    """The modules of `layout.linear` by name, and the parameters of `layout.rest`."""
    modules = {layer.name: model.module.get_submodule(layer.name) for layer in model.layout.linear}
    for name, module in modules.items():
        if not isinstance(module, nn.Linear):
            kind = type(module).__name__
            raise InputError(
                f"layer {name or kind}: its gradient has no factors, its matrix is a {kind}'s, not a Linear's"
            )
    rest = {layer.name for layer in model.layout.rest}
    named = zip(model.layout, parameters, strict=True)
    return modules, [parameter for layer, parameter in named if layer.name in rest]


@contextmanager
def _recorded(modules: Mapping[str, nn.Module], rows: int) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Within it, note the input and output of each module's call; at its end each has been called once."""
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str, given: Tensor, made: Tensor) -> None:
        if name in calls or given.shape[:-1] != (rows,):
            raise InputError(f"layer {name}: its gradient has no factors, it does not take the batch once, row by row")
        calls[name] = (given.detach(), made)

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: note(name, inputs[0], output)

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
    for name in modules:
        if name not in calls:
            raise InputError(f"layer {name}: its gradient has no factors, the model does not use it")
        if calls[name][1]._version:
            raise InputError(f"layer {name}: its gradient has no factors, its output is overwritten in place")


def _norm(factors: Sequence[Factors], biases: Sequence[bool], others: Tensor) -> Tensor:
    """The L2 norm of a whole gradient; ||Delta^T X||^2 is the sum of the products of (X X^T) and (Delta Delta^T)."""
    total = others.double().square().sum()
    for (inputs, delta), bias in zip(factors, biases, strict=True):
        total = total + ((inputs @ inputs.T + bias) * (delta @ delta.T)).double().sum() / len(inputs) ** 2
    return total.clamp(min=0.0).sqrt()
