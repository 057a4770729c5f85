"""Plays one system and seed on a fabric, in segments of `checkpoint_steps`, and records it.

Between two segments the clock stands still: states are saved, models evaluated. However it ends, the record says how.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from testbed import interpreter
from testbed.errors import Interrupted, NotFinite, RoleDied, RunError, as_typed, of_file
from testbed.experiment.assembly import Assembly
from testbed.fabrics.base import EndedEarly, Fabric
from testbed.files import reserving, typed_path
from testbed.harness import checkpoint, divergence
from testbed.harness.checkpoint import Checkpoint, Clock
from testbed.harness.not_finite import is_divergence
from testbed.record import info as info_file
from testbed.record import lines
from testbed.record.events import Checkpointed, Evaluated, Event, RunEnded, RunStarted, StepDone
from testbed.record.held import Held
from testbed.record.info import ResultInfo, RunInfo
from testbed.record.recorder import Recorder
from testbed.record.tensorboard import Scalars
from testbed.report.numbers import reached
from testbed.report.numbers.asked import Target, reported
from testbed.report.plain_progress import Watcher, watcher
from testbed.workloads.evaluation import Evaluation

MODEL_FILE = "model.npz"
RESERVED = ".reserved"  # room for the end of a record, while it is written


def place_of(folder: Path, system: str, seed: int) -> Path:
    """Where the records of a system and seed lie in a run's folder."""
    return folder / system / f"seed-{seed}"


def label(system: str, seed: int) -> str:
    return f"{system}, seed {seed}"


