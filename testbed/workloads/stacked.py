"""The gradients of several workers in one pass over all their batches.

A network that is small for its device is a few hundred operations of a few microseconds, for each worker. In one pass
over all batches there are as many for all of them together. Each worker has weights of its own, so the operations that
take weights must know which examples are whose:

1. A linear layer is a batched product, a normalisation of a layer's outputs or an embedding the same with one more
   dimension, and a convolution is one for each worker, side by side, or one for those who have the same weights; its
   derivative by the weights is one for each in any case.
2. They are found as the network calls them (`torch.overrides.TorchFunctionMode`): what the network takes for its
   parameters stands for a stack of them. Any other operation on a parameter raises `NotStackable`.
3. All others work on examples, none of which has to do with another. What they do where that is not so, as in batch
   normalisation, is not the gradient of each worker alone: whoever stacks compares the two once (`is_like`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from testbed.gpu.graphs import branches

SAME = 2e-2  # of a gradient's norm, within which two ways to compute it are the same but for rounding
_aten = torch.ops.aten


class NotStackable(Exception):
    """The network does with a parameter what cannot be done for several workers at once."""


class Stacked(TorchFunctionMode):
    """Within it a network that is given `shown` as parameters computes with `stacks`.

    Parameters
    ----------
    shown : the first worker's parameters, of the shapes that a network expects
    stacks : all workers' [workers, ...], of which derivatives can be taken
    examples : of all workers together, one worker's after another's
    alike : how many workers in a row have the same
    """

    def __init__(self, shown: Sequence[Tensor], stacks: Sequence[Tensor], examples: int, alike: int) -> None:
        super().__init__()
        self._stacks = {id(one): stack for one, stack in zip(shown, stacks, strict=True)}
        self._shown = shown  # so that the ids stay theirs
        self._workers, self._examples, self._alike = len(stacks[0]), examples, alike

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not any(id(each) in self._stacks for each in (*args, *given.values())):
            return function(*args, **given)
        if (stacked := self._known.get(function)) is not None:
            return stacked(self, *args, **given)
        if getattr(function, "__name__", "") in ("__get__", "dim", "size", "numel"):
            return function(*args, **given)  # a look at the shape
        raise NotStackable(f"{getattr(function, '__name__', function)} of a parameter")

    def _stack(self, parameter: Tensor | None) -> Tensor | None:
        return None if parameter is None else self._stacks[id(parameter)]

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        weights, biases = self._stacks[id(weight)], self._stack(bias)
        rows = input.reshape(self._workers, -1, input.shape[-1])
        if biases is None:
            made = torch.bmm(rows, weights.transpose(1, 2))
        else:
            made = torch.baddbmm(biases.unsqueeze(1), rows, weights.transpose(1, 2))
        return made.view(*input.shape[:-1], weights.shape[1])

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if isinstance(padding, str):
            raise NotStackable("a convolution whose padding is a word")
        form = (_pair(stride), _pair(padding), _pair(dilation), groups, self._alike)
        made: Tensor = _Convolution.apply(input, self._stacks[id(weight)], self._stack(bias), *form)
        return made

    def _layer_norm(
        self,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        rows = functional.layer_norm(input, normalized_shape, eps=eps).view(self._workers, -1, *normalized_shape)
        weights, biases = self._stack(weight), self._stack(bias)
        rows = rows if weights is None else rows * weights.unsqueeze(1)
        rows = rows if biases is None else rows + biases.unsqueeze(1)
        return rows.view(input.shape)

    def _embedding(self, input: Tensor, weight: Tensor, padding_idx: int | None = None, **others: Any) -> Tensor:
        if padding_idx is not None or any(others.get(name) for name in ("max_norm", "scale_grad_by_freq", "sparse")):
            raise NotStackable("an embedding with options")
        if input.dim() == 1 and len(input) == self._examples:
            raise NotStackable("an embedding of a row of tokens, or of places, of which there are as many as examples")
        tables = self._stacks[id(weight)]
        first = len(weight) * torch.arange(self._workers, device=input.device)
        rows = tables.reshape(-1, weight.shape[1])
        if len(input) == self._examples:
            of_each = input.reshape(self._workers, -1) + first[:, None]
            return functional.embedding(of_each.view(input.shape), rows)
        found = functional.embedding(input + first.view(-1, *[1] * input.dim()), rows)  # the same for all examples
        return found.repeat_interleave(self._examples // self._workers, 0, output_size=self._examples)

    _known: ClassVar[dict[Any, Callable[..., Tensor]]] = {
        functional.linear: _linear,
        functional.conv2d: _convolution,
        functional.layer_norm: _layer_norm,
        functional.embedding: _embedding,
    }


class _Convolution(torch.autograd.Function):
    """As `torch.nn.functional.conv2d`, of each worker's examples with its weights [workers, outputs, ...]."""

    @staticmethod
    def forward(ctx, input, weights, biases, stride, padding, dilation, groups, alike):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(input, weights)
        ctx.form, ctx.alike, ctx.biased = (stride, padding, dilation, groups), alike, biases is not None

        def convolved(x: Tensor, worker: int) -> Tensor:
            bias = None if biases is None else biases[worker]
            return functional.conv2d(x, weights[worker], bias, stride, padding, dilation, groups)

        firsts = range(0, len(weights), alike)
        calls = [partial(convolved, x, worker) for x, worker in zip(input.chunk(len(firsts)), firsts, strict=True)]
        return _joined(branches(calls, input.device))

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        input, weights = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.form
        gradient, by_input = gradient.contiguous(), ctx.needs_input_grad[0]

        def back(worker: int, delta: Tensor, x: Tensor, wanted: list[bool]) -> Tensor:
            form = (stride, padding, dilation, False, [0, 0], groups)
            used = weights[worker]
            if wanted[0]:  # with the channels last, where cuDNN has a quicker way: 0.14 for 0.35 ms (CifarNet, an H100)
                delta, used = (each.contiguous(memory_format=torch.channels_last) for each in (delta, used))
            made = _aten.convolution_backward(delta, x, used, None, *form, wanted)
            return made[wanted.index(True)].contiguous()

        def each(alike: int, wanted: list[bool]) -> list[Callable[[], Tensor]]:
            firsts = range(0, len(weights), alike)
            parts = zip(firsts, gradient.chunk(len(firsts)), input.chunk(len(firsts)), strict=True)
            return [partial(back, *part, wanted) for part in parts]

        by_weights = each(1, [False, True, False])
        by_examples = each(ctx.alike, [True, False, False]) if by_input else []
        made = branches([*by_weights, *by_examples], gradient.device)
        count = len(weights)
        biased = gradient.view(count, -1, *gradient.shape[1:]).sum((1, 3, 4)) if ctx.biased else None
        found = _joined(made[count:]) if by_input else None
        return found, torch.stack(made[:count]), biased, None, None, None, None, None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def may_stack(module: nn.Module) -> bool:
    """Whether nothing in a network is known to mix the examples of a batch."""
    return not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


def is_like(one: Tensor, other: Tensor) -> bool:
    """Whether a loss or a gradient is another to rounding; waits for the device."""
    distance, norm = torch.linalg.vector_norm(one - other), torch.linalg.vector_norm(other)
    return bool(distance <= SAME * norm)
