"""Runs an experiment: every system and seed in turn on one fabric, recorded as it goes, resumable.

1. Everything the user can get wrong is found before anything is written.
2. A system and seed is a play (`harness.play`); several may be played at once, each in a process of its own.
3. However a run ends, what was recorded is turned into tables and plots, and says how it ended.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from testbed import plugins
from testbed.errors import InputError, Interrupted
from testbed.experiment.assembly import Assembly, threads
from testbed.experiment.load import from_dict
from testbed.experiment.schema import Experiment
from testbed.fabrics.base import Fabric
from testbed.fabrics.registry import FABRICS, FabricKind, Setting
from testbed.files import new_folder, typed_path
from testbed.harness import apart, checkpoint, notes
from testbed.harness.lock import held_too
from testbed.harness.not_finite import passed_over, raise_diverged
from testbed.harness.play import Play, label, place_of
from testbed.harness.pool import HERE, Elsewhere, Errand, RunAll, run_all, signals_interrupt
from testbed.record import info as info_file
from testbed.record import series
from testbed.record.info import MODELLED_NETWORK, DataInfo, LinkInfo, MetricInfo, PluginInfo, RunInfo
from testbed.record.stolen import Stolen
from testbed.report.numbers import progress
from testbed.roles.compute import MEASURED
from testbed.wan.profile import Link, Pair, Profile
from testbed.wan.store import save_profile
from testbed.wan.trace import find as find_trace
from testbed.workloads import Workload
from testbed.workloads.devices import dealt
from testbed.workloads.fingerprint import fingerprint
from testbed.workloads.sized import SizedWorkload

RESULTS = Path("results")
SHORT_STEPS = 20  # of a run that ends before further processes have started


@dataclass(frozen=True)
class Request:
    """What is asked for beside the experiment itself.

    `folder` is where the run's records go; None: a new one in `results`. `tensorboard`: write scalars, too.
    """

    target: str
    fabric: str  # its name, already chosen
    device: str = "cpu"
    results: Path = RESULTS
    folder: Path | None = None
    tensorboard: bool = False
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def prepare(experiment: Experiment, request: Request) -> Path:
    """Make the folder of a run and write down what it is; `ready` does the rest. Returns the folder."""
    kind = FABRICS.find(request.fabric)
    experiment = experiment.on(kind.device)
    assembly = Assembly(experiment, request.device)
    workload, dataset = assembly.sized, assembly.sized.dataset
    experiment = experiment.on_data(dataset.real)
    if experiment.compute.timing_only:
        assembly.require_sizes()
    began = datetime.now().astimezone()
    folder = request.folder or new_folder(request.results / request.target, new_id(request.fabric))
    folder.mkdir(exist_ok=True)
    as_dict = experiment.as_dict()
    facts = RunInfo(
        run_id=folder.name,
        target=request.target,
        experiment=as_dict,
        experiment_hash=info_file.hash_of(as_dict),
        plugins=[PluginInfo(name=each.name, sha256=each.sha256) for each in plugins.loaded()],
        profile=experiment.topology.profile,
        network=_links(experiment.plan.profile, experiment.plan.wan),
        topology=as_dict["topology"],
        trace=_trace(experiment),
        fabric=request.fabric,
        delay_mechanism=MODELLED_NETWORK,
        compute=experiment.compute.device,
        device=_device_name(request.device),
        fidelity={} if kind.virtual_time else _fidelity(request.results, experiment.topology.profile),
        systems=list(experiment.systems),
        seeds=list(experiment.run.seeds),
        data=DataInfo(
            dataset=dataset.name, stand_in=not dataset.real, note=dataset.note, fingerprint=_fingerprint(assembly)
        ),
        metric=_metric_info(workload, workload.main_metric),
        target_metric=target_metric(experiment, workload),
        parameters=workload.layout.size,
        started_at=began.isoformat(timespec="seconds"),
        tensorboard=request.tensorboard,
        command=list(request.command),
        environment=info_file.environment(),
        notes=[*request.notes, *notes.beyond_the_paper(experiment), *notes.faults_without_effect(experiment)],
    )
    info_file.write_info(folder, facts)
    return folder.resolve()


def _changed(facts: RunInfo, experiment: Experiment, assembly: Assembly) -> str:
    """What of the files that a run reads has changed since it began, in words; "" for nothing."""
    now = {each.name: each.sha256 for each in plugins.loaded()}
    for before in facts.plugins:
        if now.get(before.name) != before.sha256:
            return f"plug-in {before.name}"
    plan, topology = experiment.plan, experiment.topology
    if facts.network and facts.profile == topology.profile and facts.network != _links(plan.profile, plan.wan):
        return f"profile {topology.profile}"  # a measured one has a name of its own
    if facts.trace and facts.trace != _trace(experiment):
        return f"trace {topology.trace}"
    if facts.data.fingerprint and facts.data.fingerprint != _fingerprint(assembly):
        return f"data set {facts.data.dataset}"
    return ""


def _trace(experiment: Experiment) -> str:
    """The hash of the trace's file; "" for none."""
    trace = experiment.topology.trace
    return hashlib.sha256(find_trace(trace).read_bytes()).hexdigest() if trace is not None else ""


