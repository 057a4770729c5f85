"""What a search tries next depends on nothing but what was tried, and comes near to the best."""

from __future__ import annotations

import math
from typing import Any

import pytest

from testbed.harness.propose import proposal
from testbed.systems.protocols.base import Knob

pytestmark = pytest.mark.slow

KNOBS = {"rate": Knob(low=0.0125, high=3.2), "momentum": Knob(choices=(0.0, 0.9)), "kept": Knob(choices=(0.1, 0.01))}
STANDING: dict[str, Any] = {"rate": 0.02, "momentum": 0.9, "kept": 0.01}
Tried = list[tuple[dict[str, Any], float]]


def time(settings: dict[str, Any]) -> float:
    """Least, 10, at a rate of 0.1 with no momentum; above 0.25 it diverges."""
    if settings["rate"] > 0.25:
        return math.inf
    off = math.log2(settings["rate"] / 0.1)
    return 10 * (1 + 0.2 * off**2) * (1.3 if settings["momentum"] else 1.0) * (1.1 if settings["kept"] < 0.1 else 1.0)


def search(trials: int) -> Tried:
    tried: Tried = [(STANDING, time(STANDING))]
    while len(tried) < trials:
        settings = proposal(KNOBS, tried)
        tried.append((settings, time(settings)))
    return tried


def test_a_search_comes_near_to_the_best() -> None:
    tried = search(10)
    assert min(score for _, score in tried) < 1.1 * 10 < tried[0][1]
    for settings, _ in tried:
        assert 0.0125 * 0.99 <= settings["rate"] / (1 - settings["momentum"]) <= 3.2 * 1.01
        assert settings["rate"] == float(f"{settings['rate']:.3g}")
        assert settings["momentum"] in (0.0, 0.9) and settings["kept"] in (0.1, 0.01)


def test_a_momentum_that_makes_no_step_longer_leaves_the_rate_as_it_is() -> None:
    """Else such a system's rates would be searched ten times too low beside its momentum."""
    tried: Tried = [({**STANDING, "rate": 0.2}, 10.0)]
    for _ in range(7):
        settings = proposal(KNOBS, tried, lengthens=False)
        assert 0.0125 * 0.99 <= settings["rate"] <= 3.2 * 1.01
        tried.append((settings, 10.0))
    assert {settings["momentum"] for settings, _ in tried} == {0.0, 0.9}


def test_the_same_trials_give_the_same_proposal() -> None:
    tried = search(4)
    assert proposal(KNOBS, tried) == proposal(KNOBS, tried)
    assert proposal(KNOBS, tried[:2]) == tried[2][0]


def test_where_everything_came_to_nothing_something_else_is_tried() -> None:
    tried: Tried = [(STANDING, math.inf)]
    for _ in range(4):
        tried.append((proposal(KNOBS, tried), math.inf))
    assert len({tuple(settings.items()) for settings, _ in tried}) == 5
