"""What a role does, as the records have it: the time it was charged, what it sent, and of the first steps all of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import SupportsFloat

from testbed.message import Message
from testbed.record.events import Computed, Delivered, Event, Sent, Sizes, StepDone
from testbed.roles.compute import Work

NANO = 9  # decimals of what is recorded of where time went: of millions of steps each digit is megabytes
SIZES_A_LINE = 50  # of messages of a kind: fewer lines, and little is lost where a run is killed
MOST_A_STEP = 1000  # events of a role's timeline: one without steps of its own is watched for so many


class Ledger:
    """What one role does in one segment.

    Parameters
    ----------
    name : the role's
    now, record : its clock, and where its events go

    Attributes
    ----------
    busy_s, codec_s : compute time charged to this role so far, codecs apart, and codecs
    noted : kinds of messages whose sizes are recorded
    timeline_steps : of so many steps every computation and message is recorded; 0 for none
    """

    def __init__(self, name: str, now: Callable[[], float], record: Callable[[Event], None]) -> None:
        self._name, self._now, self._record = name, now, record
        self.busy_s = self.codec_s = 0.0
        self.noted: Collection[str] = ()
        self.timeline_steps = 0
        self._step = 0
        self._watched = 0  # events of the timeline so far
        self._noted: dict[str, int] = {}  # of each kind, the step of the last one
        self._sizes: dict[str, dict[int, list[int]]] = {}  # of each kind, by step, those that are not recorded yet
        self._sent: dict[str, list[int]] = {}  # by peer: messages and bytes, this segment
        self._before_step_s = (0.0, 0.0)  # busy_s and codec_s when the last step was done

    def begin(self, neighbours: Sequence[str]) -> None:
        """Nothing has been sent to these yet."""
        self._noted, self._sizes = {}, {}
        self._sent = {peer: [0, 0] for peer in neighbours}

    def step(self, step: int) -> None:
        """The role begins a step."""
        self._step = step

    @property
    def _watching(self) -> bool:
        return self._step < self.timeline_steps and self._watched < MOST_A_STEP * self.timeline_steps

    def charged(self, work: Work, seconds: float, began_s: float, fn: Callable[..., object]) -> None:
        """A computation `fn` that began at `began_s` takes `seconds`."""
        self.codec_s += seconds * work.coding_share
        self.busy_s += seconds * (1 - work.coding_share)
        if self._watching and seconds > 0:
            self._watched += 1
            what = getattr(fn, "__name__", "").strip("_<>")
            done_s, coding = round(began_s + seconds, NANO), round(seconds * work.coding_share, NANO)
            took_s = round(seconds, NANO)
            self._record(Computed(time_s=done_s, node=self._name, seconds=took_s, codec_s=coding, what=what))

    def sent(self, peer: str, message: Message) -> None:
        """A message is handed to the transport."""
        sent = self._sent[peer]
        sent[0] += 1
        sent[1] += message.nbytes
        if message.kind in self.noted and self._noted.get(message.kind) != message.step:  # once for all it is sent to
            self._noted[message.kind] = message.step
            self._sizes.setdefault(message.kind, {})[message.step] = [buffer.nbytes for buffer in message.buffers]
            if len(self._sizes[message.kind]) == SIZES_A_LINE:
                self._record_sizes(message.kind)

    def _record_sizes(self, kind: str) -> None:
        steps = self._sizes.pop(kind)
        buffers = list(steps.values())
        self._record(Sizes(time_s=self._now(), node=self._name, kind=kind, steps=list(steps), buffers=buffers))

    def arrived(self, peer: str, message: Message, sent_s: float) -> None:
        """A message has come that was sent at `sent_s`."""
        if self._watching:
            self._watched += 1
            self._record(
                Delivered(
                    time_s=round(self._now(), NANO),
                    node=self._name,
                    peer=peer,
                    kind=message.kind,
                    sent_s=round(sent_s, NANO),
                    nbytes=message.nbytes,
                )
            )

    def step_done(self, step: int, loss: SupportsFloat, lan_s: float, wan_s: float) -> None:
        """A worker has finished a step."""
        busy_s, codec_s = self.busy_s - self._before_step_s[0], self.codec_s - self._before_step_s[1]
        self._before_step_s = (self.busy_s, self.codec_s)
        self._record(
            StepDone(
                time_s=self._now(),
                node=self._name,
                step=step,
                loss=loss,  # type: ignore[arg-type]  # a scalar on a device becomes a number before it is written
                compute_s=round(busy_s, NANO),
                codec_s=round(codec_s, NANO),
                lan_s=round(lan_s, NANO),
                wan_s=round(wan_s, NANO),
            )
        )

    def record_sent(self) -> None:
        """Record what has been sent to each neighbour since the last time, and all sizes that have not been yet."""
        for kind in list(self._sizes):
            self._record_sizes(kind)
        for peer, (messages, nbytes) in self._sent.items():
            self._record(Sent(time_s=self._now(), node=self._name, peer=peer, messages=messages, nbytes=nbytes))
            self._sent[peer] = [0, 0]
