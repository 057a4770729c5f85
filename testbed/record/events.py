"""What a run writes, line by line, to `events.jsonl`: one typed event a line.

Every time is seconds on the run's clock (dilation already divided out), `0.0` being the start of step 0.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=2**50)]
"""What can be added up thousands of times in 64 bits; a larger one, or one below 0, is damage."""

LONGEST_RUN_S = 1e7
"""115 days: a run's clock goes no further, and one that has is a damaged record."""

LONGEST_INTERVAL_S = 1e4
"""A `LinkBytes` stands for at most so long, which bounds the memory that reading it takes: a row a second."""


class Event(msgspec.Struct, tag_field="event", frozen=True, kw_only=True, omit_defaults=True):
    """Base of all events.

    `node` is the role that recorded it ("us-east-1/w0"; "" for the run itself); `time_s` when.
    """

    time_s: float
    node: str = ""


class RunStarted(Event, tag="run-started", frozen=True, kw_only=True):
    """A run (or its resumption) of one system and seed begins at `step`."""

    step: Count


class StepDone(Event, tag="step", frozen=True, kw_only=True):
    """A worker has finished a step: its local loss, and where the time since its last one went.

    `compute_s` is what the worker itself was charged for computing, `codec_s` for encoding and decoding (then
    `compute_s` is without it). `lan_s` and `wan_s` are what messages spent on links inside and between regions, on
    the chain of messages that this step's end waited for, as far as the worker did wait. What is left of the step was
    waiting: for the servers' own computing, for slower workers, for a protocol's guard. None is what was not recorded.
    In a timing-only run one event stands for all `workers` of a region that did the same at the same moment.
    """

    step: Count
    loss: float
    compute_s: float
    codec_s: float | None = None
    lan_s: float | None = None
    wan_s: float | None = None
    workers: Count = 1


class Computed(Event, tag="computed", frozen=True, kw_only=True):
    """In a timeline: `node` has computed `what` for `seconds` up to `time_s`, `codec_s` of them coding or decoding."""

    what: str
    seconds: float
    codec_s: float = 0.0


class Delivered(Event, tag="delivered", frozen=True, kw_only=True):
    """In a timeline: a message of `peer`, sent at `sent_s`, has arrived at `node`; `nbytes` as TCP carries it."""

    peer: str
    kind: str
    sent_s: float
    nbytes: Count


class Evaluated(Event, tag="evaluated", frozen=True, kw_only=True):
    """Test loss of one model, its accuracy (a fraction) where it has one, and other metrics of its data set by name.

    `model` is "full", "quantized" or "ema", with "@region" behind it where each data center has its own; the
    plain name is then the mean over data centers of the weights. A `probe` is what targets are judged by: the model
    that is reported, often, on fewer test examples (`images`) and on some training examples (`train_loss`).
    """

    step: Count
    model: str
    loss: float
    accuracy: float | None = None
    images: Count  # test examples, of whatever kind
    metrics: dict[str, float | None] = {}  # None: not a number
    probe: bool = False
    train_loss: float | None = None


class LinkBytes(Event, tag="links", frozen=True, kw_only=True):
    """Bytes that left on directed links between `time_s - interval_s` and `time_s`, on the wire, where any did.

    A link is "src>dst": two regions for a WAN link ("us-east-1>us-east-2"), a host and its region for a LAN
    link ("us-east-1/w0>us-east-1" up, "us-east-1>us-east-1/w0" down), or those of all workers for which one plays
    ("us-east-1/w0..w9>us-east-1").
    """

    interval_s: float
    wire_bytes: dict[str, Count]

    @property
    def wan_bytes(self) -> int:
        """Of all WAN links together."""
        return sum(nbytes for link, nbytes in self.wire_bytes.items() if is_wan(link))


class OneLink(Event, tag="link", frozen=True, kw_only=True):
    """A link a line, as older records have it; it is read as `LinkBytes`."""

    link: str
    interval_s: float
    wire_bytes: Count

    def today(self) -> LinkBytes:
        """The same as it is written now."""
        return LinkBytes(
            time_s=self.time_s, node=self.node, interval_s=self.interval_s, wire_bytes={self.link: self.wire_bytes}
        )


def is_wan(link: str) -> bool:
    """Whether a link "src>dst" joins two regions (a host's name has a "/")."""
    return "/" not in link


class Sent(Event, tag="sent", frozen=True, kw_only=True):
    """What `node` has sent to `peer` in the segment that ended: messages, and their bytes as TCP carries them."""

    peer: str
    messages: Count
    nbytes: Count


class Sizes(Event, tag="sizes", frozen=True, kw_only=True):
    """Messages of a `kind` whose size depends on the data, which `node` has sent: of each its step and its buffers'
    bytes."""

    kind: str
    steps: list[Count]
    buffers: list[list[Count]]


