"""Finds each system its learning rate and main knobs, all with the same budget, so that none is compared untuned.

Every system gets as many trials, on the same network and seeds, which must not be those that are reported. The first
trial is the experiment as it stands; the others are proposed by Optuna's Gaussian process (`propose`). What is made
small is what the experiment compares: the time to its target, on the run's clock. A trial that has taken as long as
the best one before it cannot win any more, and ends there. One that misses the target, at its end or there, is worse
than any that reaches it; the sampler is told the time that it took, no less than the best, and longer by how far it
misses.

Each system is searched in turn of its own trials, so the result does not depend on how many systems are searched at
once. What each trial came to stands in one file of its system, `trials.jsonl`; what stands there is not done again, on
another machine neither.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pandas as pd

from testbed.errors import InputError
from testbed.experiment.load import from_dict
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import FABRICS
from testbed.files import write_whole
from testbed.harness import not_finite, session
from testbed.harness.lock import held
from testbed.harness.play import place_of
from testbed.harness.pool import Errand, RunAll, run_all
from testbed.harness.propose import long_run, proposal, rounded
from testbed.record import info as info_file
from testbed.record.reader import load as load_run
from testbed.report.numbers.asked import Target
from testbed.report.numbers.summary import measure
from testbed.systems.protocols.base import Knob
from testbed.workloads.optimizer import SGD

SPAN = 16.0  # the rate in the long run is searched from this much below the experiment's to this much above it
TRIALS_FILE, ASKED_FILE = "trials.jsonl", "asked.json"
PROBES = 20  # of a trial, at each of which it ends if it has reached its target, where the experiment has no probes
NEVER = 1e9  # the score of a trial that came to nothing


class Outcome(msgspec.Struct, frozen=True):
    """One trial: what was tried, what came of it, and in words."""

    options: dict[str, Any]
    score: float
    reached: bool
    said: str


@dataclass(frozen=True)
class Budget:
    """What each system gets.

    Parameters
    ----------
    trials : the experiment as it stands being the first
    seeds : of each trial, which are not those that are reported
    fixed : knobs of a system's own that stay as the experiment has them
    """

    trials: int
    seeds: tuple[int, ...]
    fixed: tuple[str, ...] = ()


def tune(
    experiment: Experiment, fabric: str, budget: Budget, folder: Path, jobs: int = 1, elsewhere: RunAll | None = None
) -> dict[str, list[Outcome]]:
    """Search the settings of all systems of an experiment; returns each system's trials in order.

    Parameters
    ----------
    fabric : the name of one with virtual time
    folder : of the trials; those that are there are kept
    jobs : systems searched at once
    elsewhere : searches them on other machines; None: here

    Raises
    ------
    InputError
        The experiment computes nothing or names no target, the seeds are its own, nobody has what is to be fixed, or
        the folder holds trials of another experiment.
    """
    if experiment.compute.timing_only:
        raise InputError("compute.math is 'none': no trial could reach a target; leave it out")
    if not Target.asked(experiment.target, None).stated:
        raise InputError("[target] names nothing to be reached, so there is nothing to tune for; set target.loss")
    if shared := set(budget.seeds) & set(experiment.run.seeds):
        raise InputError(f"--seeds: {min(shared)} is one of run.seeds; tune on seeds that are not reported")
    if len(set(budget.seeds)) < len(budget.seeds):
        raise InputError(f"--seeds {','.join(map(str, budget.seeds))}: a seed is named twice; name each once")
    experiment = experiment.on(FABRICS.find(fabric).device)
    known = sorted({name for system in experiment.systems for name in experiment.kind_of(system).knobs})
    if unknown := [name for name in budget.fixed if name not in known]:
        they = f"they are: {', '.join(known)}" if known else f"{', '.join(experiment.systems)} has none; leave it out"
        raise InputError(f"--fixed {unknown[0]}: no system's own knob that is searched; {they}")
    for system in experiment.systems:  # a folder is claimed only for trials that can be
        attempt(experiment, system, standing(experiment, system, budget.fixed), budget.seeds, [])
    _claim(folder, experiment, budget)
    data = experiment.as_dict()
    errands = [Errand(each, _tune_one, folder / each, data, (fabric, budget, each)) for each in experiment.systems]
    (elsewhere or partial(run_all, processes=jobs))(errands)
    return {system: outcomes(folder / system) for system in experiment.systems}


def _claim(folder: Path, experiment: Experiment, budget: Budget) -> None:
    """Write down what each system's trials are of; InputError where a folder holds those of something else."""
    data, claims = experiment.as_dict(), dict[Path, bytes]()
    for system, options in data["systems"].items():
        alone = {**data, "systems": {system: options}}
        fixed = {"fixed": sorted(budget.fixed)} if budget.fixed else {}
        asked = msgspec.json.encode({"experiment": alone, "seeds": budget.seeds, **fixed}, order="sorted")
        path = folder / system / ASKED_FILE
        if path.is_file() and path.read_bytes() != asked:
            raise InputError(f"{path.parent}: holds trials of another experiment or on other seeds; name another --out")
        claims[path] = asked
    for path, asked in claims.items():
        write_whole(path, asked)