def _fingerprint(assembly: Assembly) -> str:
    """The data set's; "" where nothing is trained."""
    return "" if assembly.experiment.compute.timing_only else fingerprint(assembly.workload.dataset)


def _links(profile: Profile, wan: Mapping[Pair, Link]) -> dict[str, LinkInfo]:
    """The links between regions, and "lan"."""
    links = {f"{a}>{b}": link for (a, b), link in wan.items()} | {"lan": profile.lan}
    return {name: LinkInfo(goodput_mbit=link.goodput_mbit, rtt_ms=link.rtt_ms) for name, link in links.items()}


def target_metric(experiment: Experiment, workload: Workload | SizedWorkload) -> MetricInfo | None:
    """The metric that the target names; None where it names none, and where nothing is computed that has it."""
    name = experiment.target.metric
    return _metric_info(workload, name) if isinstance(name, str) and name in workload.metrics else None


def _metric_info(workload: Workload | SizedWorkload, name: str) -> MetricInfo:
    metric = workload.metrics[name]
    return MetricInfo(name=name, label=metric.label, unit=metric.unit, better=metric.better)


def _fidelity(results: Path, profile: str) -> dict[str, Any]:
    """The evidence there is for the emulated network of a profile on this machine's kernel."""
    from testbed.fidelity import report as fidelity_report  # rich

    return fidelity_report.evidence(results / "fidelity", profile, platform.release())


def ready(folder: Path, jobs: int | None = None, elsewhere: Elsewhere = HERE) -> Callable[[], None]:
    """What plays all that is still to be played of the run in `folder`, from each system's and seed's last checkpoint.

    `jobs` systems and seeds are played at once, each in a process of its own; None: as many as make sense. A cluster
    that was joined may play them `elsewhere`. What is returned raises RunError when the run fails or is stopped, and
    Diverged once all is played where training has diverged, now or before; what was recorded stays.

    Raises
    ------
    InputError
        No run is there, or it cannot go on here.
    """
    facts = info_file.read_info(folder, RunInfo)
    experiment = from_dict(facts.experiment, str(folder / info_file.FILE_NAME))
    chosen = choose_jobs(experiment, FABRICS.find(facts.fabric), jobs)
    assembly = Assembly(experiment, _torch_device(facts))
    if facts.data.stand_in == assembly.sized.dataset.real:
        here = assembly.sized.dataset.note
        raise InputError(f"{folder}: it began with {facts.data.note}, but here is {here}; start a new run")
    if changed := _changed(facts, experiment, assembly):
        raise InputError(f"{folder}: the {changed} is not what the run began with; start a new run")
    folder = folder.resolve()
    left = plays(folder, facts)
    began, goes_on = facts.environment.commit, info_file.environment().commit
    if left and began and goes_on and began != goes_on:
        note = f"It began at commit {began[:10]} and went on at {goes_on[:10]}."
        facts.notes += [] if note in facts.notes else [note]
        info_file.write_info(folder, facts)

    def play() -> None:
        if elsewhere.run_all is not None or chosen > 1:
            play_at_once(left, elsewhere.run_all or partial(run_all, processes=chosen), folder)
        elif left:  # else there is no need of a fabric
            _run(folder, experiment, assembly, facts, elsewhere)
        raise_diverged(folder, [place_of(folder, system, seed) for seed, system in product(facts.seeds, facts.systems)])

    return play


def choose_jobs(experiment: Experiment, kind: FabricKind, jobs: int | None) -> int:
    """How many systems and seeds to play at once: `jobs`, or what the cores allow.

    Raises
    ------
    InputError
        Several at once would change what is measured.
    """
    why_not = kind.one_at_a_time(experiment.on(kind.device))
    if jobs is None:
        plays = len(experiment.systems) * len(experiment.run.seeds)
        if why_not or experiment.training.steps < SHORT_STEPS or experiment.compute.timing_only:
            return 1  # what is played would be over before other processes have started
        return min(plays, len(os.sched_getaffinity(0)))
    if jobs > 1 and why_not:
        raise InputError(f"--jobs {jobs}: {why_not}")
    return jobs


