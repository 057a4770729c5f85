"""A device for machines without one: tensors whose data are on the CPU and that torch takes to be elsewhere.

Operations run for real. What a GPU would not do is refused here too: to mix tensors of both places, and to make an
array of a tensor that is elsewhere. Tests for `PLACES` run on it, and on a GPU where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("meta")  # torch knows of it in every build, and the CPU it is not
_MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class _Far(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> _Far:
        far = torch.Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=DEVICE,
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:  # type: ignore[override]
        return _run(function, arguments, options or {})


class Elsewhere(TorchDispatchMode):
    """Within it, tensors can be made on `DEVICE` and moved there and back."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return _run(function, arguments, options or {})


def _run(function: Any, arguments: Any, options: dict[str, Any]) -> Any:
    places: set[bool] = set()

    def brought(value: Any) -> Any:
        if isinstance(value, _Far):
            places.add(True)
            return value.near
        if isinstance(value, torch.Tensor) and value.dim():  # scalars of the CPU go anywhere
            places.add(False)
        return value

    near, given = tree_map(brought, (arguments, options))
    if len(places) == 2 and function not in _MOVES:
        raise RuntimeError(f"{function} of tensors here and elsewhere")
    far = True in places
    if given.get("device") is not None:
        far = given["device"] == DEVICE
        given["device"] = torch.device("cpu")
    result = function(*near, **given)
    if function._schema.is_mutable:  # in place, or into `out`
        return options.get("out", arguments[0])
    return tree_map(lambda value: _Far(value) if far and isinstance(value, torch.Tensor) else value, result)


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device, which can be used within."""
    with Elsewhere():
        yield DEVICE


@contextmanager
def gpu() -> Iterator[torch.device]:
    """A real one."""
    yield torch.device("cuda")


PLACES = [elsewhere, gpu] if torch.cuda.is_available() else [elsewhere]
