"""What training across these regions would take, asked before it is done: the answer of `testbed plan`.

Each system asked about is played timing-only for a few steps on the profile's WAN, and again on one without limits of
rate. A step then takes a + b / f where the WAN has f times the profile's rate, which gives the share of it that
computes, and the rate that a share asked for would need. Where regions synchronise every h steps, one of the steps
played does, and T(h) = local + (synchronising - local) / h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from math import ceil, inf, isinf, isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.experiment.assembly import Assembly
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import FABRICS, Setting, virtual
from testbed.harness.candidates import NOBODY, Candidate, LeftOut
from testbed.record.events import Event, LinkBytes, StepDone, is_wan
from testbed.report.numbers import prices
from testbed.report.numbers.kept import Kept, kept_of
from testbed.roles.compute import DEVICES, Device, compute_model

SHARES = (0.5, 0.75, 0.9, 0.95)
DAY_S = 86_400.0
FREE = 1e6  # times the WAN's rate: as good as without limits
STEPS = 4  # of a system that synchronises in every one; those after the first are measured
VARYING_STEPS = 100  # of one whose messages depend on the data: not every step sends what the first ones do
LONGEST = 500  # h that a recommendation goes to: the longest of Douillard et al. 2023 (3.1)
FACTORS = tuple(10 ** (k / 8) for k in range(-8, 25))  # of the WAN's rate, for a picture: a tenth to a thousand times
PREFIX = "plan: "  # of a device that a question makes
SYNC = "local_steps"  # the option that says how often regions synchronise


@dataclass(frozen=True)
class Timed:
    """What a system takes on one network: seconds, and bytes by directed WAN link.

    `local_s` is a step in which regions do not synchronise, None where they do in every one.
    """

    gradient_s: float
    sync_s: float
    sync_bytes: dict[str, float]
    local_s: float | None = None

    def step_s(self, period: int) -> float:
        """Of the mean step, synchronising every `period`."""
        return self.sync_s if self.local_s is None else self.local_s + (self.sync_s - self.local_s) / period


def timed(experiment: Experiment, system: str) -> Timed:
    """Play a few steps of a system of a timing-only experiment."""
    assembly = Assembly(experiment)
    period = getattr(experiment.systems[system], SYNC, 1)
    varying = assembly.system(system, experiment.run.seeds[0]).varying
    steps = max(VARYING_STEPS if varying else STEPS, 2 * period if period > 1 else 0)
    steps -= steps % period
    done: list[StepDone] = []
    sent: dict[str, float] = {}

    def record(event: Event) -> None:
        match event:
            case StepDone() if event.node == first:
                done.append(event)
            case LinkBytes():
                for link, wire_bytes in event.wire_bytes.items():
                    sent[link] = sent.get(link, 0.0) + wire_bytes

    first = experiment.roles.workers[0]
    with FABRICS[virtual()].open(Setting(assembly, "cpu")) as fabric:
        fabric.record = record
        fabric.begin(system, experiment.run.seeds[0], Path(), 0.0, None)
        fabric.segment(steps)
    ends = [event.time_s for event in done]
    spans = [later - sooner for sooner, later in zip([0.0, *ends], ends, strict=False)]
    device = compute_model(experiment.compute.device).device
    assert device is not None, "a timing-only experiment has a device"
    gradient_s = device.seconds(assembly.task(experiment.run.seeds[0]).gradient_work)
    syncs = steps // period
    each = {link: total / syncs for link, total in sent.items() if is_wan(link)}
    settled = spans[period:]
    if period == 1:
        return Timed(gradient_s, fmean(settled), each)
    # The step after one that synchronises has its answer to take in, too: what a period has beyond its local steps.
    local_s = min(settled)
    return Timed(gradient_s, period * fmean(settled) - (period - 1) * local_s, each, local_s)


@dataclass(frozen=True)
class Option:
    """A system on the WAN as it is (`here`) and on one without limits of rate (`free`, found when it is asked for).

    Attributes
    ----------
    name : of the system's table
    period : steps from one synchronisation to the next
    """

    name: str
    candidate: Candidate
    here: Timed
    free: Callable[[], Timed]
    period: int = 1

    @property
    def periodic(self) -> bool:
        """Whether the period can be chosen."""
        return self.here.local_s is not None

    def every(self, period: int) -> Option:
        """The same with another period."""
        return Option(self.name, self.candidate, self.here, self.free, period)

    @property
    def step_s(self) -> float:
        """Of the mean step."""
        return self.here.step_s(self.period)

    @property
    def share(self) -> float:
        """The part of a step in which gradients are computed."""
        return self.here.gradient_s / self.step_s

    @property
    def day_bytes(self) -> dict[str, float]:
        """What each directed WAN link carries in a day."""
        steps = DAY_S / self.step_s / self.period
        return {link: steps * total for link, total in self.here.sync_bytes.items()}

    @property
    def step_bytes(self) -> float:
        """On all WAN links, of the mean step."""
        return sum(self.here.sync_bytes.values()) / self.period

    @property
    def day_usd(self) -> float:
        """List price of a day's egress; NaN where a link has none."""
        return sum(self.day_usd_of.values())

    @property
    def day_usd_of(self) -> dict[str, float]:
        """The same of each link."""
        return {link: prices.egress_usd({link: round(total)}) for link, total in self.day_bytes.items()}

    def at_rate(self, factor: float) -> float:
        """The share where the WAN has `factor` times its rate."""
        a, b = self._line
        return self.here.gradient_s / (a + b / factor)

    def rate_for(self, share: float) -> float:
        """Times its rate that the WAN needs for a share; infinity where none is enough."""
        a, b = self._line
        room = self.here.gradient_s / share - a
        return b / room if room > 0 else inf

    @cached_property
    def _line(self) -> tuple[float, float]:
        free = self.free().step_s(self.period)
        return free, max(self.step_s - free, 0.0)

    def period_for(self, share: float) -> int | None:
        """The shortest period with a share; None where none is, or it would be longer than `LONGEST`."""
        if self.here.local_s is None:
            return 1 if self.share >= share else None
        room = self.here.gradient_s / share - self.here.local_s
        wanted = ceil((self.here.sync_s - self.here.local_s) / room) if room > 0 else LONGEST + 1
        return max(wanted, 1) if wanted <= LONGEST else None