def _run(folder: Path, experiment: Experiment, assembly: Assembly, facts: RunInfo, elsewhere: Elsewhere) -> None:
    """Play what is left in turn, on one fabric; where training diverges that is closed, and the rest has another."""
    every = product(experiment.run.seeds, experiment.systems)
    left = [(seed, system) for seed, system in every if not checkpoint.is_finished(place_of(folder, system, seed))]
    repeats = FABRICS[facts.fabric].virtual_time and facts.compute != MEASURED
    stolen = None if repeats else Stolen()
    with signals_interrupt(), threads(1):
        while left:
            with _open_fabric(facts.fabric, assembly, _torch_device(facts), elsewhere) as fabric, passed_over():
                profile = _describe(fabric, folder, facts)
                try:
                    while left:
                        seed, system = left.pop(0)
                        Play(folder, facts, assembly, fabric, system, seed).run()
                        facts.delay_report, facts.nodes = fabric.delay_report(), fabric.nodes()
                        facts.notes = notes.with_warnings(
                            facts.notes, facts.delay_report, stolen.share if stolen else 0.0
                        )
                        facts.notes = notes.of_nodes(facts.notes, facts.nodes, profile)
                        info_file.write_info(folder, facts)
                except KeyboardInterrupt:  # between two systems
                    raise stopped(folder) from None


def _describe(fabric: Fabric, folder: Path, facts: RunInfo) -> Path | None:
    """Write down what a fabric that was opened says of its network; returns its profile where it was measured."""
    described = fabric.describe()
    facts.delay_mechanism = described.get("delay_mechanism", facts.delay_mechanism)
    facts.dilation = described.get("dilation", facts.dilation)
    facts.gate = described.get("gate", facts.gate)
    profile = None
    if (measured := fabric.measured()) is not None:
        profile = _keep_measured(measured, folder)
        facts.profile, facts.network = profile.stem, _links(measured, measured.pairs)
    info_file.write_info(folder, facts)
    return profile


def _keep_measured(measured: Profile, folder: Path) -> Path:
    """Write down what a real network was found to be, beside what it was when a run that is resumed began."""
    before = len(list(folder.glob(f"{measured.name}*.toml")))
    name = f"{measured.name}-{before + 1}" if before else measured.name
    return save_profile(replace(measured, name=name), folder)


def plays(folder: Path, facts: RunInfo) -> list[Errand]:
    """What is still to be played of the run in `folder`: a system and seed each, on a fabric of its own."""
    return [
        Errand(label(system, seed), _play_alone, place, facts.experiment, (facts, system, seed, number))
        for number, (seed, system) in enumerate(product(facts.seeds, facts.systems))
        if not checkpoint.is_finished(place := place_of(folder, system, seed))
    ]


def play_at_once(errands: Sequence[Errand], run_all: RunAll, folder: Path) -> None:
    """Play what `plays` names, of the run or the series in `folder`; raises RunError."""
    with signals_interrupt():
        try:
            run_all(errands)
        except (KeyboardInterrupt, Interrupted):
            raise stopped(folder) from None
        finally:
            for run in dict.fromkeys(errand.folder.parents[1] for errand in errands):
                gather(run)


def stopped(folder: Path) -> Interrupted:
    """What ends a run, or a series, that was stopped between two plays: how much of it is over, and how to go on."""
    if series.is_series(folder):
        done = progress.of_series(folder)
    else:
        facts = info_file.read_info(folder, RunInfo)
        done = progress.of_run(folder, facts.systems, facts.seeds)
    return Interrupted(f"stopped: {done or f'all is over; testbed report {typed_path(folder)} writes its page'}")


def gather(folder: Path) -> None:
    """Have the facts of the run in `folder` say what the machines that played it found."""
    facts = info_file.read_info(folder, RunInfo)
    places = [place_of(folder, system, seed) for system, seed in product(facts.systems, facts.seeds)]
    apart.gather(folder, facts, places)


def _play_alone(
    place: Path, experiment: dict[str, Any], facts: RunInfo, system: str, seed: int, number: int = 0
) -> None:
    """One system and seed on a fabric of its own, in this process; of several GPUs on the one that is its turn.

    Where training diverges the record says so, and no other is stopped for it.
    """
    if apart.played(place, experiment, facts, system, seed):
        return
    folder, device = place.parents[1], dealt(_torch_device(facts), number)
    assembly = Assembly(from_dict(experiment, info_file.FILE_NAME), device)
    with held_too(folder), signals_interrupt(), threads(1), _open_fabric(facts.fabric, assembly, device) as fabric:
        with passed_over():
            Play(folder, facts, assembly, fabric, system, seed, can_draw=False).run()


def _open_fabric(name: str, assembly: Assembly, device: str, elsewhere: Elsewhere = HERE) -> Fabric:
    experiment = assembly.experiment

    def check(network: Any) -> dict[str, Any]:
        from testbed.fidelity import gate  # Mininet

        return gate.check(network, used=experiment.roles.wan_pairs).record()

    return FABRICS.find(name).open(Setting(assembly, device, check if experiment.run.gate else None, elsewhere.renamed))


def new_id(fabric: str) -> str:
    """What a run that begins now is called."""
    return f"{datetime.now():%Y%m%d-%H%M%S}-{fabric}"


def _device_name(device: str) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


def _torch_device(facts: RunInfo) -> str:
    """The device as torch names it, from "cuda:0 (NVIDIA H100)"."""
    return facts.device.partition(" ")[0] or "cpu"