def outcomes(folder: Path) -> list[Outcome]:
    """The trials of one system that are done, in order.

    Raises
    ------
    InputError
        Their file is not as this program writes it.
    """
    path = folder / TRIALS_FILE
    if not path.is_file():
        return []
    try:
        return msgspec.json.Decoder(Outcome).decode_lines(path.read_bytes())
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}; delete it to search again") from None


def searched(folder: Path) -> dict[str, list[Outcome]]:
    """The trials of all systems that a folder holds, those of earlier searches with them."""
    return {path.parent.name: outcomes(path.parent) for path in sorted(folder.glob(f"*/{TRIALS_FILE}"))}


def best(found: Sequence[Outcome]) -> Outcome:
    """The trial with the least score of those that reach the target, or else of all; the first of equals."""
    return min(found, key=lambda outcome: (not outcome.reached, outcome.score))


def _tune_one(folder: Path, data: dict[str, Any], fabric: str, budget: Budget, system: str) -> None:
    experiment = from_dict(data, "the experiment")
    space, done = knobs(experiment, system, budget.fixed), outcomes(folder)
    for number in range(len(done), budget.trials):
        tried = [(each.options, inf if each.score == NEVER else each.score) for each in done]
        more = tried and proposal(space, tried, lengthens(experiment, system))
        options = more or standing(experiment, system, budget.fixed)
        trial = attempt(experiment, system, options, budget.seeds, done)
        done.append(_play(trial, fabric, folder / f"trial-{number}", system, options, done))
        write_whole(folder / TRIALS_FILE, msgspec.json.Encoder().encode_lines(done))


def knobs(experiment: Experiment, system: str, fixed: Collection[str] = ()) -> dict[str, Knob]:
    """What is searched for a system: its rate, its momentum where it has one, and its own knobs (see `proposal`).

    The range of the rate lies about the experiment's in the long run, which a mean of gradients needs for its own to
    make steps as long; of steps whose length is their own, about the rate as it stands.

    Of a knob's choices those that the system refuses beside its other options are left out: Streaming DiLoCo takes no
    period that is shorter than its overlap. A trial of them would be lost.
    """
    training, kind = experiment.training, experiment.kind_of(system)
    has_momentum = kind.own_momentum or isinstance(training.optimizer, SGD)
    momentum = getattr(training.optimizer, "momentum", 0.0) if has_momentum else 0.0
    rate = long_run({"rate": training.schedule.rate, "momentum": momentum}, kind.momentum_of != "unit")
    found = {"rate": Knob(low=rate / SPAN, high=rate * SPAN)}
    searched = {name: knob for name, knob in kind.knobs.items() if name not in fixed}
    own = {name: _taken(experiment, system, name, knob) for name, knob in searched.items()}
    return found | ({"momentum": Knob(choices=(0.0, 0.9))} if has_momentum else {}) | own


def lengthens(experiment: Experiment, system: str) -> bool:
    """Whether a momentum of m makes this system's steps 1 / (1 - m) times as long (`long_run`)."""
    return experiment.kind_of(system).momentum_of == "sum" and isinstance(experiment.training.optimizer, SGD)


def _taken(experiment: Experiment, system: str, name: str, knob: Knob) -> Knob:
    """A knob with the choices that the system takes; as it is where it takes none."""

    def takes(choice: Any) -> bool:
        try:
            _with_options(experiment, system, {name: choice})
        except InputError:
            return False
        return True

    return replace(knob, choices=tuple(filter(takes, knob.choices)) or knob.choices)


def standing(experiment: Experiment, system: str, fixed: Collection[str] = ()) -> dict[str, Any]:
    """The values of a system's knobs in the experiment, the nearest ones that are searched."""
    options, training = experiment.systems[system], experiment.training
    of_training = {"rate": training.schedule.rate, "momentum": getattr(training.optimizer, "momentum", 0.0)}
    values = {}
    for name, knob in knobs(experiment, system, fixed).items():
        value = getattr(options, name)
        value = of_training[name] if value in (None, msgspec.UNSET) else value
        values[name] = rounded(value) if name == "rate" else knob.nearest(value)
    return values