class Play:
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
        self.folder = place_of(run_folder, system, seed)
        self.facts, self.assembly, self.fabric = facts, assembly, fabric
        self.experiment = experiment = assembly.experiment
        self.system, self.seed = system, seed
        self.steps = experiment.training.steps
        self.clock = Clock(0, 0.0)
        self._probed_enough = False
        self._held = Held(self._write, to_be_finite=not experiment.compute.timing_only)
        self._stepped = False  # whether a worker has recorded a step
        self._watchers: list[Watcher | Scalars] = []
        self.info = ResultInfo(
            system=system,
            seed=seed,
            options=experiment.as_dict()["systems"][system],
            steps=self.steps,
        )

    def run(self) -> None:
        """Play all segments that are still to play, and write the tables."""
        if (before := checkpoint.ended(self.folder)) is not None:
            self._complete(before)
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
            except EndedEarly as end:  # evaluated and kept as of the last checkpoint
                how, self.clock = end.how, Clock(self.clock.step, end.clock_s)
            except KeyboardInterrupt:
                self.fabric.close()  # roles in other processes would go on recording
                self._end("interrupted", "stopped by a signal")
                last = checkpoint.latest(self.folder)  # not that of the clock, where it came while that was written
                raise Interrupted(
                    f"stopped; the last checkpoint of {self.system} is at step {last.clock.step if last else 0} of "
                    f"{self.steps}; go on with {interpreter.typed()} run --resume {typed_path(self.folder.parents[1])}"
                ) from None
            except BaseException as error:  # an exit() in a plug-in's code ends the play, and not the testbed
                self.fabric.close()
                failure = self._failure(error)
                with suppress(
                    OSError
                ):  # tables that do not fit on a full disk are made of the events when they are read
                    self._end("failed", str(failure))
                if is_divergence(failure):  # from there on it would diverge again
                    checkpoint.remove(self.folder)
                raise failure from (error.__cause__ if failure is error else error)
            self._end(how)
        checkpoint.remove(self.folder)

    def _failure(self, error: BaseException) -> BaseException:
        """What the run fails with: an error that names what was played, where a role of it, or code of it, failed."""
        if isinstance(error, OSError):
            return self._of_disk(error)
        name = label(self.system, self.seed)
        if isinstance(error, RoleDied) and not is_divergence(error):
            error.args = (f"{name}: {error}",)
        return as_typed(error, name, RunError)

    def _of_disk(self, error: OSError) -> RunError:
        go_on = f"go on with {interpreter.typed()} run --resume {typed_path(self.folder.parents[1])}"
        return RunError(f"{of_file(error, self.folder)}; {go_on}")

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Show the run's events to whoever watches them as they come."""
        roles = self.experiment.roles_of(self.system)
        goodput_mbit = {name: link.goodput_mbit for name, link in self.facts.network.items()}
        with ExitStack() as stack:
            progress = watcher()(
                label(self.system, self.seed), self.steps, roles, goodput_mbit, can_draw=self._can_draw
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
            self._check_stepped()
            if self.experiment.compute.timing_only:  # there is nothing to keep or to test
                continue
            checkpoint.write(self.folder, self.clock, self.fabric.save, self._evaluate)
            if self._probed_enough or self._is_over(clock_s):  # probes of processes are handed in when these save
                break

    def _check_stepped(self) -> None:
        """Raise RunError where no worker has recorded a step; not all that other processes record is seen here."""
        if self.facts.fabric == "virtual" and not self._stepped:
            raise RunError(
                f"{label(self.system, self.seed)}: no worker has recorded a step: its `worker` is to call "
                "node.step_done(step, loss) at the end of each"
            )

    def _is_over(self, time_s: float) -> bool:
        """Whether the run's time is over, where it is not probes that tell."""
        run = self.experiment.run
        return run.is_over(time_s) and not (run.stop_at_target and self._probing)

    def _is_enough(self) -> bool:
        """Whether probes show that the target has been reached, will not be within `stop_after_s`, or never will."""
        from testbed.record import frames  # pyarrow, which only a search needs

        parsed, target = frames.parse(self.folder / lines.FILE_NAME), Target.of(self.facts)
        probes = parsed.evaluations[parsed.evaluations["probe"]]
        if not np.isfinite(probes["train_loss"].iloc[-1]):
            return True
        asked = [] if target.loss is None else [reached.by_loss(parsed.steps, probes, target)]
        if target.missed_by(probes) is not None:
            asked.append(reached.by_test(probes, probes, target))
        return (bool(asked) and all(asked)) or self.experiment.run.is_over(reached.judged_s(probes, target.window))

    @property
    def _probing(self) -> int:
        return 0 if self.experiment.compute.timing_only else self.experiment.run.probe_steps

    def _probe(self, step: int, time_s: float, states: Mapping[str, Any]) -> bool:
        """Test the model that is reported as it was at a step; the clock does not go on meanwhile."""
        models = self._models(states)
        divergence.note(models, time_s, step, self._record)
        name = reported(models, Target.of(self.facts).model)
        result, train_loss = self.assembly.probe(models[name])
        self._record(self._evaluated(name, result, time_s=time_s, step=step, probe=True, train_loss=train_loss))
        self._probed_enough = self._is_enough() if self.experiment.run.stop_at_target else self._is_over(time_s)
        return self._probed_enough

    def _models(self, states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The models that the system makes of the roles' states; RunError where they are none."""
        models = self.assembly.system(self.system, self.seed).models(states)
        size, name = self.assembly.workload.layout.size, label(self.system, self.seed)
        if not isinstance(models, dict) or not models:
            raise RunError(
                f"{name}: its `models` returned {models!r:.80}, not flat weights by name, as {{'full': ...}}"
            )
        for model, weights in models.items():
            if not isinstance(weights, torch.Tensor) or weights.numel() != size:
                raise RunError(
                    f"{name}: its `models` has no tensor of {size:,} weights as '{model}', which is a model's"
                )
        return models

    def _evaluated(self, model: str, result: Evaluation, **more: Any) -> Evaluated:
        metrics: dict[str, float | None] = dict(result.metrics)
        accuracy = metrics.pop("accuracy", None)
        return Evaluated(
            model=model, loss=result.loss, accuracy=accuracy, images=result.examples, metrics=metrics, **more
        )

    def _evaluate(self, states_folder: Path) -> None:
        """Test the model of the states just saved that is reported; at the end all of them, which are kept."""
        models = self._models(self.fabric.states(states_folder))
        if self.clock.step == self.steps:
            self._keep(models)
        else:  # the run waits
            name = reported(models, Target.of(self.facts).model)
            models = {name: models[name]}
        losses = {}
        for name, weights in models.items():
            result = self.assembly.evaluate(weights, quickly="@" in name)  # a region's copy is nobody's result
            self._record(self._evaluated(name, result, time_s=self.clock.clock_s, step=self.clock.step))
            losses[name] = result.loss
        if wrong := [name for name, loss in losses.items() if not np.isfinite(loss)]:
            raise NotFinite.of(f"test loss of model {wrong[0]} at step {self.clock.step}")
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
        self._stepped = self._stepped or isinstance(event, StepDone)
        self._held(event)

    def _write(self, event: Event) -> None:
        self.recorder.record(event)
        self._show(event)

    def _show(self, event: Event) -> None:
        for each in self._watchers:
            each.see(event)

    def _complete(self, before: ResultInfo) -> None:
        """Do what was left to do when it was played to its end and then killed."""
        if not before.checksums:
            self.info.status, self.info.error = before.status, before.error
            with Recorder.join(self.folder) as recorder:
                self.info.checksums = recorder.finish()
            info_file.write_info(self.folder, self.info)
        checkpoint.remove(self.folder)

    def _end(self, how: str, error: str = "") -> None:
        self.recorder.require()  # or it would be said to have ended, with nothing recorded
        self.info.status, self.info.error = how, error
        try:
            self._record(RunEnded(time_s=self.clock.clock_s, step=self.clock.step, how=how, error=error))
        finally:
            info_file.write_info(self.folder, self.info)  # before the tables, for which there may be no room
        self.info.checksums = self.recorder.finish()
        info_file.write_info(self.folder, self.info)