@dataclass(frozen=True)
class Plan:
    """What was asked, and every option in the order of how far it departs from the baseline, unknown ones last.

    `kept` is what is known of the model's steps to a target.
    """

    experiment: Experiment
    options: list[Option]
    kept: Kept = field(default_factory=Kept)

    def recommended(self, share: float) -> Option | None:
        """The first option that has the share."""
        for option in self.options:
            if (period := option.period_for(share)) is not None:
                return option.every(period)
        return None


def altered(experiment: Experiment, **topology: float) -> Experiment:
    """The experiment with other factors of its network, on top of those it has."""
    now = {name: getattr(experiment.topology, name) for name in topology}
    both = {n: f * (1.0 if now[n] is msgspec.UNSET else now[n]) for n, f in topology.items()}
    return msgspec.structs.replace(experiment, topology=msgspec.structs.replace(experiment.topology, **both))


def ask(experiment: Experiment, known: Mapping[str, Candidate], periods: Sequence[int] = ()) -> Plan:
    """Time every system of a timing-only experiment.

    Parameters
    ----------
    known : what is known of its systems, by name, in the order of how far they depart from the baseline
    periods : of those whose period can be chosen, an option each, and for those of kept runs; none: the period that
        they have

    Raises
    ------
    InputError
        A system's messages have sizes that nobody knows.
    """
    Assembly(experiment).require_sizes()
    wide = altered(experiment, wan_factor=FREE)
    kept = kept_of(experiment.model.name)
    periods = sorted({*periods, *kept.periods}) if periods else ()
    place = {name: number for number, name in enumerate(known)}
    options = []
    for system in sorted(experiment.systems, key=lambda name: place.get(name, len(place))):
        own = getattr(experiment.systems[system], SYNC, 1)
        free = cache(partial(timed, wide, system))
        candidate = known.get(system, Candidate(system))
        option = Option(system, candidate, timed(experiment, system), free, own)
        options += [option.every(period) for period in periods] if option.periodic and periods else [option]
    return Plan(experiment, options, kept)


CHANGES: dict[str, Callable[[Experiment], Experiment]] = {
    "half the WAN's rate": lambda it: altered(it, wan_factor=0.5),
    "twice the WAN's rate": lambda it: altered(it, wan_factor=2.0),
    "twice the round trips": lambda it: altered(it, rtt_factor=2.0),
    "GPUs twice as fast": lambda it: _faster(it, 2.0),
}


def what_would_change(plan: Plan, share: float) -> dict[str, Option | None]:
    """What would be recommended for a share under each of `CHANGES`."""
    known = {option.name: option.candidate for option in plan.options}
    return {words: ask(change(plan.experiment), known).recommended(share) for words, change in CHANGES.items()}


def _faster(experiment: Experiment, factor: float) -> Experiment:
    device = compute_model(experiment.compute.device).device
    assert device is not None
    return on_device(experiment, msgspec.structs.replace(device, gflops=device.gflops * factor), "faster")


def on_device(experiment: Experiment, device: Device, name: str) -> Experiment:
    """The experiment on a device that no file knows."""
    name = PREFIX + name
    DEVICES.add(name, device, __name__)
    return msgspec.structs.replace(experiment, compute=msgspec.structs.replace(experiment.compute, device=name))


