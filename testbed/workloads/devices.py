"""Where the math runs."""

from __future__ import annotations

import re

import torch

from testbed.errors import InputError


def device(name: str) -> torch.device:
    """Return the device called `name`, "cpu" or "cuda" (or "cuda:1" ...).

    Raises
    ------
    InputError
        There is no such device, or torch cannot use it here.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise InputError(f"device '{name}' is unknown; use cpu, cuda or cuda:<number>")
    chosen = torch.device(name)
    try:
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device '{name}' cannot be used: {reason}; use cpu, or a torch build with CUDA") from None
    return chosen
