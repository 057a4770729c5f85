"""Runs an experiment: every system and seed in turn on one fabric, recorded as it goes, resumable.

1. Everything the user can get wrong is found before anything is written.
2. A system and seed proceeds in segments of `checkpoint_steps`. Between two the clock stands still: states
   are saved, models evaluated.
3. However a run ends, what was recorded is turned into tables and plots, and says how it ended.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed import plugins
from testbed.errors import InputError, Interrupted, RunError, of_file
from testbed.experiment.assembly import Assembly, threads
from testbed.experiment.load import from_dict
from testbed.experiment.schema import Experiment
from testbed.fabrics.base import Fabric, TraceEnded
from testbed.fabrics.registry import FABRICS, FabricKind, Setting
from testbed.files import new_folder, reserving
from testbed.harness import checkpoint, divergence, notes
from testbed.harness.checkpoint import Checkpoint, Clock
from testbed.harness.lock import held_too
from testbed.harness.pool import HERE, Elsewhere, Errand, RunAll, run_all, signals_interrupt
from testbed.record import info as info_file
from testbed.record import lines
from testbed.record.events import Checkpointed, Evaluated, Event, RunEnded, RunStarted
from testbed.record.held import Held
from testbed.record.info import MODELLED_NETWORK, DataInfo, LinkInfo, MetricInfo, PluginInfo, ResultInfo, RunInfo
from testbed.record.recorder import Recorder
from testbed.record.stolen import Stolen
from testbed.record.tensorboard import Scalars
from testbed.report.numbers import reached
from testbed.report.numbers.asked import Target, reported
from testbed.report.plain_progress import Watcher, watcher
from testbed.roles.compute import MEASURED
from testbed.wan.profile import Link, Pair, Profile
from testbed.wan.store import save_profile
from testbed.workloads import Workload
from testbed.workloads.devices import dealt
from testbed.workloads.evaluation import Evaluation
from testbed.workloads.sized import SizedWorkload

RESULTS = Path("results")
MODEL_FILE = "model.npz"
RESERVED = ".reserved"  # room for the end of a record, while it is written
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
        fabric=request.fabric,
        delay_mechanism=MODELLED_NETWORK,
        compute=experiment.compute.device,
        device=_device_name(request.device),
        fidelity={} if kind.virtual_time else _fidelity(request.results, experiment.topology.profile),
        systems=list(experiment.systems),
        seeds=list(experiment.run.seeds),
        data=DataInfo(dataset=dataset.name, stand_in=not dataset.real, note=dataset.note),
        metric=_metric_info(workload),
        parameters=workload.layout.size,
        started_at=began.isoformat(timespec="seconds"),
        tensorboard=request.tensorboard,
        command=list(request.command),
        environment=info_file.environment(),
        notes=[*request.notes, *notes.beyond_the_paper(experiment), *notes.faults_without_effect(experiment)],
    )
    info_file.write_info(folder, facts)
    return folder.resolve()


def _links(profile: Profile, wan: Mapping[Pair, Link]) -> dict[str, LinkInfo]:
    """The links between regions, and "lan"."""
    links = {f"{a}>{b}": link for (a, b), link in wan.items()} | {"lan": profile.lan}
    return {name: LinkInfo(goodput_mbit=link.goodput_mbit, rtt_ms=link.rtt_ms) for name, link in links.items()}


def _metric_info(workload: Workload | SizedWorkload) -> MetricInfo:
    """The workload's main metric."""
    name = workload.main_metric
    metric = workload.metrics[name]
    return MetricInfo(name=name, label=metric.label, unit=metric.unit, better=metric.better)


def _fidelity(results: Path, profile: str) -> dict[str, Any]:
    """The evidence there is for the emulated network of a profile on this machine's kernel."""
    from testbed.fidelity import report as fidelity_report  # rich

    return fidelity_report.evidence(results / "fidelity", profile, platform.release())


