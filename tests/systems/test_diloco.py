"""DiLoCo on the virtual fabric: its outer step, its fragments, its codings."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from small_runs import SMALL, Played, network, plain, play, quadratic_task

from testbed.errors import InputError
from testbed.experiment.load import from_dict
from testbed.record.events import Exchange, LinkBytes, StepDone
from testbed.roles.roles import Roles
from testbed.systems.diloco import DiLoCo, _fragments
from testbed.wan.profile import Link
from testbed.workloads.config import Training
from testbed.workloads.optimizer import SGD
from testbed.workloads.schedule import Constant

ROLES = Roles(("a", "b"), 2, "c")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))


def diloco(steps: int = 20, roles: Roles = ROLES, **options: Any) -> Played:
    return play("diloco", quadratic_task(roles, steps=steps), PROFILE, options)


def wan_bytes(played: Played) -> int:
    return sum(event.wan_bytes for event in played.of(LinkBytes))


def test_a_plain_average_every_step_is_the_baseline() -> None:
    """With H = 1, outer rate 1 and no momentum, averaging parameters after a step is averaging gradients."""
    every = diloco(local_steps=1, outer_rate=1.0, outer_momentum=0.0)
    baseline = play("baseline", quadratic_task(ROLES, steps=20), PROFILE)
    torch.testing.assert_close(every.models["full"], baseline.models["full"], rtol=1e-4, atol=1e-5)


def test_regions_agree_after_an_outer_step_and_the_step_is_nesterovs() -> None:
    played = diloco(steps=10, local_steps=5)
    a, b = (played.states[f"{region}/lps"] for region in "ab")
    assert torch.equal(a.outer, b.outer) and torch.equal(a.weights, a.outer) and torch.equal(b.weights, b.outer)

    # By hand: two regions' local SGD on their mean target, then SGD(0.7, 0.9, nesterov) on the mean difference.
    task = quadratic_task(ROLES, steps=10)
    targets = [task.learner(k).target for k in range(4)]  # type: ignore[attr-defined]
    goals = [(targets[0] + targets[1]) / 2, (targets[2] + targets[3]) / 2]
    outer, velocity = task.initial.clone(), torch.zeros_like(task.initial)
    for _ in range(2):
        ends = [goal + (outer - goal) * (1 - 0.05) ** 5 for goal in goals]
        gradient = outer - torch.stack(ends).mean(0)
        velocity = 0.9 * velocity + gradient
        outer = outer - 0.7 * (gradient + 0.9 * velocity)
    torch.testing.assert_close(a.outer, outer, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coding", "momentum", "away"),
    [("int8", 0.9, 0.05), ("int4", 0.9, 0.15), ("ternary", 0.5, 0.3)],
)
def test_coded_outer_gradients_cost_less_and_lead_to_about_the_same_place(
    coding: str, momentum: float, away: float
) -> None:
    options = {"steps": 200, "local_steps": 5, "outer_momentum": momentum}
    coded, plain = diloco(coding=coding, **options), diloco(**options)
    assert wan_bytes(coded) < wan_bytes(plain)
    a, b = (coded.states[f"{region}/lps"] for region in "ab")
    assert torch.equal(a.outer, b.outer)
    distance = torch.linalg.vector_norm(coded.models["full"] - plain.models["full"])
    assert distance < away * torch.linalg.vector_norm(plain.models["full"])


def test_exchanges_take_turns_and_each_carries_its_fragment() -> None:
    streaming, whole = diloco(steps=24, local_steps=6, fragments=2), diloco(steps=24, local_steps=6)
    assert len(whole.of(Exchange)) == 4
    assert len(streaming.of(Exchange)) == 8
    times = [event.time_s for event in streaming.of(Exchange)]
    assert times == sorted(times)


def test_training_goes_on_while_a_fragment_is_on_its_way() -> None:
    def slowest_step(played: Played) -> float:
        ends = [event.time_s for event in played.of(StepDone) if event.node == "a/w0"]
        return max(after - before for before, after in pairwise(ends))

    waiting, streaming = diloco(local_steps=6), diloco(local_steps=6, overlap_steps=3, mixing=0.5)
    assert slowest_step(waiting) > 1.3 * slowest_step(streaming)


def test_fragments_are_runs_of_layers_that_make_up_the_model() -> None:
    runs = _fragments(SMALL, 3)
    assert [place.start for place, _ in runs] == [0, *(place.stop for place, _ in runs[:-1])]
    assert runs[-1][0].stop == SMALL.size
    assert [layer.name for _, layout in runs for layer in layout] == [layer.name for layer in SMALL]
    assert all(layout.size == place.stop - place.start for place, layout in runs)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"fragments": 30}, "fragments: 30 cannot take turns in 20 local_steps"),
        ({"overlap_steps": 20}, "overlap_steps: 20 must be less than the 20 steps"),
        ({"fragments": 4, "overlap_steps": 5}, "overlap_steps: 5 must be less than the 5 steps"),
    ],
)
def test_options_that_cannot_be(options: dict[str, int], line: str) -> None:
    with pytest.raises(InputError, match=line):
        from_dict(plain(systems={"diloco": options}), "mine.toml")


def test_inner_momentum_stays_with_the_region() -> None:
    training = Training(steps=12, schedule=Constant(rate=0.05), optimizer=SGD(momentum=0.9))
    played = play("diloco", quadratic_task(ROLES, steps=12, training=training), PROFILE, {"local_steps": 4})
    assert isinstance(played.system, DiLoCo)
    a, b = (played.states[f"{region}/lps"] for region in "ab")
    assert not torch.equal(a.optimizer.velocity, b.optimizer.velocity)