class OneSize(Event, tag="size", frozen=True, kw_only=True):
    """A message a line, as older records have it; it is read as `Sizes`."""

    step: Count
    kind: str
    buffers: list[Count]

    def today(self) -> Sizes:
        """The same as it is written now."""
        return Sizes(time_s=self.time_s, node=self.node, kind=self.kind, steps=[self.step], buffers=[self.buffers])


class Capacity(Event, tag="capacity", frozen=True, kw_only=True):
    """Trace replay: WAN link `link` ("src>dst") was set to `goodput_mbit`, `late_s` after the trace's time.

    `rtt_ms` is twice its new one-way delay, None where that stayed.
    """

    link: str
    goodput_mbit: float
    rtt_ms: float | None = None
    late_s: float = 0.0


class Cut(Event, tag="cut", frozen=True, kw_only=True):
    """WAN link `link` ("src>dst", or of two hosts) loses all that it is given from now on, or carries again (`healed`).

    `late_s` is how much later than it was due, where a schedule asked for it.
    """

    link: str
    healed: bool = False
    late_s: float = 0.0


class Reset(Event, tag="reset", frozen=True, kw_only=True):
    """The connection between two roles, `link` ("a=b"), was reset; so many messages are `resent` on the new one.

    Of two hosts all connections are reset, and what is sent again is their programs' own matter (None). `late_s` is how
    much later than it was due the connection was gone at both ends.
    """

    link: str
    resent: Count | None = None
    late_s: float = 0.0


class Faulted(Event, tag="fault", frozen=True, kw_only=True):
    """Fault number `fault` of the experiment begins, or is `over`; `about` says what it is in a few words."""

    fault: Count
    kind: str
    about: str
    over: bool = False


class Mark(Event, tag="mark", frozen=True, kw_only=True):
    """What a program on the emulated WAN said of itself (`testbed mark`); `node` is its host."""

    text: str


class Exchange(Event, tag="exchange", frozen=True, kw_only=True):
    """WeightGrad: one round of the global exchange, seen by the GS (`included`: the regions averaged)."""

    round: Count
    included: list[str]
    reason: str  # "significant", "interval" (T expired at an LPS), "t-global", or "asked" (a late contribution)


class Absent(Event, tag="absent", frozen=True, kw_only=True):
    """A server goes on without `peer` from `step` on, or has it `back` after `step`.

    It has then `missed` so many steps, and what lets it catch up is a message of `nbytes`.
    """

    peer: str
    step: Count
    back: bool = False
    missed: Count = 0
    nbytes: Count = 0


class Diverged(Event, tag="diverged", frozen=True, kw_only=True):
    """How far a region's copy of the model is from the mean of all regions' at `step`: Euclidean norms over weights."""

    step: Count
    region: str
    distance: float
    norm: float  # of the mean


class Threshold(Event, tag="threshold", frozen=True, kw_only=True):
    """WeightGrad: an LPS's significance against its threshold G_thresh when it changed or was crossed."""

    step: Count
    significance: float
    threshold: float


class Guard(Event, tag="guard", frozen=True, kw_only=True):
    """A protocol's guard came into force (`held_s` is set when it ends): "T", "T_local", "T_global"."""

    guard: str
    peer: str = ""
    held_s: float | None = None


class Bits(Event, tag="bits", frozen=True, kw_only=True):
    """MQGrad: from the step after `step` on, gradients are quantized with `bits` bits.

    `reward` is what the steps since the last decision earned (equation 2); None at the first.
    """

    step: Count
    bits: Annotated[int, msgspec.Meta(ge=0, le=64)]
    reward: float | None = None


class Overrun(Event, tag="overrun", frozen=True, kw_only=True):
    """Real math took longer than the modelled device's time: the dilation factor is too small."""

    allowed_s: float
    took_s: float


class Checkpointed(Event, tag="checkpointed", frozen=True, kw_only=True):
    """All roles stood at a step boundary and their states were saved."""

    step: Count


class RunEnded(Event, tag="run-ended", frozen=True, kw_only=True):
    """The run ended: `how` is "finished", "ended" (as its trace), "interrupted", or "failed" (with the error line)."""

    step: Count
    how: str
    error: str = ""


AnyEvent = (
    RunStarted
    | StepDone
    | Computed
    | Delivered
    | Evaluated
    | LinkBytes
    | OneLink
    | Sent
    | Sizes
    | OneSize
    | Capacity
    | Cut
    | Reset
    | Faulted
    | Mark
    | Exchange
    | Absent
    | Diverged
    | Threshold
    | Guard
    | Bits
    | Overrun
    | Checkpointed
    | RunEnded
)
