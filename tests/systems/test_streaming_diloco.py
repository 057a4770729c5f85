"""Streaming DiLoCo: its three parts together in plain numpy, and what they save."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.record.events import LinkBytes
from testbed.roles.roles import Roles
from testbed.wan.profile import Link

ROLES = Roles(("a", "b"), 2, "c")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE, STEPS, H, P, TAU, ALPHA, OUTER, MOMENTUM = 0.05, 23, 6, 2, 2, 0.4, 0.7, 0.9
CUT = SMALL.layers[0].end  # two fragments: 192 and 101 elements
OPTIONS = {"local_steps": H, "fragments": P, "overlap_steps": TAU, "mixing": ALPHA}


def powers_of_two(x: np.ndarray, place: slice) -> np.ndarray:
    """Each layer's nearest powers of two, seven of them from its largest magnitude down, or 0."""
    out = np.zeros_like(x)
    for layer in SMALL:
        if place.start <= layer.offset < place.stop:
            here = slice(layer.offset - place.start, layer.end - place.start)
            levels = np.array([0.0, *(2.0**-k for k in range(6, -1, -1))]) * np.abs(x[here]).max()
            grid = np.concatenate([-levels, levels])
            out[here] = grid[np.abs(x[here][:, None] - grid).argmin(1)]
    return out


def reference(coded: bool) -> np.ndarray:
    """The mean of the regions' parameters after the paper's Algorithm 2 with overlap and mixing, in float64."""
    task = quadratic_task(ROLES, STEPS, rate=RATE)
    targets = np.array([task.learner(k).target.double().numpy() for k in range(4)])  # type: ignore[attr-defined]
    goals = targets.reshape(2, 2, -1).mean(1)
    theta = task.initial.double().numpy()
    copies, velocity = [theta.copy(), theta.copy()], np.zeros_like(theta)
    on_the_way: dict[int, tuple[slice, np.ndarray]] = {}
    places = [slice(0, CUT), slice(CUT, SMALL.size)]
    for step in range(STEPS):
        copies = [copy - RATE * (copy - goal) for copy, goal in zip(copies, goals, strict=True)]
        for p, place in enumerate(places):
            if (step + 1 + p * H // P) % H == 0:
                deltas = [theta[place] - copy[place] for copy in copies]
                if coded:
                    deltas = [powers_of_two(delta, place) for delta in deltas]
                mean = np.mean(deltas, axis=0)
                on_the_way[step + TAU] = (place, powers_of_two(mean, place) if coded else mean)
        if step in on_the_way:
            place, mean = on_the_way.pop(step)
            velocity[place] = MOMENTUM * velocity[place] + mean
            theta[place] = theta[place] - OUTER * (mean + MOMENTUM * velocity[place])
            for copy in copies:
                copy[place] = ALPHA * copy[place] + (1 - ALPHA) * theta[place]
    return np.mean(copies, axis=0)


@pytest.mark.parametrize("coding", ["float32", "e3m0"])
def test_it_is_the_papers_algorithm(coding: str) -> None:
    task = quadratic_task(ROLES, STEPS, rate=RATE)
    found = play("streaming-diloco", task, PROFILE, {**OPTIONS, "coding": coding}, stops=[7]).models["full"]
    expected = torch.from_numpy(reference(coding == "e3m0")).float()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_it_sends_an_eighth_and_does_not_wait() -> None:
    def wan_bytes(played: Played) -> int:
        return sum(event.wan_bytes for event in played.of(LinkBytes))

    streaming = play("streaming-diloco", quadratic_task(ROLES, 24), PROFILE, OPTIONS)
    diloco = play("diloco", quadratic_task(ROLES, 24), PROFILE, {"local_steps": H})
    assert wan_bytes(streaming) < 0.5 * wan_bytes(diloco), "an eighth of 1,172 bytes, in two messages with headers"
    assert streaming.clock_s < diloco.clock_s - 0.05, "four round trips of 20 ms less"
