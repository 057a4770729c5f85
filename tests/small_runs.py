"""Small experiments and networks, and a way to play a system on the virtual fabric without any files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from testbed.experiment import load as experiment_file
from testbed.experiment.schema import Experiment, Run
from testbed.fabrics.virtual import VirtualFabric
from testbed.faults import Schedule
from testbed.harness import session
from testbed.layout import Layout
from testbed.record.events import Event
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS, System, Task
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile
from testbed.workloads.config import Training
from testbed.workloads.data import standin
from testbed.workloads.data.records import Records
from testbed.workloads.schedule import Constant

E = TypeVar("E", bound=Event)

PLAIN: dict[str, Any] = {
    "topology": {
        "profile": "weightgrad-ec2",
        "regions": ["us-west-1", "us-east-1"],
        "workers_per_region": 2,
        "server_region": "us-east-2",
    },
    "model": {"name": "tiny"},
    "data": {"dataset": "synthetic"},
    "training": {"steps": 8, "batch_size": 16},
    "compute": {"device": "m60"},
    "run": {"fabric": "virtual", "checkpoint_steps": 4, "eval_images": 50},
    "systems": {"baseline": {}, "terngrad": {}, "weightgrad": {}},
}
"""A whole experiment that takes a fraction of a second."""

EXCHANGING = {"t_s": 0.05, "t_local_s": 0.02, "t_global_s": 0.04, "threshold_max": 1.0}
"""WeightGrad's settings with which so few steps have several rounds and guards."""

PATIENCE_S = Run().patience_s
"""As an experiment's: what connections that are reset too often cannot carry ends such a run, too."""


def each_system(names: Iterable[str], *quick: str) -> list[Any]:
    """A test's cases, one a system: those of `quick`, one of a kind, in the fast suite, all others among the slow."""
    slow = pytest.mark.slow
    return [name if name in quick else pytest.param(name, marks=slow) for name in sorted(names)]


def plain(**parts: Any) -> dict[str, Any]:
    """`PLAIN` with some keys of its tables changed (`systems`, and what is no table, replaced)."""
    data: dict[str, Any] = {name: dict(table) for name, table in PLAIN.items()}
    for name, table in parts.items():
        if isinstance(table, Mapping):
            data[name] = dict(table) if name == "systems" else {**data.get(name, {}), **table}
        else:
            data[name] = table
    return data


def experiment(**parts: Any) -> Experiment:
    return experiment_file.from_dict(plain(**parts), "test.toml")


def start(it: Experiment, results: Path, jobs: int = 1, **request: Any) -> Path:
    """Run an experiment on the virtual fabric; returns the folder of its records."""
    folder = session.prepare(it, session.Request("test", "virtual", results=results, **request))
    session.ready(folder, jobs)()
    return folder


def toml(data: Mapping[str, Any]) -> str:
    """Plain data as TOML, tables two deep."""

    def value(item: Any) -> str:
        if isinstance(item, bool):
            return str(item).lower()
        if isinstance(item, dict):
            return "{" + ", ".join(f"{key} = {value(each)}" for key, each in item.items()) + "}"
        return repr(item).replace("'", '"')

    return "\n".join(f"{name} = {value(table)}" for name, table in data.items()) + "\n"


def use_small_data(patch: pytest.MonkeyPatch, batches: list[Records], folder: Path) -> None:
    """Put `batches` in the place of the `synthetic` data set's 60,000 images, and data sets into `folder`."""
    patch.setenv("TESTBED_DATA", str(folder))
    patch.setattr(standin, "records", lambda folder, kind: batches)


def network(
    regions: Sequence[str], lan: Link, wan: Link, special: Mapping[tuple[str, str], Link] | None = None
) -> Profile:
    """A profile with the same link between all pairs but the `special` ones."""
    pairs = {(a, b): wan for a in regions for b in regions if a != b}
    return Profile("test", "test", tuple(regions), lan, pairs | dict(special or {}))


class Quadratic:
    """A worker whose loss is ||w - target||^2 / 2."""

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target

    def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
        difference = weights - self.target
        return float(difference.square().sum()) / 2, difference


SMALL = Layout.of([("first.weight", (16, 12)), ("first.bias", (16,)), ("last.weight", (5, 16)), ("last.bias", (5,))])


def quadratic_task(
    roles: Roles, steps: int, rate: float = 0.05, layout: Layout = SMALL, training: Training | None = None
) -> Task:
    """Every worker pulls the weights to a point of its own; a gradient takes 50 ms on the modelled device."""
    generator = torch.Generator().manual_seed(1)
    targets = [torch.randn(layout.size, generator=generator) for _ in roles.workers]
    return Task(
        seed=3,
        roles=roles,
        layout=layout,
        initial=torch.randn(layout.size, generator=generator),
        training=training or Training(steps=steps, schedule=Constant(rate=rate)),
        learner=lambda worker: Quadratic(targets[worker]),
        images=1000,
        gradient_flops=0.05 * 45e9,
    )


@dataclass
class Played:
    """What a run left behind."""

    system: System
    states: Mapping[str, Any]
    events: list[Event]
    clock_s: float

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def models(self) -> dict[str, torch.Tensor]:
        return self.system.models(self.states)


def play(
    system: str,
    task: Task,
    profile: Profile,
    options: Mapping[str, Any] | None = None,
    stops: Sequence[int] = (),
    device: str = "m60",
    between: Callable[[Mapping[str, Any]], None] = lambda states: None,
    faults: Sequence[str] = (),
    probe: Callable[..., bool] | None = None,
) -> Played:
    """Play all steps of `task` on the virtual fabric, stopping at `stops`, where `between` sees the states.

    `probe` is given the states that show the model, at every step.
    """
    made = SYSTEMS[system](task, SYSTEMS[system].options_type(**(options or {})))
    plan = NetworkPlan(task.roles.all, profile)
    schedule = Schedule(None, experiment_file.read_faults(list(faults), "test"), plan.wan, task.roles.all)
    compute = compute_model(device)
    fabric = VirtualFabric(plan, compute, lambda name, seed: made, schedule=schedule, patience_s=PATIENCE_S)
    played = Played(made, fabric.states(Path()), [], 0.0)
    fabric.record, fabric.probe = played.events.append, probe
    fabric.begin(system, task.seed, Path(), 0.0, None)
    for stop in (*stops, task.training.steps):
        played.clock_s = fabric.segment(stop)
        played.states = fabric.states(Path())
        between(played.states)
    return played
