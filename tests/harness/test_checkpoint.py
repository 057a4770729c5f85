"""Checkpoints on disk: whole or not at all, one to go on from, and states that come back as they were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from testbed.errors import InputError
from testbed.harness import checkpoint
from testbed.harness.checkpoint import Clock
from testbed.roles import state as state_file


def fill(folder: Path) -> None:
    (folder / "role.npz").write_text(folder.name)


def write(folder: Path, step: int, **hooks: Any) -> None:
    checkpoint.write(folder, Clock(step, step / 3), hooks.get("save", fill), hooks.get("before", lambda path: None))


def test_the_latest_is_the_only_one_and_its_clock_keeps_every_bit(tmp_path: Path) -> None:
    for step in (50, 100):
        write(tmp_path, step)
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert (found.clock, found.folder.name) == (Clock(100, 100 / 3), "checkpoint-100")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-100"]


def test_none_is_none(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "not there") is None


@pytest.mark.parametrize("hook", ["save", "before"])
def test_one_that_was_not_finished_does_not_count_and_is_replaced(tmp_path: Path, hook: str) -> None:
    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    write(tmp_path, 50)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 100, **{hook: killed})
    found = checkpoint.latest(tmp_path)
    assert found is not None
    assert found.clock.step == 50
    write(tmp_path, 100)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-100"]


def test_one_that_is_half_deleted_does_not_count_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, 50)
    (tmp_path / "checkpoint-40").mkdir()  # its clock went first
    found = checkpoint.latest(tmp_path)
    assert found is not None and found.clock.step == 50
    clock = tmp_path / "checkpoint-50" / "clock.json"
    clock.write_text(clock.read_text().replace("16.6", "17.6"))
    with pytest.raises(InputError, match=r"checkpoint-50/clock\.json: not as it was written"):
        checkpoint.latest(tmp_path)


def test_what_comes_before_the_rename_sees_all_states(tmp_path: Path) -> None:
    seen: list[str] = []
    write(tmp_path, 5, before=lambda folder: seen.extend(path.name for path in folder.iterdir()))
    assert seen == ["role.npz"]


# States


@dataclass
class Inner:
    velocity: torch.Tensor
    updates: int = 0


@dataclass
class State:
    step: int
    weights: torch.Tensor
    inner: Inner
    threshold: float | None = None
    extra: Inner | None = None


def fresh() -> State:
    return State(0, torch.zeros(3), Inner(torch.zeros(2)))


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    weights = torch.tensor([1e-45, -0.0, 3.3333333])
    state_file.save(tmp_path / "a.npz", State(7, weights, Inner(torch.tensor([0.1, 0.2]), 3), 0.1 + 0.2))
    state = fresh()
    state_file.load(tmp_path / "a.npz", state)
    assert state.weights.numpy().tobytes() == weights.numpy().tobytes()
    assert (state.step, state.inner.updates, state.threshold, state.extra) == (7, 3, 0.1 + 0.2, None)
    assert torch.equal(state.inner.velocity, torch.tensor([0.1, 0.2]))
    state.weights.add_(1)  # writable


def test_a_state_holds_only_plain_data(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a state cannot hold a object"):
        state_file.save(tmp_path / "a.npz", State(0, torch.zeros(1), object()))  # type: ignore[arg-type]


def torn(path: Path) -> None:
    state_file.save(path, fresh())
    path.write_bytes(path.read_bytes()[:-40])


def of_another_role(path: Path) -> None:
    state_file.save(path, Inner(torch.zeros(1)))


def pickled(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, state=np.array([{"step": 1}], dtype=object), allow_pickle=True)


def without_an_array(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, state=np.frombuffer(b'{"velocity": {"array": 4}, "updates": 0}', np.uint8))


@pytest.mark.parametrize("damage", [lambda path: None, torn, of_another_role, pickled, without_an_array])
def test_what_cannot_be_read_is_named(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "us-east-1_lps.npz"
    damage(path)
    state = Inner(torch.zeros(1)) if damage is without_an_array else fresh()
    with pytest.raises(InputError, match=r"us-east-1_lps\.npz: no checkpoint can be read there"):
        state_file.load(path, state)
