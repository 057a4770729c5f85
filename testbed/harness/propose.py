"""What to try next in a search of settings: Optuna's Gaussian process, given all that was tried."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from testbed.systems.protocols.base import Knob

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

DRAWN = 3  # trials before there is enough to go by: the first as it stands, the others drawn at random
DIGITS = 3
SOONEST_S = 1e-9  # a target may be reached at once
Settings = Mapping[str, Any]


def proposal(
    knobs: Mapping[str, Knob], tried: Sequence[tuple[Settings, float]], lengthens: bool = True
) -> dict[str, Any]:
    """The settings that promise most, to three digits; a function of nothing but what is given.

    Scores are times, compared by their ratios: the process models their logarithms, over the logarithms of what is
    continuous and the places of choices in their order. What came to nothing counts as no better than the worst. Beside
    a momentum that `lengthens` steps it is not the rate that is searched but what that comes to in the long run: by it
    settings with and without momentum are alike, and what one has shown says something of the other.

    Parameters
    ----------
    knobs : what is searched, by name; the range of `rate` is one of rates in the long run
    tried : settings and their score each, seconds that are to be few, or infinity; one at least
    lengthens : see `long_run`
    """
    import optuna
    from optuna.samplers import GPSampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would say that greenlet makes it faster
    space = {name: _distribution(knob) for name, knob in knobs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = GPSampler(seed=len(tried), n_startup_trials=DRAWN, deterministic_objective=True)
    study = optuna.create_study(sampler=sampler)
    worst = max((score for _, score in tried if math.isfinite(score)), default=1.0)
    for settings, score in tried:
        values = {**settings, "rate": long_run(settings, lengthens)}
        placed = {name: _place(knob, values[name]) for name, knob in knobs.items()}
        value = math.log(max(min(score, worst), SOONEST_S))
        study.add_trial(optuna.trial.create_trial(params=placed, distributions=space, value=value))
    places = study.ask(space).params
    found = {name: sorted(knob.choices)[places[name]] if knob.choices else places[name] for name, knob in knobs.items()}
    found["rate"] /= long_run({**found, "rate": 1.0}, lengthens)
    return {name: value if knobs[name].choices else rounded(value) for name, value in found.items()}


def long_run(settings: Settings, lengthens: bool = True) -> float:
    """What each gradient adds to the weights by and by, times a rate of 1 without momentum.

    That is rate / (1 - momentum) where the momentum `lengthens` steps, as the sum of past gradients does that SGD goes
    by, and the rate where that is a mean of them, or is brought to a length of its own.
    """
    return float(settings["rate"] / (1 - settings.get("momentum", 0.0) * lengthens))


def _distribution(knob: Knob) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    if knob.choices:
        return IntDistribution(0, len(knob.choices) - 1)
    return FloatDistribution(knob.low, knob.high, log=True)


def _place(knob: Knob, value: Any) -> Any:
    nearest = knob.nearest(value)  # what is written to three digits may lie beyond an end
    return sorted(knob.choices).index(nearest) if knob.choices else nearest


def rounded(value: float) -> float:
    """To three digits, as settings are tried and written down."""
    return float(f"{value:.{DIGITS}g}")
