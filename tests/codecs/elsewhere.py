"""The places at which codecs are tested beside the CPU: an imitated device, and a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from testbed.gpu.standin import DEVICE, standin


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device, which can be used within."""
    with standin():
        yield DEVICE


@contextmanager
def gpu() -> Iterator[torch.device]:
    """A real one."""
    yield torch.device("cuda")


PLACES = [elsewhere, gpu] if torch.cuda.is_available() else [elsewhere]
