"""Run by `test_fused.py` in a process of its own, in which Triton interprets its kernels: what they make, and torch."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.codecs import Key, Ternary, ThresholdTernary
from testbed.codecs.resident import fused as kernels
from testbed.codecs.resident import ternary as resident
from testbed.codecs.resident import twin_of
from testbed.layout import Layout

CPU = torch.device("cpu")
CODECS: dict[str, Callable[[Layout], Ternary]] = {
    "by layer": Ternary,
    "one scale": lambda layout: Ternary(layout, layerwise=False, float_last=False),
    "not cut": lambda layout: Ternary(layout, clip=None, float_last=False),
}
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "zeros": torch.zeros_like,
    "tiny": lambda x: x * 2.0**-100,
    "large": lambda x: x * 2.0**100,
    "one is NaN": lambda x: torch.cat([x[:3].clone().fill_(float("nan")), x[3:]]),
    "one is infinite": lambda x: torch.cat([x[:3].clone().fill_(-float("inf")), x[3:]]),
}


def layout_of(size: int) -> Layout:
    return Layout.of([("a.weight", (1, size)), ("a.bias", (7,)), ("b.weight", (3, size)), ("last.weight", (2, 3))])


def vector(size: int) -> Tensor:
    """Sixteenths, whose sums are the same in any order."""
    random = np.random.default_rng(size)
    values = np.round(random.standard_normal(size) * 16) / 16
    values[random.random(size) < 0.2] = -0.0
    return torch.from_numpy(values.astype(np.float32))


def twins(codec: Any) -> tuple[Any, Any]:
    """The twin of torch's operations and the one of kernels, both on the CPU."""
    plain = twin_of(codec, CPU)
    before, resident.fused = resident.fused, lambda device: kernels
    try:
        return plain, twin_of(codec, CPU)
    finally:
        resident.fused = before


def differences(size: int) -> Iterator[str]:
    """What differs of vectors of this size: "" for each thing that does not."""
    layout = layout_of(size)
    for name, make in CODECS.items():
        plain, by_kernels = twins(make(layout))
        for kind, change in VALUES.items() if name == "by layer" else [("normal", VALUES["normal"])]:
            x, key = change(vector(layout.size)), Key(1, 2, 3)
            shared = 2 * plain.limits(x).scales
            for scales in (None, shared):
                messages = [twin.encode(x, key, scales) for twin in (plain, by_kernels)]
                resident.fused = lambda device: kernels
                decoded = [plain.decode(messages[0]), by_kernels.decode(messages[0])]
                if not bool(torch.isfinite(x).all()):  # such a vector ends the run, whatever it decodes to
                    decoded = [torch.zeros(1)] * 2
                for what, one, other in [
                    *zip(("scales", "floats", "trits"), *messages, strict=True),
                    ("vector", *decoded),
                ]:
                    same = torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
                    yield "" if same else f"{size}, {name}, {kind}: {what}"
        worst = [twin.doubts.worst() for twin in (plain, by_kernels)]
        yield "" if worst[0].isfinite() == worst[1].isfinite() else f"{size}, {name}: what is not finite is not known"
    plain, by_kernels = twins(ThresholdTernary(layout))
    message = plain.encode(vector(layout.size))
    yield "" if torch.equal(plain.decode(message), by_kernels.decode(message)) else f"{size}: thresholds decoded"


if __name__ == "__main__":
    for size in (0, 9, 1025, 5121):
        found = list(differences(size))
        print(size, len(found), *filter(None, found), sep="\n", flush=True)
