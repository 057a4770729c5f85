"""Systems beside their authors' public code: the same start, targets and steps, and what came out there.

`authors_code.json` has the numbers, with repository, commit and what was run; none of that code is here. It ran once,
in float32 on a CPU, its workers over gloo or in turn. The model is `NET` or `NARROW`, initial weights are `drawn(0)`,
worker k's gradient is weights - `drawn(k + 1)`, and rates are constant. Numbers are rounded to seven digits.

Where the systems differ on purpose, runs are such that it does not show, or both are brought to one scale:

- DeMo: there a coefficient's mean is over those that sent it, so one worker sends some, or several send all; and a
  gradient joins the momentum times the rate, by which the momenta in the file are divided.
- PowerSGD: there Gram-Schmidt, here QR, so Q may have columns of the other sign. The first Q is this testbed's.
- MuLoCo: there the outer rate counts twice: 0.7 there is 0.49 here, and its error buffers are 0.7 of those here. Muon
  there is in bfloat16, which was changed to float32; `test_muon` has it both ways.
- SparseLoCo: there a chunk is a block of a matrix, and as many elements are sent of a small one as of a large one; a
  mean is over those that sent an element; and layers of more than the median norm are shortened, which is not in the
  paper. So layers are as wide as a block and have no vectors, and one worker sends some, or several all, unshortened.
- Local SGD: there the first average is after one step and the others every H steps from then; it was told the number
  of steps so that they are after H, 2 H, ...
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import Played, Quadratic, network, play, quadratic_task

from testbed.codecs.statistical import Statistical
from testbed.layout import Layout
from testbed.roles.roles import Kind, Roles
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD, AdamW, Optimizer
from testbed.workloads.schedule import Constant

NUMBERS: dict[str, Any] = json.loads((Path(__file__).parent / "authors_code.json").read_text())
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
NET = Layout.of([("first.weight", (8, 6)), ("first.bias", (8,)), ("last.weight", (5, 8)), ("last.bias", (5,))])
NARROW = Layout.of([("first.weight", (12, 4)), ("last.weight", (8, 4))])
ADAMW = AdamW(beta1=0.9, beta2=0.99, weight_decay=0.1)
MULOCO = {"momentum": 0.8, "others_rate": 0.4, "outer_rate": 0.7 * 0.7, "outer_momentum": 0.6, "decay": 0.9}
SPARSELOCO = {"local_steps": 2, "chunk": 16, "outer_rate": 0.8, "decay": 0.9}


def drawn(seed: int, size: int = NET.size) -> torch.Tensor:
    """Numbers that every version of numpy draws alike."""
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(size)).float()


def run(
    system: str,
    workers: int,
    steps: int,
    options: dict[str, Any],
    kind: Kind = "flat",
    rate: float = 0.05,
    optimizer: Optimizer | None = None,
    layout: Layout = NET,
) -> Played:
    regions, each = (("a", "b"), workers // 2) if workers % 2 == 0 else (("a",), workers)
    training = Training(steps=steps, schedule=Constant(rate=rate), optimizer=optimizer or SGD())
    task = quadratic_task(Roles(regions, each, "c", kind), steps, layout=layout, training=training)

    def learner(worker: int) -> Any:
        return Quadratic(drawn(worker + 1, layout.size))

    return play(system, replace(task, initial=drawn(0, layout.size), learner=learner), PROFILE, options)


def state(played: Played) -> Any:
    """The first worker's."""
    return played.states["a/w0"]


def check(found: torch.Tensor, expected: list[float]) -> None:
    """Alike but for float32, and seven digits."""
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_demo_of_one_worker() -> None:
    """Some of the frequencies are sent: what is left in the momentum tells which."""
    found = run("demo", 1, 6, {"momentum": 0.9, "kept": 6, "block": 8}, "tree", rate=0.01)
    expected = NUMBERS["demo"]["one worker, compression_topk 6"]
    check(found.models["full"], expected["weights"])
    check(state(found).memory.momentum, expected["momentum"])


def test_demo_of_several_workers() -> None:
    """All frequencies are sent."""
    found = run("demo", 4, 6, {"momentum": 0.9, "kept": 64, "block": 8}, "tree", rate=0.01)
    check(found.models["full"], NUMBERS["demo"]["four workers, compression_topk 64"]["weights"])


@pytest.mark.parametrize(("system", "kind"), [("powersgd", "tree"), ("powersgd-ring", "ring")])
def test_powersgd(system: str, kind: Kind) -> None:
    expected = NUMBERS["powersgd"]
    found = run(system, 4, 5, {"rank": 2}, kind)
    check(found.system.initial_state("a/w0").query, expected["query"])
    check(found.models["full"], expected["weights"])
    check(state(found).error, expected["error"])


def test_muon() -> None:
    """Which trains the first layer, and AdamW the others: MuLoCo before the copies meet."""
    found = run("muloco", 1, 4, MULOCO | {"local_steps": 30}, optimizer=ADAMW).models["full"]
    expected, matrix = NUMBERS["muloco"]["muon"], NET.layers[0].slice
    check(found, expected["exact"])
    moved = float((found - drawn(0))[matrix].norm())
    assert float((found[matrix] - torch.tensor(expected["half"])).norm()) < 0.03 * moved, "but for bfloat16"


@pytest.mark.parametrize(("bits", "rows"), [(2, False), (2, True), (8, False)])
def test_the_quantizer_of_muloco(bits: Any, rows: bool) -> None:
    codec = Statistical(NET, bits, rows)
    found = codec.decode(codec.encode(drawn(50) + 0.5))
    check(found, NUMBERS["muloco"]["quantizer"][f"{'rows' if rows else 'layers'}{bits}"])


@pytest.mark.parametrize(("name", "rows"), [("statistical, 4 bins", False), ("row_wise_statistical, 4 bins", True)])
def test_muloco(name: str, rows: bool) -> None:
    found = run("muloco", 3, 6, MULOCO | {"local_steps": 2, "rows": rows}, optimizer=ADAMW)
    expected = NUMBERS["muloco"]["whole"][name]
    check(found.models["full"], expected["weights"])
    check(0.7 * state(found).residual, expected["error"])


@pytest.mark.parametrize(
    ("name", "workers", "kept"),
    [("one worker, topk 4", 1, 4 / 16), ("three workers, topk 16, clip_norm False", 3, 1.0)],
)
def test_sparseloco(name: str, workers: int, kept: float) -> None:
    found = run("sparseloco", workers, 6, SPARSELOCO | {"kept": kept}, layout=NARROW)
    expected = NUMBERS["sparseloco"][name]
    check(found.models["full"], expected["weights"])
    check(state(found).residual, expected["error"])


def test_local_sgd() -> None:
    """A step after an average, with a momentum that is the worker's own; the mean of all would not tell H."""
    optimizer = SGD(momentum=0.9, nesterov=True)
    found = run("local-sgd", 4, 7, {"local_steps": 3}, "ring", optimizer=optimizer)
    check(state(found).weights, NUMBERS["local-sgd"]["weights"])
