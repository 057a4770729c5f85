"""Where the math runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil, floor
from typing import Literal

import torch

from testbed.errors import InputError
from testbed.gpu import standin

Precision = Literal["ieee", "tf32"]


def device(name: str) -> torch.device:
    """Return the device called `name`, "cpu" or "cuda" (or "cuda:1" ...).

    Raises
    ------
    InputError
        There is no such device, or torch cannot use it here.
    """
    if name == standin.NAME and standin.is_open():
        return standin.DEVICE
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device '{name}' is unknown; use cpu, cuda or cuda:<number>")
    chosen = torch.device(name)
    if chosen.type == "cuda":
        _repeatably()
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{name}' cannot be used: {reason}; use cpu, or a torch build with CUDA") from None
    return chosen


def dealt(name: str, number: int) -> str:
    """The device for the `number`th of several plays at once: "cuda" goes round all GPUs that this process sees."""
    count = torch.cuda.device_count() if name == "cuda" else 0
    return f"cuda:{number % count}" if count > 1 else name


def alone(name: str) -> dict[str, str]:
    """The environment of processes that are to see no GPU but the one that is named, as "cuda"; {} where none is."""
    kind, _, number = name.partition(":")
    if kind != "cuda" or not number:
        return {}
    seen = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    return {"CUDA_VISIBLE_DEVICES": seen[int(number)] if int(number) < len(seen) else number}


def share(workers: int, gpus: int) -> float:
    """How much of a GPU each of so many workers takes, in Ray's ten-thousandths, so that all find room."""
    return floor(1e4 / ceil(workers / gpus)) / 1e4


def _repeatably() -> None:
    """Have a GPU's libraries give the same bits each time, and multiply float32 as such but in gradients.

    Left to themselves they add in whatever order is fastest at that moment, and multiply with 10 bits of fraction.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    _allow_tf32(False)


@contextmanager
def multiplied(precision: Precision, device: torch.device) -> Iterator[None]:
    """Within it a GPU multiplies float32 so: "ieee", or "tf32" with 10 bits of fraction, on its matrix units."""
    if device.type != "cuda" or precision == "ieee":
        yield
        return
    _allow_tf32(True)
    try:
        yield
    finally:
        _allow_tf32(False)


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
