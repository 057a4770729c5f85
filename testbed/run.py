"""Runs an experiment: every system and seed in turn on one fabric, recorded as it goes, resumable.

1. Everything the user can get wrong is found before anything is written.
2. A system and seed proceeds in segments of `checkpoint_steps`. Between two the clock stands still: states
   are saved, models evaluated.
3. However a run ends, what was recorded is turned into tables and plots, and says how it ended.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from testbed import checkpoint
from testbed.assembly import Assembly, threads
from testbed.checkpoint import Checkpoint, Clock
from testbed.compute import compute_model
from testbed.errors import InputError, Interrupted
from testbed.experiment import Experiment
from testbed.fabrics.base import Fabric
from testbed.fabrics.virtual import VirtualFabric
from testbed.record import info as info_file
from testbed.record.events import Checkpointed, Evaluated, Event, LinkBytes, RunEnded, RunStarted, StepDone
from testbed.record.info import DataInfo, LinkInfo, ResultInfo, RunInfo
from testbed.record.recorder import Recorder
from testbed.report.live import Progress

RESULTS = Path("results")
LATE_MS = 1.0  # of the delay stage's 99th percentile; beyond it the run says so
MODEL_FILE = "model.npz"


@dataclass(frozen=True)
class Request:
    """What the command line asks for beside the experiment itself."""

    target: str
    fabric: str  # "virtual" or "mininet", already chosen
    device: str = "cpu"
    results: Path = RESULTS
    command: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def start(experiment: Experiment, request: Request, begun: Callable[[Path], None]) -> None:
    """Run an experiment from its beginning; `begun` is called with the run's folder once there is one."""
    assembly = Assembly(experiment, request.device)
    dataset = assembly.dataset
    began = datetime.now().astimezone()
    run_id = f"{began:%Y%m%d-%H%M%S}-{request.fabric}"
    folder = _new_folder(request.results / request.target, run_id)
    profile = experiment.plan.profile
    network = {
        f"{a}>{b}": LinkInfo(goodput_mbit=link.goodput_mbit, rtt_ms=link.rtt_ms)
        for (a, b), link in experiment.plan.wan.items()
    }
    network["lan"] = LinkInfo(goodput_mbit=profile.lan.goodput_mbit, rtt_ms=profile.lan.rtt_ms)
    as_dict = experiment.as_dict()
    facts = RunInfo(
        run_id=folder.name,
        target=request.target,
        experiment=as_dict,
        experiment_hash=info_file.hash_of(as_dict),
        profile=experiment.topology.profile,
        network=network,
        topology=as_dict["topology"],
        fabric=request.fabric,
        delay_mechanism="modelled",
        compute=experiment.compute.device,
        device=_device_name(request.device),
        systems=list(experiment.systems),
        seeds=list(experiment.run.seeds),
        data=DataInfo(dataset=dataset.name, stand_in=not dataset.real, note=dataset.note),
        started_at=began.isoformat(timespec="seconds"),
        command=list(request.command),
        environment=info_file.environment(),
        notes=list(request.notes),
    )
    info_file.write_info(folder, facts)
    begun(folder)
    _run(folder, experiment, assembly, facts)


def resume(folder: Path, experiment: Experiment, facts: RunInfo, begun: Callable[[Path], None]) -> None:
    """Go on with a run that was interrupted, from the last checkpoint of each system and seed."""
    assembly = Assembly(experiment, _torch_device(facts))
    if facts.data.stand_in == assembly.dataset.real:
        here = assembly.dataset.note
        raise InputError(f"{folder}: it began with {facts.data.note}, but here is {here}; start a new run")
    folder = folder.resolve()
    begun(folder)
    _run(folder, experiment, assembly, facts)


