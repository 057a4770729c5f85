"""SparseLoCo: the paper's algorithm in plain numpy, and what all agree on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.record.events import Exchange, LinkBytes, Sent
from testbed.roles.roles import Kind, Roles
from testbed.systems import Task
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
RATE, CHUNK = 0.05, 50
SPARSE = {"local_steps": 3, "kept": 0.1, "chunk": CHUNK, "outer_rate": 0.8, "decay": 0.9}


def task_of(kind: Kind, steps: int) -> Task:
    return quadratic_task(Roles(("a", "b"), 2, "c", kind), steps, rate=RATE)


def run(kind: Kind = "tree", steps: int = 12, **options: Any) -> Played:
    return play("sparseloco", task_of(kind, steps), PROFILE, SPARSE | options, stops=[2])


def quantized(values: np.ndarray) -> np.ndarray:
    """Four bins over six standard deviations, each value the mean of its bin."""
    centre, width = values.mean(), 6 * values.std(ddof=1) / 4 if values.size > 1 else 1.0
    bins = np.clip(np.round((values - centre) / width) + 2, 0, 3)
    return np.array([values[bins == own].mean() for own in bins])


def sent(x: np.ndarray, kept: float, two_bits: bool) -> np.ndarray:
    """The largest of every chunk of every layer."""
    out = np.zeros_like(x)
    for layer in SMALL:
        places: list[int] = []
        for start in range(layer.offset, layer.end, CHUNK):
            chunk = x[start : min(start + CHUNK, layer.end)]
            places += list(start + np.argsort(-np.abs(chunk), kind="stable")[: int(np.ceil(kept * chunk.size))])
        out[places] = quantized(x[places]) if two_bits else x[places]
    return out


def reference(kind: Kind, steps: int, two_bits: bool) -> np.ndarray:
    """The mean of the copies after steps of Algorithm 1 in float64."""
    task = task_of(kind, steps)
    targets = np.array([task.learner(k).target.double().numpy() for k in range(4)])  # type: ignore[attr-defined]
    goals = targets.reshape(2, 2, -1).mean(1) if kind == "tree" else targets
    theta = task.initial.double().numpy()
    copies, e = [theta.copy() for _ in goals], [np.zeros_like(theta) for _ in goals]
    for step in range(steps):
        copies = [copy - RATE * (copy - goal) for copy, goal in zip(copies, goals, strict=True)]
        if (step + 1) % 3 == 0:
            e = [0.9 * each + theta - copy for each, copy in zip(e, copies, strict=True)]
            told = [sent(each, 0.1, two_bits) for each in e]
            e = [each - out for each, out in zip(e, told, strict=True)]
            theta = theta - 0.8 * np.mean(told, axis=0)
            copies = [theta.copy() for _ in goals]
    return np.mean(copies, axis=0)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
@pytest.mark.parametrize("values", ["float32", "2-bit"])
def test_it_is_the_papers_algorithm(kind: Kind, values: str) -> None:
    found = run(kind, steps=14, values=values).models["full"]
    expected = torch.from_numpy(reference(kind, 14, values == "2-bit")).float()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_all_go_on_from_the_same_parameters(kind: Kind) -> None:
    played = run(kind)
    copies = [played.states[name] for name in played.system.holders]  # type: ignore[attr-defined]
    assert len(copies) == (2 if kind == "tree" else 4)
    assert all(torch.equal(copy.outer, copies[0].outer) and torch.equal(copy.weights, copy.outer) for copy in copies)
    assert [event.included for event in played.of(Exchange)] == [["a", "b"]] * 4
    assert {"full", "full@a", "full@b"} == set(played.models)


@pytest.mark.parametrize("kind", ["tree", pytest.param("flat", marks=pytest.mark.slow)])
def test_each_is_told_what_the_others_have_sent(kind: Kind) -> None:
    """As by an all-gather: what a copy has sent itself does not come back."""
    played = run(kind, steps=3, chunk=4096, kept=0.5)
    copies = played.system.holders  # type: ignore[attr-defined]
    up = {event.node: event.nbytes for event in played.of(Sent) if event.node in copies and event.peer == "c/gs"}
    down = {event.peer: event.nbytes for event in played.of(Sent) if event.node == "c/gs" and event.peer in copies}
    assert up.keys() == down.keys() == set(copies)
    for copy in copies:
        others = sum(up.values()) - up[copy]
        assert down[copy] == pytest.approx(others, rel=0.1), "but for what frames a message"


def test_what_is_not_told_is_kept() -> None:
    """Without decay, theta and the mean of what is kept are where all that was learnt would have led."""
    played = run(steps=3, decay=1.0, outer_rate=1.0)
    copies = [played.states[name] for name in ("a/lps", "b/lps")]
    told = copies[0].outer - torch.stack([copy.residual for copy in copies]).mean(0)
    whole = run(steps=3, decay=1.0, outer_rate=1.0, kept=1.0, values="float32").models["full"]
    torch.testing.assert_close(told, whole, rtol=1e-5, atol=1e-5)


def test_all_of_it_told_it_is_a_plain_average() -> None:
    played = run(kept=1.0, values="float32", outer_rate=1.0, local_steps=4)
    training = Training(steps=12, schedule=Constant(rate=RATE), optimizer=SGD())
    plain = quadratic_task(Roles(("a", "b"), 2, "c"), 12, training=training)
    options = {"local_steps": 4, "outer_rate": 1.0, "outer_momentum": 0.0}
    expected = play("diloco", plain, PROFILE, options).models["full"]
    torch.testing.assert_close(played.models["full"], expected, rtol=1e-4, atol=1e-5)


def test_a_meeting_costs_a_small_part_of_float32() -> None:
    def wan_bytes(played: Played) -> int:
        return sum(event.wan_bytes for event in played.of(LinkBytes))

    sparse = wan_bytes(run(kept=1 / 64, chunk=4096))
    dense = wan_bytes(play("diloco", task_of("tree", 12), PROFILE, {"local_steps": 3}))
    assert sparse < 0.5 * dense, "three to a handful of elements of each of four small layers; the rest is headers"
