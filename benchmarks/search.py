"""How near to the best a search of settings comes, on systems made up to be like those that are searched.

    python benchmarks/search.py [--trials 4,6,8,12] [--systems 25] [--sampler process|tpe]

A made-up system has a rate at which it is soonest at its target, up to eight times off where the search begins, and a
momentum and a knob that shift that rate and make it slower. Too large a rate diverges. A trial that cannot win is cut
short, and tells by how far it missed, as in `testbed tune`. Prints the best trial's time over the best there is.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from testbed.harness.propose import DRAWN, proposal
from testbed.systems.protocols.base import Knob

SPACE = {"rate": Knob(low=10 / 16, high=160.0), "momentum": Knob(choices=(0.0, 0.9)), "knob": Knob(choices=(0, 1, 2))}
BEFORE = {**SPACE, "rate": Knob(low=1 / 16, high=16.0)}  # the rate itself
STANDING = {"rate": 1.0, "momentum": 0.9, "knob": 1}
DIVERGES, FALL = 2.2, 0.25  # doublings of the best rate; how much time is lost a doubling beside it
CUT, LIMIT = 1.3, 6.0  # times the best trial that a worse one is played; of a trial before there is a best one
Tried = list[tuple[dict[str, Any], float]]


class System:
    """One that is made up. `best` is the least time there is."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.at = rng.uniform(-3, 3)
        self.shift = rng.uniform(2, 3.5)  # doublings that the best rate is larger without momentum
        self.slower = rng.uniform(1.0, 1.5)
        self.by_knob = rng.permutation([1.0, 1.15, 1.4])
        self.best = 1.0

    def off(self, settings: dict[str, Any]) -> float:
        """Doublings between a rate and the best one."""
        plain = settings["momentum"] == 0
        return math.log2(settings["rate"]) - self.at - (self.shift if plain else 0.0)

    def time(self, settings: dict[str, Any]) -> float:
        """To the target; infinite where it diverges."""
        off = self.off(settings)
        slower = self.slower if settings["momentum"] == 0 else 1.0
        return math.inf if off > DIVERGES else slower * self.by_knob[settings["knob"]] * (1 + FALL * abs(off) ** 1.6)


def searched(system: System, trials: int, propose: Callable[[Tried], dict[str, Any]]) -> list[float]:
    """The least time after each trial, over the best there is."""
    tried: Tried = []
    least, found = math.inf, []
    for _ in range(trials):
        settings = propose(tried) if tried else STANDING
        time = system.time(settings)
        limit = min(CUT * least, LIMIT)
        least = min(least, time if time < limit else math.inf)
        cut = math.inf if time == math.inf else limit * (1 + 0.12 * abs(system.off(settings)))
        tried.append((settings, time if time < limit else cut))
        found.append(min(least, LIMIT) / system.best)
    return found


def by_tpe(tried: Tried) -> dict[str, Any]:
    """As settings were proposed before."""
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space: dict[str, BaseDistribution] = {
        name: CategoricalDistribution(knob.choices)
        if knob.choices
        else FloatDistribution(knob.low, knob.high, log=True)
        for name, knob in BEFORE.items()
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=len(tried), n_startup_trials=DRAWN - 1))
    for settings, score in tried:
        study.add_trial(optuna.trial.create_trial(params=settings, distributions=space, value=min(score, 1e9)))
    return dict(study.ask(space).params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def counts(text: str) -> Sequence[int]:
        return [int(part) for part in text.split(",")]

    parser.add_argument("--trials", type=counts, default=counts("4,6,8,12"))
    parser.add_argument("--systems", type=int, default=25)
    parser.add_argument("--sampler", choices=("process", "tpe"), default="process")
    options = parser.parse_args()
    propose = by_tpe if options.sampler == "tpe" else lambda tried: proposal(SPACE, tried)
    found = [searched(System(seed), max(options.trials), propose) for seed in range(options.systems)]
    print(f"{options.sampler}: the best trial over the best there is, of {options.systems} systems\n")
    print("| trials | median | nine of ten |\n| ---: | ---: | ---: |")
    for trials in options.trials:
        there = [each[trials - 1] for each in found]
        print(f"| {trials} | {np.median(there):.3f} | {np.quantile(there, 0.9):.3f} |")


if __name__ == "__main__":
    main()
