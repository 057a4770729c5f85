"""DeMo: the paper's algorithm in plain numpy, and momenta that stay where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.codecs.base import Key
from testbed.codecs.dct import Blocks, Frequencies
from testbed.errors import CodecError
from testbed.layout import Layout
from testbed.record.events import Sent
from testbed.roles.roles import Kind, Roles, kind_of
from testbed.systems import Task
from testbed.wan.profile import Link

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE, BETA, KEPT, STEPS = 0.01, 0.9, 5, 12
SIDES = {"first.weight": (8, 6), "first.bias": (1, 8), "last.weight": (5, 8), "last.bias": (1, 5)}  # at most 8


def task_of(kind: Kind, steps: int = STEPS) -> Task:
    return quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, rate=RATE)


def run(kind: Kind = "tree", **options: Any) -> Played:
    return play("demo", task_of(kind), PROFILE, {"momentum": BETA, "kept": KEPT, "block": 8} | options, stops=[5])


def basis(n: int) -> np.ndarray:
    """The orthonormal DCT-II, from its definition."""
    rows = [[np.cos(np.pi * (2 * place + 1) * k / (2 * n)) for place in range(n)] for k in range(n)]
    scales = [np.sqrt((1 if k == 0 else 2) / n) for k in range(n)]
    return np.array(rows) * np.array(scales)[:, None]


def blocks(x: np.ndarray) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Every block of a vector as a view, and the bases of its sides."""
    found = []
    for layer in SMALL:
        h, w = SIDES[layer.name]
        matrix = x[layer.slice].reshape(layer.shape if not layer.bias else (1, -1))
        for i in range(0, matrix.shape[0], h):
            found += [(matrix[i : i + h, j : j + w], basis(h), basis(w)) for j in range(0, matrix.shape[1], w)]
    return found


def fast(m: np.ndarray) -> np.ndarray:
    """Of each block its largest coefficients, as the vector that they make."""
    out = np.zeros_like(m)
    for (block, rows, columns), (room, _, _) in zip(blocks(m), blocks(out), strict=True):
        coefficients = rows @ block @ columns.T
        count = min(KEPT, block.size)
        coefficients[np.abs(coefficients) < np.sort(np.abs(coefficients), axis=None)[-count]] = 0
        room[:] = rows.T @ coefficients @ columns
    return out


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_it_is_the_papers_algorithm(kind: Kind) -> None:
    task = task_of(kind)
    targets = [task.learner(k).target.double().numpy() for k in range(4)]  # type: ignore[attr-defined]
    x, momenta = task.initial.double().numpy(), [np.zeros(SMALL.size) for _ in range(4)]
    for _ in range(STEPS):
        momenta = [BETA * m + x - target for m, target in zip(momenta, targets, strict=True)]
        sent = [fast(m) for m in momenta]
        momenta = [m - q for m, q in zip(momenta, sent, strict=True)]
        x = x - RATE * np.sign(np.mean(sent, axis=0))
    played = run(kind)
    torch.testing.assert_close(played.models["full"], torch.from_numpy(x).float(), rtol=1e-4, atol=1e-4)
    for k, worker in enumerate(played.system.task.roles.workers):
        found = played.states[worker].memory.momentum
        torch.testing.assert_close(found, torch.from_numpy(momenta[k]).float(), rtol=1e-3, atol=1e-3)


def test_the_transform_keeps_lengths_and_comes_back() -> None:
    both, vector = Blocks(SMALL, 8), torch.randn(SMALL.size, generator=torch.Generator().manual_seed(0))
    coefficients = both.forward(vector)
    torch.testing.assert_close(coefficients.norm(), vector.norm())
    torch.testing.assert_close(both.inverse(coefficients), vector, rtol=1e-5, atol=1e-5)
    flat = both.forward(torch.ones(SMALL.size))
    assert int((flat.abs() > 1e-5).sum()) == len(blocks(np.ones(SMALL.size))), "a constant is one coefficient a block"


def test_what_was_sent_has_left_the_momentum() -> None:
    codec = Frequencies(SMALL, Blocks(SMALL, 8), 64, BETA)
    memory = codec.start()
    codec.encode(torch.ones(SMALL.size), Key(0, 0, 0), memory)
    assert float(memory.momentum.abs().max()) < 1e-5
    with pytest.raises(CodecError, match="NaN or infinity"):
        codec.encode(torch.full((SMALL.size,), float("nan")), Key(0, 0, 1), memory)
    assert float(memory.momentum.abs().max()) < 1e-5


def test_a_worker_sends_32_coefficients_of_each_block_however_small() -> None:
    """As the authors' code does, of 4,096 and of 64 in the bias: a value and a place each, and what a chunk costs."""
    layout = Layout.of([("w.weight", (256, 256)), ("w.bias", (256,))])
    played = play("demo", quadratic_task(Roles(("a", "b"), 1, "c"), 1, layout=layout), PROFILE)
    sent = max(event.nbytes for event in played.of(Sent) if kind_of(event.node) == "worker")
    kept = (16 + 4) * 32
    assert kept * 33 / 8 < sent < kept * 46 / 8 + 20 * 6 + 80