def _run(folder: Path, experiment: Experiment, assembly: Assembly, facts: RunInfo) -> None:
    with _signals_interrupt(), threads(1), tempfile.TemporaryDirectory(prefix="tb") as scratch:
        with _open_fabric(facts.fabric, assembly, _torch_device(facts), Path(scratch)) as fabric:
            described = fabric.describe()
            facts.delay_mechanism = described.get("delay_mechanism", facts.delay_mechanism)
            facts.dilation = described.get("dilation", facts.dilation)
            facts.gate = described.get("gate", facts.gate)
            info_file.write_info(folder, facts)
            try:
                for seed in experiment.run.seeds:
                    for system in experiment.systems:
                        _Play(folder, experiment, assembly, fabric, system, seed).run()
                        facts.delay_report = fabric.delay_report()
                        facts.notes = _with_warning(facts.notes, facts.delay_report)
                        info_file.write_info(folder, facts)
            except KeyboardInterrupt:  # between two systems
                raise Interrupted(f"stopped; go on with --resume {folder}") from None


def _with_warning(notes: list[str], report: dict[str, Any]) -> list[str]:
    """The run's notes, with one on the delay stage where it was late or lost frames."""
    late_ms = report.get("lateness_p99_ms", 0.0)
    mark = "The delay line"
    kept = [note for note in notes if not note.startswith(mark)]
    if late_ms <= LATE_MS:
        return kept
    return [*kept, f"{mark} sent one frame in a hundred more than {late_ms:.1f} ms late: this machine was busy."]


