"""Workers that train by themselves and average now and then: when, among whom, what is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.record.events import LinkBytes, Sent, is_wan
from testbed.roles.roles import Kind, Roles
from testbed.wan.profile import Link
from testbed.workloads.config import Training

FAST = network(("a", "b", "c"), lan=Link(1000, 0.2), wan=Link(100, 20))
BOTH: dict[str, Kind] = {"local-sgd": "ring", "hierarchical-local-sgd": "rings"}


def run(system: str, steps: int = 6, ema: float = 0.0, workers: int = 2, **options: Any) -> Played:
    roles = Roles(("a", "b"), workers, "c", BOTH.get(system, "tree"))
    training = Training(steps=steps, ema_decay=ema)
    return play(system, quadratic_task(roles, steps, training=training), FAST, options)


def weights(played: Played, region: str = "") -> list[torch.Tensor]:
    return [state.weights for name, state in played.states.items() if name.startswith(region)]


def equal(vectors: list[torch.Tensor]) -> bool:
    return all(torch.allclose(vectors[0], each, atol=1e-6) for each in vectors)


def test_local_sgd_sends_nothing_between_its_averages() -> None:
    played = run("local-sgd", local_steps=3, ahead=0)
    onward = [event.messages for event in played.of(Sent) if event.messages > 1]
    assert set(onward) == {2 * 2 * 3 + 1}
    assert equal([*weights(played), played.models["full"]])


@pytest.mark.parametrize("system", BOTH)
def test_averaging_in_every_step_is_the_baseline(system: str) -> None:
    every = {"local_steps": 1} | ({"rounds": 1} if system != "local-sgd" else {})
    assert torch.allclose(run(system, **every).models["full"], run("baseline").models["full"], atol=1e-5)


def test_whoever_always_averages_among_all_is_local_sgd() -> None:
    """But for the order in which a ring sums."""
    flat = run("local-sgd", steps=7, local_steps=3)
    levels = run("hierarchical-local-sgd", steps=7, local_steps=3, rounds=1)
    for name, state in flat.states.items():
        assert torch.allclose(state.weights, levels.states[name].weights, atol=1e-5)


def test_regions_are_together_every_local_steps_and_all_in_every_nth_round() -> None:
    """After 2 and 4 steps of 2 each region has one model; all have one after 4."""
    for steps, in_regions, in_all in ((1, False, False), (2, True, False), (3, False, False), (4, True, True)):
        played = run("hierarchical-local-sgd", steps=steps, local_steps=2, rounds=2)
        assert equal(weights(played, "a/")) == equal(weights(played, "b/")) == in_regions
        assert equal(weights(played)) == in_all
        expected = torch.stack(weights(played)).mean(0)
        assert torch.allclose(played.models["full"], expected, atol=1e-6)


def test_a_round_of_the_regions_puts_nothing_on_the_wan() -> None:
    def wan_bytes(rounds: int) -> int:
        played = run("hierarchical-local-sgd", local_steps=2, rounds=rounds)
        crossed = [event.wire_bytes for event in played.of(LinkBytes)]
        return sum(size for sizes in crossed for link, size in sizes.items() if is_wan(link))

    markers = wan_bytes(4)
    assert wan_bytes(3) > markers + 2 * 4 * run("baseline").system.task.layout.size
    assert wan_bytes(1) - markers == pytest.approx(3 * (wan_bytes(3) - markers), rel=0.01)


def test_a_region_of_one_worker_averages_with_the_others_only() -> None:
    alone = run("hierarchical-local-sgd", workers=1, local_steps=1, rounds=2)
    flat = run("local-sgd", workers=1, local_steps=2)
    assert torch.allclose(alone.models["full"], flat.models["full"], atol=1e-6)


@pytest.mark.parametrize("system", BOTH)
def test_the_average_keeps_its_moving_average(system: str) -> None:
    assert {"full", "ema"} <= set(run(system, steps=4, ema=0.9).models)


@pytest.mark.parametrize("system", BOTH)
def test_between_averages_the_moving_average_is_that_of_all_copies(system: str) -> None:
    played = run(system, steps=4, ema=0.9)
    copies = [state.ema.average for state in played.states.values()]
    assert torch.allclose(played.models["ema"], torch.stack(copies).mean(0))
    assert not torch.allclose(copies[0], copies[1])
    assert {"full@a", "full@b"} <= set(played.models)