def ready(folder: Path, jobs: int | None = None, elsewhere: Elsewhere = HERE) -> Callable[[], None]:
    """What plays all that is still to be played of the run in `folder`, from each system's and seed's last checkpoint.

    `jobs` systems and seeds are played at once, each in a process of its own; None: as many as make sense. A cluster
    that was joined may play them `elsewhere`. What is returned raises RunError when the run fails or is stopped; what
    was recorded stays.

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
    now = {each.name: each.sha256 for each in plugins.loaded()}
    for before in facts.plugins:
        if now.get(before.name) != before.sha256:
            raise InputError(f"{folder}: the plug-in {before.name} is not what the run began with; start a new run")
    began, goes_on = facts.environment.commit, info_file.environment().commit
    if began and goes_on and began != goes_on:
        note = f"It began at commit {began[:10]} and went on at {goes_on[:10]}."
        facts.notes += [] if note in facts.notes else [note]
        info_file.write_info(folder, facts)
    if elsewhere.run_all is not None or chosen > 1:
        at_once = elsewhere.run_all or partial(run_all, processes=chosen)
        return lambda: play_at_once(plays(folder.resolve(), facts), at_once, folder.resolve())
    return partial(_run, folder.resolve(), experiment, assembly, facts, elsewhere)


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
    with signals_interrupt(), threads(1):
        with _open_fabric(facts.fabric, assembly, _torch_device(facts), elsewhere) as fabric:
            described = fabric.describe()
            facts.delay_mechanism = described.get("delay_mechanism", facts.delay_mechanism)
            facts.dilation = described.get("dilation", facts.dilation)
            facts.gate = described.get("gate", facts.gate)
            profile = None
            if (measured := fabric.measured()) is not None:
                profile = _keep_measured(measured, folder)
                facts.profile, facts.network = profile.stem, _links(measured, measured.pairs)
            info_file.write_info(folder, facts)
            repeats = FABRICS[facts.fabric].virtual_time and facts.compute != MEASURED
            stolen = None if repeats else Stolen()
            try:
                for seed in experiment.run.seeds:
                    for system in experiment.systems:
                        _Play(folder, facts, assembly, fabric, system, seed).run()
                        facts.delay_report, facts.nodes = fabric.delay_report(), fabric.nodes()
                        facts.notes = notes.with_warnings(
                            facts.notes, facts.delay_report, stolen.share if stolen else 0.0
                        )
                        facts.notes = notes.of_nodes(facts.notes, facts.nodes, profile)
                        info_file.write_info(folder, facts)
            except KeyboardInterrupt:  # between two systems
                raise Interrupted(f"stopped; go on with --resume {folder}") from None


def _keep_measured(measured: Profile, folder: Path) -> Path:
    """Write down what a real network was found to be, beside what it was when a run that is resumed began."""
    before = len(list(folder.glob(f"{measured.name}*.toml")))
    name = f"{measured.name}-{before + 1}" if before else measured.name
    return save_profile(replace(measured, name=name), folder)


def plays(folder: Path, facts: RunInfo) -> list[Errand]:
    """What is still to be played of the run in `folder`: a system and seed each, on a fabric of its own."""
    return [
        Errand(_label(system, seed), _play_alone, place, facts.experiment, (facts, system, seed, number))
        for number, (seed, system) in enumerate(product(facts.seeds, facts.systems))
        if not checkpoint.is_finished(place := _place(folder, system, seed))
    ]


def play_at_once(errands: Sequence[Errand], run_all: RunAll, folder: Path) -> None:
    """Play what `plays` names, of the run or the series in `folder`; raises RunError."""
    with signals_interrupt():
        try:
            run_all(errands)
        except (KeyboardInterrupt, Interrupted):
            raise Interrupted(f"stopped; go on with --resume {folder}") from None


def _play_alone(
    place: Path, experiment: dict[str, Any], facts: RunInfo, system: str, seed: int, number: int = 0
) -> None:
    """One system and seed on a fabric of its own, in this process; of several GPUs on the one that is its turn."""
    folder, device = place.parents[1], dealt(_torch_device(facts), number)
    assembly = Assembly(from_dict(experiment, info_file.FILE_NAME), device, testing_threads=1)
    with held_too(folder), signals_interrupt(), threads(1), _open_fabric(facts.fabric, assembly, device) as fabric:
        _Play(folder, facts, assembly, fabric, system, seed, can_draw=False).run()


def _place(folder: Path, system: str, seed: int) -> Path:
    """Where the records of a system and seed lie in a run's folder."""
    return folder / system / f"seed-{seed}"


