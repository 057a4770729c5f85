"""Replicas that stay equal are one where one process plays all workers, and what a run computes stays the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from small_runs import each_system, experiment, start

from testbed.experiment.assembly import Assembly
from testbed.fabrics.registry import FABRICS, Setting, virtual
from testbed.systems.protocols.replica import ReplicaSystem

UNITED = ("baseline", "terngrad", "dgc", "mqgrad", "adaptive", "ef21", "demo")


def states_of(system: str, **compute: Any) -> list[Any]:
    """The workers' states as the virtual fabric begins with them."""
    it = experiment(systems={system: {}}, compute=compute) if compute else experiment(systems={system: {}})
    kind = FABRICS[virtual()]
    it = it.on(kind.device)
    with kind.open(Setting(Assembly(it, "cpu"), "cpu")) as fabric:
        fabric.begin(system, 0, Path(), 0.0, None)
        states, roles = fabric._states, fabric._system.task.roles  # type: ignore[attr-defined]
        return [states[name] for name in roles.workers]


@pytest.mark.parametrize("system", each_system(UNITED, "baseline", "ef21"))
def test_all_workers_hold_the_same_weights(small_data: None, system: str) -> None:
    first, *others = states_of(system)
    assert others
    assert all(other.weights is first.weights and other.optimizer is first.optimizer for other in others)


def test_but_not_where_what_they_do_is_measured(small_data: None) -> None:
    first, *others = states_of("baseline", device="measured")
    assert not any(other.weights is first.weights for other in others)


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(UNITED))
@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_run_is_what_it_was(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, ema: float | None
) -> None:
    def run(folder: str) -> tuple[pd.DataFrame, bytes]:
        training = {"steps": 6, **({} if ema is None else {"ema_decay": ema})}
        record = start(experiment(systems={system: {}}, training=training), tmp_path / folder) / system / "seed-0"
        return pd.read_parquet(record / "steps.parquet"), (record / "evaluations.parquet").read_bytes()

    united = run("united")
    monkeypatch.setattr(ReplicaSystem, "unite", lambda self, states: None)
    apart = run("apart")
    pd.testing.assert_frame_equal(united[0], apart[0])
    assert united[1] == apart[1]


def test_replicas_that_differ_are_not_one(small_data: None, monkeypatch: pytest.MonkeyPatch) -> None:
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    first, *others = states_of("baseline")
    monkeypatch.setattr(torch, "equal", equal)
    assert not any(other.weights is first.weights for other in others)