def _play(
    tried: Experiment, fabric: str, folder: Path, system: str, values: Mapping[str, Any], before: Sequence[Outcome]
) -> Outcome:
    """Play one trial and tell what came of it."""
    if not (folder / info_file.FILE_NAME).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        session.prepare(tried, session.Request(target=system, fabric=fabric, folder=folder, command=("tune",)))
    options = dict(values)
    with held(folder), suppress(not_finite.Diverged):
        session.ready(folder, jobs=1)()
    if diverged := not_finite.diverged(place_of(folder, system, seed) for seed in tried.run.seeds):
        why = info_file.read_info(diverged[0], info_file.ResultInfo).error
        return Outcome(options, NEVER, False, f"diverged: {why}")
    return _outcome(tried, folder, options, before)


def attempt(
    experiment: Experiment, system: str, values: Mapping[str, Any], seeds: Sequence[int], before: Sequence[Outcome]
) -> Experiment:
    """The experiment of a trial: one system, only what its target needs is tested.

    Nothing is saved on the way: at a checkpoint all stand still, which costs most where it is sent while computing.
    It ends once its mean over the seeds can only be above the best that the trials before it have reached.
    """
    steps, target = experiment.training.steps, Target.asked(experiment.target, None)
    run: dict[str, Any] = {
        "seeds": list(seeds),
        "checkpoint_steps": steps,
        "probe_steps": experiment.run.probe_steps or max(1, steps // PROBES),
        "eval_images": experiment.run.probe_images if target.tests else 1,
        "stop_at_target": True,
    }
    if least_s := _least_s(before):
        run["stop_after_s"] = least_s * len(seeds)
    return _with_options(experiment, system, values, run)


def _with_options(
    experiment: Experiment, system: str, options: Mapping[str, Any], run: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment with one system alone, some of its options and of its [run] changed; InputError: not to be had."""
    data = experiment.as_dict()
    systems = {system: {**data["systems"][system], **options}}
    return from_dict({**data, "systems": systems, "run": {**data["run"], **(run or {})}}, "the experiment")


def _least_s(found: Sequence[Outcome]) -> float:
    """The shortest time to the target, or 0 where no trial has reached it."""
    return min((each.score for each in found if each.reached), default=0.0)


def _outcome(experiment: Experiment, folder: Path, options: dict[str, Any], before: Sequence[Outcome]) -> Outcome:
    """The mean time to the target over the seeds; where one misses it, no less than the best, longer by how far."""
    run = load_run(folder)
    target = Target.of(run.info)
    frame = measure(run, target)
    times_s = frame["time_to_target_s"].to_numpy()
    if (times_s == times_s).all():
        score = fmean(times_s)
        return Outcome(options, score, True, f"{target} in {score:.3g} s")
    gaps = []
    for result in run.results:
        last = result.probes.iloc[[-1]]
        missed_by = last["train_loss"] - target.loss if target.loss is not None else target.missed_by(last)
        gaps.append(float(missed_by.iloc[0]) if missed_by is not None else float("nan"))
    gap = fmean(gaps)
    if gap != gap:
        return Outcome(options, NEVER, False, f"{target} not reached: it diverged")
    played_s = float(frame["time_s"].max())
    missed = f", missed by {gap:.3g}" if gap > 0 else ""  # the last loss may be below it, and its window not yet
    score = max(played_s, _least_s(before)) * (1 + max(gap, 0.0))
    return Outcome(options, score, False, f"{target} not reached in {played_s:.3g} s{missed}")


def _stated(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without its keys that have no value, for which TOML has no word."""
    return {
        key: _stated(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }


def tuned(experiment: Experiment, found: Mapping[str, Sequence[Outcome]], budget: Budget, target: Target) -> str:
    """The experiment with what was found for each system, as TOML, and a comment that says why."""
    import tomli_w

    data = _stated(experiment.as_dict())
    systems = {name: {**data["systems"].get(name, {}), **best(trials).options} for name, trials in found.items()}
    seeds = ", ".join(map(str, budget.seeds))
    lines = [
        f"# Each system tuned alike by `testbed tune`: {budget.trials} trials a system, the first the experiment as it",
        f"# stood, each on seed {seeds}, for the shortest time to {target} (testbed/harness/tune.py).",
        "#",
        *(f"# {name}: {best(trials).said}; as it stood: {trials[0].said}" for name, trials in found.items()),
        "",
    ]
    return "\n".join(lines) + tomli_w.dumps({**data, "systems": systems})


def frame(found: Mapping[str, Sequence[Outcome]]) -> pd.DataFrame:
    """All trials in a table: system, trial (from 0), rate, score (s), reached (whether the target was)."""
    rows = [
        {"system": system, "trial": number, "rate": each.options["rate"], "score": each.score, "reached": each.reached}
        for system, trials in found.items()
        for number, each in enumerate(trials)
    ]
    return pd.DataFrame(rows)
