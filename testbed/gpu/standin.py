"""A device for machines without one: tensors whose data are on the CPU and that torch takes to be elsewhere.

Operations run for real, and are counted as a GPU's would be. What a GPU would not do is refused here too: to mix
tensors of both places, and to make an array of a tensor that is elsewhere. Work can be captured and launched again, as
a CUDA graph is (`recorded`); what could not be captured there cannot be here.

1. Torch knows the device "meta" in every build, and the CPU it is not. A tensor that says it is there has its data in
   `near`, and `_run` does to these what is asked of it.
2. An operation is a launch, unless it only looks at memory in another way or sets some aside. Torch's libraries may
   make several kernels of one operation, as of the derivative of a convolution: counts are of operations.
3. It waits for the device (a synchronisation) if it needs a value or a size that only the device knows, or brings
   values to the CPU. What goes up waits, too, unless it was asked not to (`moves.upload`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "standin"
DEVICE = torch.device("meta")
PACKAGE = str(Path(__file__).parents[1])
_ops = torch.ops.aten
_MOVES = (_ops._to_copy.default, _ops.copy_.default)
_ASKS = {  # needs what only the device knows
    _ops._local_scalar_dense.default,
    _ops.nonzero.default,
    _ops.masked_select.default,
    _ops.equal.default,
    _ops.is_nonzero.default,
    _ops._unique2.default,
    _ops.unique_consecutive.default,
    _ops.unique_dim.default,
    _ops.repeat_interleave.Tensor,
    _ops.bincount.default,
}
_BY_MASK = (_ops.index.Tensor, _ops.index_put_.default, _ops.index_put.default, _ops._index_put_impl_.default)
_LOOK_UP = (_ops.index_select.default, _ops.index.Tensor, _ops.embedding.default)
_SETS_ASIDE = ("empty", "new_empty", "detach", "alias", "lift", "set_", "resize_", "_unsafe_view", "_reshape_alias")
Recording = list[tuple[Any, Any, Any, Any]]  # operation, its arguments, its options, what it made


@dataclass
class Counts:
    """What has been asked of the device.

    Attributes
    ----------
    launches : operations started one by one, and graphs, each of which is one
    graphs, captured : how many of them were graphs, and how many operations were in these
    waits : times the program waited for the device
    up, down : bytes that went to the device and came from it
    ups : transfers to it that nobody waited for
    where : of each wait, the line of this package that asked
    kinds : launches by operation
    """

    launches: int = 0
    graphs: int = 0
    captured: int = 0
    waits: int = 0
    up: int = 0
    ups: int = 0
    down: int = 0
    touched: int = 0  # bytes of memory that operations read and wrote, captured ones too
    where: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)


class Refused(RuntimeError):
    """What a GPU would not do either."""


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

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.detach().clone()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:  # type: ignore[override]
        return _run(function, arguments, options or {})


class _Elsewhere(TorchDispatchMode):
    """Within it, tensors can be made on `DEVICE` and moved there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here: torch need not import what would see to it

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return _run(function, arguments, options or {})


_open: list[_Elsewhere] = []
_recording: list[Recording] = []


@contextmanager
def standin() -> Iterator[Counts]:
    """Within it the device can be used; what is asked of it."""
    with _Elsewhere() as mode:
        _open.append(mode)
        try:
            yield mode.counts
        finally:
            _open.pop()


def is_open() -> bool:
    """Whether the device can be used now."""
    return bool(_open)


