"""When the rounds of a link begin: the rest after a late answer is what lets two copies come together at all."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from testbed.codecs.adaptive import Adaptive
from testbed.codecs.costs import size_of
from testbed.layout import Layout
from testbed.systems.concord import ConcordOptions
from testbed.systems.protocols.desk import FINER
from testbed.systems.protocols.link_rules import COARSE, FINE
from testbed.systems.protocols.rhythm import Rhythm, rest_after, steps_to_settle
from testbed.workloads.optimizer import SGD, Adam


@pytest.mark.parametrize(("carried", "steps"), [(0.0, 2), (0.5, 4), (0.9, 20), (0.95, 40)])
def test_a_direction_settles_in_two_time_constants_of_the_momentum(carried: float, steps: int) -> None:
    assert steps_to_settle(carried) == steps


def test_an_answer_that_is_hardly_late_needs_no_rest() -> None:
    assert [rest_after(delay, 0.9) for delay in (0, 1, 2, 3, 50)] == [0, 0, 0, 20, 20]
    assert [rest_after(delay, 0.0) for delay in (2, 3)] == [0, 2]


def test_a_rhythm_counts_from_the_answer() -> None:
    rhythm = Rhythm()
    rhythm.begin(7, 1.0)
    rhythm.answer(16, 1.5, carried=0.9)
    assert (rhythm.rest, rhythm.until, rhythm.round_s, rhythm.gap_s) == (20, 36, 0.5, 0.0)
    rhythm.begin(36, 2.25)
    rhythm.answer(37, 2.5, carried=0.9)
    assert (rhythm.until, rhythm.round_s, rhythm.gap_s) == (37, 0.25, 0.75)


def test_answers_are_late_until_one_was_prompt() -> None:
    """Whichever rest was chosen: one that was begun late has been, and who rests between is on his own as long."""
    rhythm, late = Rhythm(), []
    for delay, chosen in ((0, "auto"), (3, "auto"), (3, 0), (1, 5), (2, 0)):
        late.append(rhythm.late)
        rhythm.begin(0, 0.0)
        rhythm.answer(delay, 1.0, 0.9, chosen)  # type: ignore[arg-type]
    assert [*late, rhythm.late] == [True, False, True, True, True, False]


def test_what_bits_take_is_measured_against_all_else_until_the_next_round() -> None:
    """A round of 0.5 s, of which an empty message would take 0.1, and 0.3 s from its answer to the next."""
    rhythm = Rhythm()
    rhythm.ask(0.9)
    rhythm.begin(7, 1.0)
    rhythm.told(1.0)
    rhythm.answer(16, 1.5, carried=0.9)
    assert rhythm.bits(1.8) == 0, "nobody knows yet when the next one begins"
    rhythm.begin(36, 1.8)
    assert rhythm.bits(1.0) == pytest.approx(0.4 / 0.4) and rhythm.bits(1.8) == pytest.approx(1.8)
    rhythm.answer(37, 2.0, carried=0.9)
    assert rhythm.bits(1.0) == 0, "the next one begins with a step, however few they are"


def test_what_comes_after_a_death_is_no_measurement() -> None:
    rhythm = Rhythm()
    rhythm.ask(1.0)
    rhythm.asking = False
    rhythm.told(9.0)
    assert rhythm.trip_s == 0


def test_the_coarser_code_is_the_better_one_where_half_of_the_time_is_bits() -> None:
    """T(e) / (1 - e), of the share of a finer round's time that its bits take."""
    part = next(share for share in range(100) if (1 - share / 100 * (1 - 1 / FINER)) / (1 - COARSE) < 1 / (1 - FINE))
    assert part == 50
    vector, layout = torch.randn(100_000, generator=torch.Generator().manual_seed(0)), Layout.of([("w", (100_000,))])
    fine, coarse = (size_of(Adaptive(layout, error).encode(vector)) for error in (FINE, COARSE))
    assert fine / coarse == pytest.approx(FINER, rel=0.01)


