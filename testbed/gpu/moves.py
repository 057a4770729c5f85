"""Between the CPU and a device: up without waiting, down in one transfer.

A transfer from ordinary memory makes torch wait for all that the device still has to do. From pinned memory it is put
in the device's queue like any other work, and torch keeps the memory until it is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def is_far(tensor: Tensor) -> bool:
    """Whether a tensor is on a device other than the CPU."""
    return tensor.device.type != "cpu"


def pinned(tensor: Tensor) -> Tensor:
    """A tensor of the CPU in pinned memory, where this machine has a GPU to pin it for."""
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


def upload(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Values of the CPU on a device, without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values
    if device.type == "cpu" or is_far(tensor):
        return tensor.to(device)
    return pinned(tensor).to(device, non_blocking=True)


def refill(tensor: Tensor, values: Tensor) -> None:
    """Write values, of the CPU or the device, into memory of a device, without waiting for it."""
    tensor.copy_(values if is_far(values) or not is_far(tensor) else pinned(values), non_blocking=True)


def refill_all(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """`refill` of each; what is on the device already in one operation for each type of number."""
    there: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for tensor, value in zip(tensors, values, strict=True):
        if is_far(tensor) and is_far(value) and tensor.dtype == value.dtype:
            there.setdefault(value.dtype, []).append((tensor, value))
        else:
            refill(tensor, value)
    for pairs in there.values():
        torch._foreach_copy_([tensor for tensor, _ in pairs], [value for _, value in pairs], non_blocking=True)


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each, of a device's in one operation for each type of number."""
    fresh = [torch.empty_like(tensor) for tensor in tensors]
    refill_all(fresh, tensors)
    return fresh


def rows(vectors: Sequence[Tensor]) -> Tensor:
    """Vectors of one size as rows [n, size]; a view where they lie one after the other in one piece of memory."""
    first = vectors[0]
    size, step = first.numel(), first.numel() * first.element_size()
    begun, memory = first.data_ptr(), first.untyped_storage().data_ptr()
    if all(
        each.is_contiguous() and each.data_ptr() == begun + step * place and each.untyped_storage().data_ptr() == memory
        for place, each in enumerate(vectors)
    ):
        return first.as_strided((len(vectors), size), (size, 1))
    return torch.stack(list(vectors))


def numbers(*scalars: Tensor) -> list[float]:
    """The values of scalars, in one transfer."""
    if not any(map(is_far, scalars)):
        return [scalar.item() for scalar in scalars]
    alike = len({scalar.dtype for scalar in scalars}) == 1
    return torch.stack([scalar if alike else scalar.double() for scalar in scalars]).cpu().tolist()


def read(*values: float | Tensor) -> list[float]:
    """Numbers, those that are tensors of a device in one transfer."""
    there = iter(numbers(*(value for value in values if isinstance(value, Tensor))))
    return [next(there) if isinstance(value, Tensor) else value for value in values]


def norms_of(vectors: Sequence[Tensor]) -> list[Tensor]:
    """The L2 norm of each vector, a scalar where they are; on a device in one operation for all."""
    if is_far(vectors[0]):
        return list(torch._foreach_norm(list(vectors)))
    return list(map(torch.linalg.vector_norm, vectors))


def of_largest(vectors: Sequence[Tensor], norms: Sequence[Tensor]) -> Tensor:
    """The vector with the largest norm (a scalar each), which nobody looks at: which it is stays on the device."""
    return torch.stack(list(vectors)).index_select(0, torch.stack(list(norms)).argmax().view(1))[0]


def download(tensor: Tensor) -> Tensor:
    """A tensor of a device in the CPU's memory, pinned where there is a GPU: one transfer, waited for once."""
    if not torch.cuda.is_available():
        return tensor.cpu()
    room = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    room.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return room


def download_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of one device and type in the CPU's memory, in one transfer; what is on the CPU stays as it is."""
    if not any(map(is_far, tensors)):
        return list(tensors)
    return _parted(download(_whole(tensors)), tensors)


def upload_all(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors of one type on a device, in one transfer that nobody waits for; what is there stays as it is."""
    if device.type == "cpu" or not tensors or all(map(is_far, tensors)):
        return list(tensors)
    return _parted(upload(_whole(tensors), device), tensors)


def _whole(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _parted(whole: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = whole.split([tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def near(values: np.ndarray | Tensor) -> np.ndarray:
    """Values as an array on the CPU; those of a device come down in one transfer."""
    if isinstance(values, np.ndarray):
        return values
    return (download(values) if is_far(values) else values).numpy()


def beside(values: np.ndarray, others: Sequence[np.ndarray | Tensor]) -> np.ndarray | Tensor:
    """An array on the device where some of the others are, without waiting for it; as it is where none are on any."""
    device = next((each.device for each in others if isinstance(each, Tensor) and is_far(each)), None)
    return values if device is None else upload(values, device)


def finish(made: object) -> None:
    """Wait until a GPU has made what a computation returned; on the CPU that is so already."""
    for part in tree_leaves(made):
        if isinstance(part, Tensor) and part.device.type == "cuda":
            torch.cuda.current_stream(part.device).synchronize()
            return