def step_device(experiment: Experiment, step_s: float) -> Experiment:
    """The experiment on a device that takes `step_s` for a worker's gradient and moves memory as its own does.

    Raises
    ------
    InputError
        The time is not above 0.
    """
    if not 0 < step_s < DAY_S:
        raise InputError(f"--step-time {step_s:g}: a local step takes more than 0 s and less than a day")
    own = compute_model(experiment.compute.device).device
    assert own is not None
    flops = Assembly(experiment).task(0).gradient_flops
    return on_device(
        experiment, msgspec.structs.replace(own, gflops=flops / 1e9 / step_s, launch_ms=0.0), f"{step_s:g} s a step"
    )


# The answer as plain data


def answer(
    plan: Plan,
    shares: Sequence[float],
    share: float,
    changes: Mapping[str, Option | None],
    left_out: LeftOut = NOBODY,
) -> dict[str, Any]:
    """All of a plan that can be printed, drawn or read by a program; numbers in seconds, bytes and US dollars.

    Parameters
    ----------
    shares : of a step, for which a system is recommended and the WAN's rate is given that each would need
    share : the one that is asked about
    changes : `what_would_change`
    left_out : what the notes say of it

    Returns
    -------
    `asked`; `systems`, one for each option, with `rate_for` by share, None where no rate is enough; `recommended` by
    share and `would_change` by what changes, None where nothing is; `notes`.
    """
    it = plan.experiment
    task = Assembly(it).task(it.run.seeds[0])
    network = it.plan
    return {
        "asked": {
            "model": it.model.name,
            "parameters": task.layout.size,
            "gradient_bytes": 4 * task.layout.size,
            "regions": it.topology.regions,
            "workers_per_region": it.topology.workers_per_region,
            "server_region": it.topology.server_region,
            "profile": it.topology.profile,
            "wan_mbit": {f"{a}>{b}": round(link.goodput_mbit, 1) for (a, b), link in network.wan.items()},
            "lan_mbit": network.profile.lan.goodput_mbit,
            "device": it.compute.device.removeprefix(PREFIX),
            "gradient_s": plan.options[0].here.gradient_s,
            "share": share,
        },
        "systems": [_row(option, shares, plan.kept) for option in plan.options],
        "recommended": {f"{each:g}": _or_none(plan.recommended(each)) for each in shares},
        "would_change": {words: _or_none(option) for words, option in changes.items()},
        "notes": [*_notes(plan), *left_out.notes],
    }


def _row(option: Option, shares: Sequence[float], kept: Kept) -> dict[str, Any]:
    busiest = max(option.day_bytes, key=lambda link: option.day_bytes[link], default="")
    return {
        **_choice(option),
        "wan_bytes_per_step": option.step_bytes,
        "day_bytes": option.day_bytes,
        "day_usd": {link: _known(usd) for link, usd in option.day_usd_of.items()},
        "busiest_link": busiest,
        "rate_for": {f"{each:g}": None if isinf(rate := option.rate_for(each)) else rate for each in shares},
        "steps_to_target": kept.ratios.get((option.candidate.steps_of or option.name, option.period)),
        "share_at": [[factor, option.at_rate(factor)] for factor in FACTORS],
    }


def _known(usd: float) -> float | None:
    return None if isnan(usd) else usd


def _or_none(option: Option | None) -> dict[str, Any] | None:
    return None if option is None else _choice(option)


def _choice(option: Option) -> dict[str, Any]:
    return {
        "system": option.name,
        "period": option.period,
        "bits": option.candidate.bits,
        "departs": option.candidate.departs,
        "step_s": option.step_s,
        "compute_share": option.share,
        "usd_per_day": _known(option.day_usd),
    }


def _notes(plan: Plan) -> list[str]:
    notes = [f"What a system costs in steps to a target {_steps_known(plan.kept)}."]
    if any(option.periodic for option in plan.options):
        notes.append("A longer period costs steps, too: DiLoCo's papers go to 500 of 88,000 steps.")
    if any(isnan(option.day_usd) for option in plan.options):
        notes.append("A link between these regions has no list price, so no price of a day is given.")
    if plan.experiment.plan.profile.assumed:
        notes.append(f"Profile {plan.experiment.topology.profile} assumes some of its links: testbed profile show.")
    return notes


def _steps_known(kept: Kept) -> str:
    if not kept.run:
        return "is not known for this model: no kept run has it"
    of = "one seed, so without an interval" if kept.seeds == 1 else f"{kept.seeds} seeds, with 95 % intervals"
    return f"is that of {kept.run} ({of}), over the baseline's, and holds for its batch and workers"
