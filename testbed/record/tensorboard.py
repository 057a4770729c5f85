"""Scalars for TensorBoard, written beside the records while a run goes on: `tensorboard --logdir <run>`.

For each system and seed (a "run" in TensorBoard's words, e.g. "weightgrad/seed-0"), by the number of steps done:

    train/loss                mean over the workers
    train/step_time_s         on the run's clock
    train/bits                MQGrad: bits a gradient element
    wan/bytes                 on the wire of all WAN links since the start, as of the last interval recorded
    test/loss/<model>, test/accuracy/<model>     of each model evaluated; accuracy is a fraction
    test/<metric>/<model>                        other metrics of the data set

Wall times are the run's clock, counted from when the run began: TensorBoard's axis "Relative" then shows emulated or
virtual time.
"""

from __future__ import annotations

import importlib.util
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from testbed.errors import InputError
from testbed.record import lines
from testbed.record.events import Bits, Checkpointed, Evaluated, Event, LinkBytes, StepDone
from testbed.record.steps import Step, Steps, WanUse


def require() -> None:
    """Raise InputError where TensorBoard is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise InputError("--tensorboard needs a package that is not here: pip install 'geo-testbed[tensorboard]'")


class Scalars:
    """Writes one system's and seed's scalars to an event file in its folder.

    Parameters
    ----------
    folder : of the system and seed; its `events.jsonl` holds what was recorded up to `done`
    workers : how many report each step
    began_at : when the run began, ISO 8601
    done : steps done where the run goes on from a checkpoint; TensorBoard forgets what came after
    """

    def __init__(self, folder: Path, workers: int, began_at: str, done: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter  # optional, and slow to import

        self._began_s = datetime.fromisoformat(began_at).timestamp()
        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)
        self._steps, self._wan = Steps(workers), WanUse()
        self._last = Step(done, 0.0, 0.0)
        self._unwritten: Step | None = None  # the last step, until the WAN's bytes during it are known
        for line in lines.whole_lines(folder / lines.FILE_NAME):
            if line.startswith((lines.STEP_PREFIX, *lines.LINK_PREFIXES)):
                self._remember(lines.decode(line))

    def _remember(self, event: Event | None) -> None:
        """Take in what happened before the checkpoint."""
        if isinstance(event, LinkBytes):
            self._wan.add(event)
        elif isinstance(event, StepDone) and (step := self._steps.add(event)):
            self._last = step

    def see(self, event: Event) -> None:
        """Write what the event says, if it is one of those above."""
        match event:
            case StepDone() if step := self._steps.add(event):
                self._step(step)
            case LinkBytes():
                self._wan.add(event)
            case Evaluated():
                for name, value in {"loss": event.loss, "accuracy": event.accuracy, **event.metrics}.items():
                    if value is not None:
                        self._add(f"test/{name}/{event.model}", value, event.step, event.time_s)
            case Bits():
                self._add("train/bits", event.bits, event.step + 1, event.time_s)
            case Checkpointed():
                self._write_wan()
                self._writer.flush()

    def _step(self, step: Step) -> None:
        self._write_wan()
        self._add("train/loss", step.loss, step.done, step.time_s)
        self._add("train/step_time_s", step.time_s - self._last.time_s, step.done, step.time_s)
        self._last = self._unwritten = step

    def _write_wan(self) -> None:
        if (step := self._unwritten) is not None:
            self._add("wan/bytes", self._wan.wire_bytes, step.done, step.time_s)
            self._unwritten = None

    def _add(self, name: str, value: float, done: int, time_s: float) -> None:
        self._writer.add_scalar(name, value, done, walltime=self._began_s + time_s)

    def close(self) -> None:
        """Write what is left and close the file; a second call does nothing."""
        self._write_wan()
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