def copies(
    curvatures: torch.Tensor, delay: int, rest: int, rounds: int = 30, momentum: float = 0.9, outer_rate: float = 1.0
) -> torch.Tensor:
    """Where two that begin at 0.5 and -0.5 from 1 are after so many rounds, each with its SGD on a parabola, rate 1."""
    optimizer = SGD(momentum=momentum)
    x = torch.tensor([[1.5], [0.5]], dtype=torch.float64).repeat(1, len(curvatures))
    state, told = optimizer.start(x), x.mean(0)
    for _ in range(rounds):
        sent = x.clone()
        for step in range(delay + rest):
            optimizer.update(state, x, curvatures * x, 1.0)
            if step == delay - 1:
                told = told + outer_rate * (sent.mean(0) - told)
                x += told - sent
    return x


def apart(curvatures: torch.Tensor, delay: int, rest: int, rounds: int = 30) -> torch.Tensor:
    """How far they are from each other."""
    return copies(curvatures, delay, rest, rounds).diff(dim=0).abs()[0]


@pytest.mark.parametrize("delay", [3, 5, 9, 20, 70])
def test_copies_swing_apart_without_the_rest_and_come_together_with_it(delay: int) -> None:
    """Over curvatures from flat to three quarters of what the rate is stable for, 2 (1 + momentum)."""
    curvatures = torch.logspace(-3, 0.45, 60)
    assert apart(curvatures, delay, 0).max() > 1
    assert apart(curvatures, delay, rest_after(delay, 0.9)).max() < 0.01


@pytest.mark.parametrize("delay", [3, 5, 9, 20, 70])
def test_their_mean_swings_where_answers_count_too_often(delay: int) -> None:
    """More than 1.5 times: rest leaves a third of a swing, and with it g times leave up to 1 - 4/3 g of a distance."""
    curvatures, rest = torch.logspace(-1.5, 0.35, 60), rest_after(delay, 0.9)
    often = ConcordOptions().outer_rate
    assert copies(curvatures, delay, rest, rounds=100, outer_rate=often).mean(0).abs().max() < 0.2
    assert copies(curvatures, delay, rest, rounds=100, outer_rate=1.7).mean(0).abs().max() > 2


@pytest.mark.slow
def test_the_page_has_how_steep_a_direction_may_be() -> None:
    """As the benchmark finds it from a round's matrix, which says the same as steps do."""
    root = Path(__file__).parents[2]
    late = runpy.run_path(str(root / "benchmarks" / "late_answers.py"), run_name="imported")
    found = late["by_rest"](0.9)
    assert late["table"](found) in (root / "docs" / "own-system-rules.md").read_text()
    assert (root / "results/reference/late-answers/late-answers.md").read_text() == late["table"](found) + "\n"
    for delay, rest in ((3, 0), (9, 0), (5, 5)):
        limit = 2 * 1.9 * late["steepest"](found[rest][late["DELAYS"].index(delay)])
        below, above = apart(torch.tensor([0.95 * limit, 1.05 * limit]), delay, rest, rounds=300)
        assert below < 0.5 and above > 2
    outer = late["by_outer_rate"](0.9)
    assert late["outer_table"](outer) in (root / "docs" / "own-system-rules.md").read_text()
    assert (root / "results/reference/late-answers/outer-rates.md").read_text() == late["outer_table"](outer) + "\n"
    for delay, outer_rate in ((5, 1.6), (13, 1.6), (70, 2.0)):
        limit = 2 * 1.9 * late["steepest"](outer[outer_rate][late["DELAYS"].index(delay)])
        near = torch.tensor([0.95 * limit, 1.05 * limit])
        below, above = copies(near, delay, 20, rounds=600, outer_rate=outer_rate).mean(0).abs()
        assert below < 0.5 and above > 2


@pytest.mark.parametrize("delay", [1, 2])
def test_copies_come_together_without_a_rest_where_answers_are_prompt(delay: int) -> None:
    assert apart(torch.logspace(-3, -0.2, 60), delay, 0, rounds=200).max() < 0.1


def test_each_optimizer_says_what_it_carries_on() -> None:
    assert (SGD().carried, SGD(momentum=0.8).carried, Adam(beta1=0.7).carried) == (0.0, 0.8, 0.7)