class _Play:
    """One system and seed on a fabric."""

    def __init__(
        self, run_folder: Path, experiment: Experiment, assembly: Assembly, fabric: Fabric, system: str, seed: int
    ) -> None:
        self.folder = run_folder / system / f"seed-{seed}"
        self.experiment, self.assembly, self.fabric = experiment, assembly, fabric
        self.system, self.seed = system, seed
        self.steps = experiment.training.steps
        self.clock = Clock(0, 0.0)
        self.info = ResultInfo(
            system=system,
            seed=seed,
            options=experiment.as_dict()["systems"][system],
            steps=self.steps,
        )

    def run(self) -> None:
        """Play all segments that are still to play."""
        if self._is_finished():
            return
        last = checkpoint.latest(self.folder)
        self.clock = last.clock if last else self.clock
        with Recorder.resume(self.folder, self.clock.step) as self.recorder:
            info_file.write_info(self.folder, self.info)
            label = f"{self.system}, seed {self.seed}"
            with Progress(self.steps, label) as self.progress:
                self.fabric.record, self.fabric.observe = self._record, self._show
                self._loss = _StepLoss(len(self.experiment.roles.workers))
                self._wan = _WanRate()
                try:
                    self._segments(last)
                except KeyboardInterrupt:
                    self.fabric.close()  # roles in other processes would go on recording
                    self._end("interrupted", "stopped by a signal")
                    raise Interrupted(
                        f"stopped; the last checkpoint of {self.system} is at step {self.clock.step}; "
                        f"go on with --resume {self.folder.parents[1]}"
                    ) from None
                except Exception as error:
                    self.fabric.close()
                    self._end("failed", str(error))
                    raise
            self._end("finished")
        checkpoint.remove(self.folder)

    def _is_finished(self) -> bool:
        try:
            return info_file.read_info(self.folder, ResultInfo).status == "finished"
        except InputError:
            return False

    def _segments(self, last: Checkpoint | None) -> None:
        self.fabric.begin(self.system, self.seed, self.folder, self.clock.clock_s, last.folder if last else None)
        if self.clock.step == 0:  # the events of a resumed run equal those of an uninterrupted one
            self._record(RunStarted(time_s=0.0, step=0))
        every = self.experiment.run.checkpoint_steps
        while self.clock.step < self.steps:
            stop_at = min((self.clock.step // every + 1) * every, self.steps)
            clock_s = self.fabric.segment(stop_at)
            self.clock = Clock(stop_at, clock_s)
            checkpoint.write(self.folder, self.clock, self.fabric.save, self._evaluate)

    def _evaluate(self, states_folder: Path) -> None:
        """Evaluate the models of the states just saved; the last ones are kept."""
        system = self.assembly.system(self.system, self.seed)
        models = system.models(self.fabric.states(states_folder))
        for name, weights in models.items():
            result = self.assembly.evaluate(weights)
            self._record(
                Evaluated(
                    time_s=self.clock.clock_s,
                    step=self.clock.step,
                    model=name,
                    loss=result.loss,
                    accuracy=result.accuracy,
                    images=result.images,
                )
            )
        if self.clock.step == self.steps:
            self._keep(models)
        self._record(Checkpointed(time_s=self.clock.clock_s, step=self.clock.step))

    def _keep(self, models: dict[str, torch.Tensor]) -> None:
        """The trained models, parameter by parameter: `np.load(...)["full/conv1.weight"]`."""
        arrays = {
            f"{name}/{layer.name}": weights[layer.slice].reshape(layer.shape).cpu().numpy()
            for name, weights in models.items()
            if "@" not in name
            for layer in self.assembly.model.layout
        }
        with (self.folder / MODEL_FILE).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    def _record(self, event: Event) -> None:
        self.recorder.record(event)
        self._show(event)

    def _show(self, event: Event) -> None:
        match event:
            case StepDone():
                if (loss := self._loss.add(event)) is not None:
                    self.progress.update(event.step + 1, loss, event.time_s, self._wan.mbit_s)
            case LinkBytes() if "/" not in event.link:
                self._wan.add(event)

    def _end(self, how: str, error: str = "") -> None:
        self._record(RunEnded(time_s=self.clock.clock_s, step=self.clock.step, how=how, error=error))
        self.info.status, self.info.error = how, error
        self.recorder.finish()
        info_file.write_info(self.folder, self.info)


class _StepLoss:
    """The mean loss of a step once all workers have reported it."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._losses: dict[int, list[float]] = {}

    def add(self, event: StepDone) -> float | None:
        losses = self._losses.setdefault(event.step, [])
        losses.append(event.loss)
        if len(losses) < self._workers:
            return None
        del self._losses[event.step]
        return sum(losses) / len(losses)


class _WanRate:
    """What all WAN links together carried in the last interval recorded, in 10^6 bit/s on the wire."""

    def __init__(self) -> None:
        self.mbit_s: float | None = None
        self._time_s: float | None = None
        self._sum_mbit_s = 0.0

    def add(self, event: LinkBytes) -> None:
        if event.time_s != self._time_s:
            if self._time_s is not None:
                self.mbit_s = self._sum_mbit_s
            self._sum_mbit_s, self._time_s = 0.0, event.time_s
        self._sum_mbit_s += event.wire_bytes * 8e-6 / event.interval_s


def _open_fabric(name: str, assembly: Assembly, device: str, scratch: Path) -> Fabric:
    experiment = assembly.experiment
    if name == "mininet":
        from testbed.fabrics.mininet.fabric import MininetFabric  # imports Ray and Mininet
        from testbed.fidelity import gate

        def _gate(network: Any) -> dict[str, Any]:
            return gate.check(network, used=experiment.roles.wan_pairs).record()

        return MininetFabric(assembly, device, scratch, _gate if experiment.run.gate else None)
    return VirtualFabric(
        experiment.plan,
        compute_model(experiment.compute.device),
        assembly.system,
        experiment.run.link_interval_s,
        experiment.trace,
    )


def _new_folder(parent: Path, run_id: str) -> Path:
    """A folder nobody else has, also when two runs start in the same second."""
    for suffix in ("", *(f"-{k}" for k in range(2, 100))):
        folder = parent / (run_id + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise InputError(f"{folder}: cannot be made: {error.strerror}; name another folder with --out") from None
        return folder.resolve()
    raise InputError(f"{parent}: a hundred runs started in one second; wait a moment")


def _device_name(device: str) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else device


def _torch_device(facts: RunInfo) -> str:
    """The device as torch names it, from "cuda:0 (NVIDIA H100)"."""
    return facts.device.partition(" ")[0] or "cpu"


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
