"""What code of a plug-in's does wrong while it is played, or before, is one typed line; what else was played stays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from own_parts import forget_after
from small_runs import experiment, start
from torch import nn

import testbed
from testbed.errors import InputError, RoleDied, RunError
from testbed.experiment.assembly import Assembly
from testbed.harness.not_finite import Diverged
from testbed.harness.play import place_of
from testbed.record.info import ResultInfo, read_info
from testbed.systems import Node
from testbed.workloads import model


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_after(monkeypatch)


def failed(folder: Path) -> str:
    """The error of the system `mine`; the baseline before it is finished."""
    [run] = (folder / "test").iterdir()
    assert read_info(place_of(run, "baseline", 0), ResultInfo).status == "finished"
    found = read_info(place_of(run, "mine", 0), ResultInfo)
    assert found.status == "failed"
    return found.error


def defined(**members: Any) -> None:
    """Define the system `mine`, the baseline but for its `members`."""
    base = {"name": "mine", "codec": lambda self, sender: testbed.Float32(self.task.layout)}
    type("Mine", (testbed.CodecSystem,), {**base, "__module__": __name__, **members})


def stepping(loss: Any) -> Any:
    """A worker that says so of its loss."""

    async def worker(self: Any, node: Node, state: Any) -> None:
        done = type(node).step_done
        node.step_done = lambda step, _: loss is None or done(node, step, loss)  # type: ignore[method-assign]
        await testbed.CodecSystem.worker(self, node, state)

    return worker


async def leaves(self: Any, node: Node, state: Any) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("members", "kind", "line"),
    [
        ({"worker": leaves}, RoleDied, r"^mine, seed 0: us-\S+ failed: it called exit\(0\)"),
        ({"worker": stepping(None)}, RunError, r"^mine, seed 0: no worker has recorded a step: .*node\.step_done"),
        ({"worker": stepping("x")}, RoleDied, r"^mine, seed 0: us-\S+ failed: node\.step_done\(0, 'x'\): a loss is a"),
        ({"models": lambda self, states: None}, RunError, "^mine, seed 0: its `models` returned None, not flat"),
        ({"models": lambda self, states: 1 / 0}, RunError, "^mine, seed 0: ZeroDivisionError: division by zero"),
    ],
)
def test_a_system_of_a_plug_ins_fails_with_a_line_that_names_it(
    small_data: None, tmp_path: Path, members: dict[str, Any], kind: type[RunError], line: str
) -> None:
    defined(**members)
    with pytest.raises(kind, match=line) as error:
        start(experiment(systems={"baseline": {}, "mine": {}}), tmp_path)
    assert failed(tmp_path) == str(error.value)


def test_a_loss_that_is_not_finite_is_divergence(small_data: None, tmp_path: Path) -> None:
    defined(worker=stepping(float("nan")))
    with pytest.raises(Diverged, match=r"diverged in mine/seed-0 \(us-\S+ failed: training loss of step 0: NaN or"):
        start(experiment(systems={"mine": {}, "baseline": {}}), tmp_path)
    failed(tmp_path)


def test_a_test_loss_that_is_not_finite_is_too(small_data: None, tmp_path: Path) -> None:
    defined(models=lambda self, states: {"full": torch.full((self.task.layout.size,), float("nan"))})
    with pytest.raises(Diverged, match=r"diverged in mine/seed-0 \(test loss of model full at step 4: NaN or infinity"):
        start(experiment(systems={"mine": {}, "baseline": {}}), tmp_path)
    failed(tmp_path)


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"codec": lambda self, sender: 1 / 0}, "system 'mine': it cannot be made: ZeroDivisionError: division by"),
        ({"codec": lambda self, sender: None}, "mine: codec('worker') returned a NoneType, without layout"),
        ({"codec": testbed.CodecSystem.codec}, "system 'mine': it cannot be made: TypeError: Can't instantiate"),
        ({"initial_state": lambda self, name: None}, "system 'mine': its initial_state("),
    ],
)
def test_a_system_that_cannot_begin_is_refused_beforehand(small_data: None, members: dict[str, Any], line: str) -> None:
    defined(**members)
    with pytest.raises(InputError, match=f"^{re.escape(line)}"):
        Assembly(experiment(systems={"baseline": {}, "mine": {}})).check()


def test_more_workers_than_examples_are_refused_beforehand(small_data: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assembly = Assembly(experiment(systems={"baseline": {}}))
    assembly.workload.dataset.train_examples = 1
    with pytest.raises(InputError, match=r"^data set 'synthetic': 4 workers cannot share 1 training examples"):
        assembly.check()


@pytest.mark.parametrize(
    ("build", "line"),
    [
        (lambda outputs: nn.Linear(2, -3), "model 'mine': its function failed: RuntimeError: "),
        (lambda outputs: 1 / 0, "model 'mine': its function failed: ZeroDivisionError: division by zero"),
        (
            lambda outputs: nn.Linear(7, outputs),
            "model 'mine' fails at an example of data set 'synthetic', of 3x32x32: ",
        ),
        (lambda outputs: nn.Flatten(), "model 'mine': it has no parameter to train"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_beforehand(small_data: None, build: Any, line: str) -> None:
    build.__module__ = __name__
    model("mine")(build)
    with pytest.raises(InputError, match=f"^{re.escape(line)}"):
        Assembly(experiment(model={"name": "mine"}, systems={"baseline": {}})).check()
