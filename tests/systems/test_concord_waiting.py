"""Who of `concord` waits for whom: the LAN by the rule, the WAN when too much is unheard of, who is late never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from concord_runs import FAR, LAN, PROFILE, STEPS, TOGETHER, WAN, task_of
from small_runs import Played, network, play, quadratic_task

from testbed.layout import Layout
from testbed.record.events import Absent, StepDone
from testbed.roles.roles import Roles
from testbed.wan.profile import Link


def together(played: Played) -> dict[str, int]:
    return {name: played.states[name].period for name in played.system.task.roles.workers}


@pytest.mark.parametrize(
    ("rate_mbit", "rtt_ms", "periods"),
    [pytest.param(1000, 0.5, {1}, marks=pytest.mark.slow), (1000, 30, {3, 4}), (1000, 300, {0})],
)
def test_the_mode_follows_from_a_rounds_time_over_a_steps(rate_mbit: float, rtt_ms: float, periods: set[int]) -> None:
    """A step takes 52 ms, a round a round trip and some 10 ms; k = ceil(4 r), and above 4 nobody waits."""
    profile = network(("a", "b", "c"), Link(rate_mbit, rtt_ms), WAN)
    played = play("concord", task_of(), profile, {"waiting": 0.25, "drift": 4})
    assert set(together(played).values()) <= periods, together(played)
    waited = sum(event.lan_s for event in played.of(StepDone)) / sum(
        event.compute_s + event.codec_s for event in played.of(StepDone)
    )
    assert waited <= 0.4, "the rule's share, and what the first rounds took until it was known"


@pytest.mark.slow
def test_the_mode_changes_while_the_run_goes_on() -> None:
    """Workers that are slow wait for their LAN, which takes a third of their step; fast again, they do not."""
    task, periods = task_of(), []

    def note(states: Mapping[str, Any]) -> None:
        periods.append({states[name].period for name in task.roles.workers})

    profile = network(("a", "b", "c"), Link(1000, 60), WAN)
    slow = ["slow */w* factor=4 at 0s for 2s"]
    play("concord", task, profile, {"waiting": 0.25, "drift": 2}, stops=(7,), between=note, faults=slow)
    assert min(periods[0]) > 0 and periods[1] == {0}, periods


@pytest.mark.parametrize(("lan", "coarse"), [(Link(1, 0.5), True), (Link(1000, 300), False), (Link(1000, 0.5), False)])
def test_rounds_are_coded_coarsely_where_their_bits_are_what_they_take(lan: Link, coarse: bool) -> None:
    """30,000 elements, some 9 kB: on a LAN of 1 Mbit/s those of two workers take more than two steps of rest."""
    task = quadratic_task(Roles(("a", "b"), 2, "a", "tree"), STEPS, layout=Layout.of([("w", (30_000,))]))
    played = play("concord", task, network(("a", "b"), lan, Link(1000, 300)), {"end": False})
    for name in task.roles.workers:
        assert played.states[name].link.coarse == coarse, played.states[name].rhythm
    assert not any(played.states[name].link.coarse for name in task.roles.lpss), "most of a WAN round is its way"


@pytest.mark.slow
def test_nobody_waits_for_the_wan() -> None:
    near, far = (
        play("concord", task_of(), network(("a", "b", "c"), LAN, Link(50, rtt)), {"end": False}) for rtt in (2, 400)
    )

    def done(played: Played) -> float:
        return max(event.time_s for event in played.of(StepDone))

    assert done(far) == pytest.approx(done(near), rel=0.02)


@pytest.mark.parametrize(("regions", "batches"), [("bc", 3), ("abc", 2)])
def test_a_region_waits_with_so_many_batches_that_no_other_has_heard_of(regions: str, batches: int) -> None:
    """Six steps of it. They go behind the round that is under way: it waits for one round trip from then on."""
    played = play("concord", task_of(regions=regions), FAR, {"stale_batches": batches, "end": False})
    done = [event.time_s for event in played.of(StepDone) if event.node == "b/w0"]
    gaps = [after - before for before, after in pairwise(done)]
    first = next(step for step, gap_s in enumerate(gaps, 1) if gap_s > 0.2)
    assert first in (6, 7, 8)
    assert gaps[first - 1] == pytest.approx(0.65, abs=0.1)
    made = [len(list(steps)) for waits, steps in groupby(gaps, lambda gap_s: gap_s > 0.1) if not waits]
    assert max(made) <= 7, made


def test_one_that_has_no_others_never_waits() -> None:
    played = play("concord", task_of(regions="b"), FAR, {"stale_batches": 3, "end": False})
    done = [event.time_s for event in played.of(StepDone) if event.node == "b/w0"]
    assert max(after - before for before, after in pairwise(done)) < 0.1


def test_who_is_late_is_left_out_of_a_round_until_it_is_heard_of() -> None:
    played = play("concord", task_of(), PROFILE, TOGETHER, faults=["pause b/w1 at 0.5s for 2s"])
    absent = [(event.node, event.peer, event.back) for event in played.of(Absent) if event.node == "b/lps"]
    assert absent == [("b/lps", "b/w1", False), ("b/lps", "b/w1", True)]
    others = [event.time_s for event in played.of(StepDone) if event.node == "b/w0"]
    assert sum(0.5 <= time_s < 2.4 for time_s in others) > STEPS / 4, "they go on meanwhile"


@pytest.mark.slow
def test_who_is_left_out_does_not_set_the_others_back() -> None:
    """A region that has lost the others comes as far as one that never meets them: they have its credit."""
    others_go = ["partition b at 0.4s for 60s", "partition c at 0.4s for 60s"]

    def far(faults: Sequence[str], **options: Any) -> float:
        options = {"end": False, "scaled": False, **options}
        played = play("concord", task_of(), PROFILE, options, stops=(), faults=faults)
        here = torch.stack([played.states[f"a/w{k}"].weights for k in (0, 1)]).mean(0)
        return float((here - played.system.task.initial).norm())

    assert far(others_go, wan_rest=0) == pytest.approx(far((), wan_rest=999), rel=0.05)


@pytest.mark.parametrize("faults", [["kill b/lps at 1.36s for 50ms"], ["kill b/lps at 0.5s"]])
@pytest.mark.parametrize(("regions", "pair"), [("abc", False), ("ab", False), ("ab", True)])
def test_who_waits_for_an_lps_that_dies_is_answered_or_told_that_nobody_will(
    faults: list[str], regions: str, pair: bool
) -> None:
    """Others have ended before, and say so while it is alive, or while its workers are not asking yet."""
    faults = ["slow b/* factor=2 at 0s" if "for" not in faults[0] else "slow b/w* factor=1.2 at 0s", *faults]
    played = play("concord", task_of(regions=regions, pair=pair), PROFILE, {"lag": 0.9}, faults=faults)
    first = played.states["a/w0"].weights
    alive = [name for name in played.system.task.roles.workers if "for" in faults[1] or not name.startswith("b/")]
    assert all(torch.equal(played.states[name].weights, first) for name in alive)