def recorded(work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """Do `work` and note each operation: what does them again, on the same memory, and what `work` returned.

    Raises
    ------
    Refused
        It waits for the device, or moves something between it and the CPU.
    """
    recording: Recording = []
    _recording.append(recording)
    try:
        made = work()
    finally:
        _recording.pop()
    steps = [each for each in recording if not _is_view(each[0])]

    def again() -> None:
        counts = _open[-1].counts
        counts.launches += 1
        counts.graphs += 1
        counts.captured += sum(_starts(function) for function, *_ in steps)
        counts.kinds["a graph"] += 1
        with _without_mode():
            for function, arguments, options, results in steps:
                _again(function, arguments, options, results)
                counts.touched += _memory(function, arguments, options, results) if _starts(function) else 0

    return again, made


@contextmanager
def _without_mode() -> Iterator[None]:
    with torch._C._DisableTorchDispatch():
        yield


def _again(function: Any, arguments: Any, options: Any, results: Any) -> None:
    near = tree_map(_near, (arguments, options))
    made = function(*near[0], **near[1])
    if function._schema.is_mutable:
        return
    for old, new in zip(tree_leaves(results), tree_leaves(made), strict=True):
        if isinstance(old, _Far):
            old.near.copy_(new)


def _near(value: Any) -> Any:
    return value.near if isinstance(value, _Far) else value


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
        raise Refused(f"{function} of tensors here and elsewhere")
    was_far = far = True in places
    if given.get("device") is not None:
        far = given["device"] == DEVICE
        given["device"] = torch.device("cpu")
    with _without_mode():
        result = function(*near, **given)
    if was_far or far:
        _count(function, arguments, options, result, was_far, far)
    if function._schema.is_mutable:  # in place, or into `out`
        made = options.get("out", arguments[0]) if function._schema.returns else None
    else:
        made = tree_map(lambda value: _Far(value) if far and isinstance(value, torch.Tensor) else value, result)
    if _recording and (was_far or far):
        options = given if "device" in given else options
        _recording[-1].append((function, arguments, options, made))
    return made


def _count(function: Any, arguments: Any, options: Any, result: Any, was_far: bool, far: bool) -> None:
    if not _open:
        return
    counts = _open[-1].counts
    up, down = _crossing(function, arguments, was_far, far)
    waits = function in _ASKS or down or (up and not _is_asynchronous(function, arguments, options))
    waits = waits or (function in _BY_MASK and _by_mask(arguments))
    if (waits or up) and _recording:
        raise Refused(f"{function} waits for the device, or moves something there: it cannot be captured")
    if up or down:
        size = _bytes(arguments[1] if function is _ops.copy_.default else arguments[0])
        counts.up += size if up else 0
        counts.down += size if down else 0
        counts.ups += int(up and not waits)
    elif function is _ops._local_scalar_dense.default:
        counts.down += _bytes(arguments)
    elif _starts(function):
        counts.touched += _memory(function, arguments, options, result)
        if not _recording:
            counts.launches += 1
            counts.kinds[str(function).removeprefix("aten.")] += 1
    if waits:
        counts.waits += 1
        counts.where[_asker()] += 1


def _crossing(function: Any, arguments: Any, was_far: bool, far: bool) -> tuple[bool, bool]:
    """Whether values go to the device, and whether they come from it."""
    if function is _ops._to_copy.default:
        return far and not was_far, was_far and not far
    if function is _ops.copy_.default:
        to, source = (isinstance(each, _Far) for each in arguments[:2])
        return (to and not source and bool(arguments[1].dim())), (source and not to)
    return False, False


def _is_asynchronous(function: Any, arguments: Any, options: Any) -> bool:
    return bool(options.get("non_blocking")) or (function is _ops.copy_.default and len(arguments) > 2 and arguments[2])


def _memory(function: Any, arguments: Any, options: Any, result: Any) -> int:
    """Bytes that an operation reads and writes; of what it looks up in, as much as it finds."""
    if function in _LOOK_UP:
        return 2 * _bytes(result) + _bytes(arguments[1:])
    return _bytes((arguments, options, result))


def _by_mask(arguments: Any) -> bool:
    return any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in arguments[1])


def _starts(function: Any) -> bool:
    """Whether an operation starts anything on a device."""
    name = function._schema.name.removeprefix("aten::")
    return not (_is_view(function) or name.startswith(_SETS_ASIDE) or function is _ops._local_scalar_dense.default)


def _is_view(function: Any) -> bool:
    schema = function._schema
    shared = any(result.alias_info is not None and not result.alias_info.is_write for result in schema.returns)
    return shared or schema.name in ("aten::detach", "aten::_unsafe_view", "aten::alias", "aten::lift_fresh")


def _bytes(values: Any) -> int:
    """Of the device's tensors and those that come from the CPU."""
    return sum(each.numel() * each.element_size() for each in tree_leaves(values) if isinstance(each, torch.Tensor))


def _asker() -> str:
    """The nearest line of this package, this file apart, that has made torch do what it does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and Path(code.co_filename).parent.name != "gpu":
            return f"{Path(code.co_filename).relative_to(Path(PACKAGE).parent)}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return "a test"