def _label(system: str, seed: int) -> str:
    return f"{system}, seed {seed}"


class _Play:
    """One system and seed on a fabric."""

    def __init__(
        self,
        run_folder: Path,
        facts: RunInfo,
        assembly: Assembly,
        fabric: Fabric,
        system: str,
        seed: int,
        can_draw: bool = True,
    ) -> None:
        self._can_draw = can_draw  # a live view: several at once would overwrite each other
        self.folder = _place(run_folder, system, seed)
        self.facts, self.assembly, self.fabric = facts, assembly, fabric
        self.experiment = experiment = assembly.experiment
        self.system, self.seed = system, seed
        self.steps = experiment.training.steps
        self.clock = Clock(0, 0.0)
        self._held = Held(self._write)
        self._watchers: list[Watcher | Scalars] = []
        self.info = ResultInfo(
            system=system,
            seed=seed,
            options=experiment.as_dict()["systems"][system],
            steps=self.steps,
        )

    def run(self) -> None:
        """Play all segments that are still to play."""
        if checkpoint.is_finished(self.folder):
            return
        last = checkpoint.latest(self.folder)
        self.clock = last.clock if last else self.clock
        with Recorder.resume(self.folder, self.clock.step) as self.recorder:
            info_file.write_info(self.folder, self.info)
            how = "finished"
            try:
                with reserving(self.folder / RESERVED), self._watching():
                    self.fabric.record, self.fabric.observe = self._record, self._show
                    self.fabric.probe, self.fabric.probe_steps = self._probe if self._probing else None, self._probing
                    self._segments(last)
            except TraceEnded as end:  # evaluated and kept as of the last checkpoint
                how, self.clock = "ended", Clock(self.clock.step, end.clock_s)
            except KeyboardInterrupt:
                self.fabric.close()  # roles in other processes would go on recording
                self._end("interrupted", "stopped by a signal")
                raise Interrupted(
                    f"stopped; the last checkpoint of {self.system} is at step {self.clock.step}; "
                    f"go on with --resume {self.folder.parents[1]}"
                ) from None
            except Exception as error:
                self.fabric.close()
                failure = self._of_disk(error) if isinstance(error, OSError) else error
                with suppress(
                    OSError
                ):  # tables that do not fit on a full disk are made of the events when they are read
                    self._end("failed", str(failure))
                raise failure from error.__cause__
            self._end(how)
        checkpoint.remove(self.folder)

    def _of_disk(self, error: OSError) -> RunError:
        return RunError(f"{of_file(error, self.folder)}; go on with --resume {self.folder.parents[1]}")

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Show the run's events to whoever watches them as they come."""
        roles = self.experiment.roles_of(self.system)
        goodput_mbit = {name: link.goodput_mbit for name, link in self.facts.network.items()}
        with ExitStack() as stack:
            progress = watcher()(
                _label(self.system, self.seed), self.steps, roles, goodput_mbit, can_draw=self._can_draw
            )
            stack.enter_context(progress)
            self._watchers = [progress]
            if self.facts.tensorboard:
                scalars = Scalars(self.folder, len(roles.workers), self.facts.started_at, self.clock.step)
                self._watchers.append(stack.enter_context(scalars))
            yield

    def _segments(self, last: Checkpoint | None) -> None:
        self.fabric.begin(self.system, self.seed, self.folder, self.clock.clock_s, last.folder if last else None)
        if self.clock.step == 0:  # the events of a resumed run equal those of an uninterrupted one
            self._record(RunStarted(time_s=0.0, step=0))
        every = self.experiment.run.checkpoint_steps
        while self.clock.step < self.steps:
            stop_at = min((self.clock.step // every + 1) * every, self.steps)
            clock_s = self.fabric.segment(stop_at)
            self.clock = Clock(stop_at, clock_s)
            if self.experiment.compute.timing_only:  # there is nothing to keep or to test
                continue
            checkpoint.write(self.folder, self.clock, self.fabric.save, self._evaluate)
            if self.experiment.run.stop_at_target and self._may_stop():
                break

    def _may_stop(self) -> bool:
        """Whether the target has been reached, or never will be."""
        from testbed.record import frames  # pyarrow

        parsed, target = frames.parse(self.folder / lines.FILE_NAME), Target.of(self.facts)
        probes = parsed.evaluations[parsed.evaluations["probe"]]
        if len(probes) and not np.isfinite(probes["train_loss"].iloc[-1]):
            return True
        asked = [] if target.loss is None else [reached.by_loss(parsed.steps, probes, target)]
        if target.missed_by(probes) is not None:
            asked.append(reached.by_test(probes, probes, target))
        return bool(asked) and all(asked)

    @property
    def _probing(self) -> int:
        return 0 if self.experiment.compute.timing_only else self.experiment.run.probe_steps

    def _probe(self, step: int, time_s: float, states: Mapping[str, Any]) -> None:
        """Test the model that is reported as it was at a step; the clock does not go on meanwhile."""
        models = self.assembly.system(self.system, self.seed).models(states)
        divergence.note(models, time_s, step, self._record)
        name = reported(models, Target.of(self.facts).model)
        result, train_loss = self.assembly.probe(models[name])
        self._record(self._evaluated(name, result, time_s=time_s, step=step, probe=True, train_loss=train_loss))

    def _evaluated(self, model: str, result: Evaluation, **more: Any) -> Evaluated:
        metrics: dict[str, float | None] = dict(result.metrics)
        accuracy = metrics.pop("accuracy", None)
        return Evaluated(
            model=model, loss=result.loss, accuracy=accuracy, images=result.examples, metrics=metrics, **more
        )

    def _evaluate(self, states_folder: Path) -> None:
        """Evaluate the models of the states just saved; the last ones are kept."""
        system = self.assembly.system(self.system, self.seed)
        models = system.models(self.fabric.states(states_folder))
        for name, weights in models.items():
            result = self.assembly.evaluate(weights, quickly="@" in name)  # a region's copy is nobody's result
            self._record(self._evaluated(name, result, time_s=self.clock.clock_s, step=self.clock.step))
        if self.clock.step == self.steps:
            self._keep(models)
        self._record(Checkpointed(time_s=self.clock.clock_s, step=self.clock.step))

    def _keep(self, models: dict[str, torch.Tensor]) -> None:
        """The trained models, parameter by parameter: `np.load(...)["full/conv1.weight"]`."""
        arrays = {
            f"{name}/{layer.name}": weights[layer.slice].reshape(layer.shape).cpu().numpy()
            for name, weights in models.items()
            if "@" not in name
            for layer in self.assembly.workload.layout
        }
        with (self.folder / MODEL_FILE).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def _record(self, event: Event) -> None:
        self._held(event)

    def _write(self, event: Event) -> None:
        self.recorder.record(event)
        self._show(event)

    def _show(self, event: Event) -> None:
        for each in self._watchers:
            each.see(event)

    def _end(self, how: str, error: str = "") -> None:
        self.info.status, self.info.error = how, error
        try:
            self._record(RunEnded(time_s=self.clock.clock_s, step=self.clock.step, how=how, error=error))
        finally:
            info_file.write_info(self.folder, self.info)  # before the tables, for which there may be no room
        self.info.checksums = self.recorder.finish()
        info_file.write_info(self.folder, self.info)


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
