"""What MQGrad's agent does to a run: the layers it is for, the bits it records, where it can stop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.errors import InputError
from testbed.layout import Layout
from testbed.record.events import Bits, StepDone
from testbed.roles import state as state_file
from testbed.roles.roles import Roles
from testbed.systems.mqgrad import large_layers
from testbed.wan.profile import Link

TREE = Roles(("a", "b"), 2, "c")
FLAT = replace(TREE, kind="flat")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
EAGER = {"period": 2, "epsilon": 0.4}


def test_large_fully_connected_layers_are_quantized(cifarnet_shapes: list[tuple[str, tuple[int, ...]]]) -> None:
    assert [layer.name for layer in large_layers(Layout.of(cifarnet_shapes))] == ["local3.weight", "local4.weight"]
    assert [layer.name for layer in large_layers(SMALL)] == ["first.weight"]


@pytest.fixture
def cifarnet_shapes() -> list[tuple[str, tuple[int, ...]]]:
    return [
        ("conv1.weight", (64, 3, 5, 5)),
        ("conv2.weight", (64, 64, 5, 5)),
        ("local3.weight", (384, 2304)),
        ("local3.bias", (384,)),
        ("local4.weight", (192, 384)),
        ("softmax.weight", (10, 192)),
    ]


def test_a_model_without_such_layers_is_refused() -> None:
    layout = Layout.of([("conv.weight", (8, 3, 3, 3)), ("last.weight", (2, 8))])
    with pytest.raises(InputError, match="no large fully connected layer"):
        play("mqgrad", quadratic_task(TREE, steps=1, layout=layout), PROFILE)


def kept_bits(played: Played) -> set[int]:
    """What every sender is left with."""
    return {state.memory.bits for state in played.states.values()}


@pytest.mark.parametrize("roles", [TREE, pytest.param(FLAT, marks=pytest.mark.slow)], ids=["tree", "flat"])
def test_a_run_records_its_bits_and_every_sender_uses_them(roles: Roles) -> None:
    played = play("mqgrad", quadratic_task(roles, steps=40), PROFILE, EAGER)
    changes = played.of(Bits)
    assert [(event.step, event.reward, event.node) for event in changes[:1]] == [(0, None, "c/gs")]
    assert len(changes) > 3
    assert all(event.step % 2 == 0 and event.reward is not None for event in changes[1:])
    assert all(a.bits != b.bits for a, b in pairwise(changes))
    assert kept_bits(played) == {changes[-1].bits}
    assert float(played.models["full"].norm()) < float(played.system.task.initial.norm())
    losses = [event.loss for event in played.of(StepDone)]
    assert losses[-1] < losses[0]


def test_the_reward_counts_milliseconds_of_the_runs_clock() -> None:
    played = play("mqgrad", quadratic_task(TREE, steps=40), PROFILE, EAGER)
    losses = [0.0] * 40
    for event in played.of(StepDone):
        losses[event.step] += event.loss / 4
    smoothed = [losses[0]]
    for loss in losses[1:]:
        smoothed.append(0.01 * loss + 0.99 * smoothed[-1])
    changes = played.of(Bits)
    pairs = [(a, b) for a, b in pairwise(changes) if b.step == a.step + EAGER["period"]]
    assert pairs
    for before, event in pairs:
        cost_ms = round(1000 * (event.time_s - before.time_s))
        fall = smoothed[event.step - 1] - smoothed[event.step]
        assert event.reward == pytest.approx(300 * fall / cost_ms)


@pytest.mark.slow
def test_a_run_stopped_and_loaded_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    def reload(states: Any) -> None:
        for name, state in states.items():
            path = tmp_path / f"{name.replace('/', '-')}.npz"
            state_file.save(path, state)
            made = saved.system.initial_state(name)
            state_file.load(path, made)
            for field, value in vars(made).items():
                setattr(state, field, value)

    saved = play("mqgrad", quadratic_task(TREE, steps=1), PROFILE, EAGER)
    stops = [3, 8, 11]
    whole = play("mqgrad", quadratic_task(TREE, steps=30), PROFILE, EAGER, stops)
    saved = play("mqgrad", quadratic_task(TREE, steps=30), PROFILE, EAGER, stops, between=reload)
    assert saved.events == whole.events
    assert torch.equal(saved.models["full"], whole.models["full"])
    ends = (played.states["c/gs"].policy for played in (saved, whole))
    first, second = (policy.network.output_bias.tolist() for policy in ends)
    assert first == second
    assert any(first)
