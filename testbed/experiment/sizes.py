"""How large the messages of a recorded run were, for a timing-only run to send as large ones (`codecs.sized.Sizes`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.record import info, lines
from testbed.record.events import Sizes, StepDone
from testbed.record.info import RunInfo
from testbed.roles.roles import kind_of

Steps = dict[int, Sequence[int]]
SIGNIFICANT = "significant"  # of a message: sent because what was kept had become worth it


@dataclass(frozen=True)
class Unknown:
    """Nothing is known of the messages of `system`."""

    system: str

    def require(self, kinds: Collection[str]) -> None:
        """Raise InputError where there are such messages."""
        if kinds:
            raise InputError(
                f"{self.system}: how large its messages are, or when it sends them, depends on the data, which a "
                "timing-only run has none of; name a run of it that has its events.jsonl, --sizes RUN, or a part of "
                f"float32's bytes, --sizes {self.system}=0.01"
            )

    def buffers(self, sender: str, step: int, kind: str, elements: int) -> Sequence[int]:
        """Raise InputError."""
        self.require([kind])
        return []

    def alike(self, kinds: Collection[str]) -> bool:
        """Yes: there are none."""
        return True

    def significant(self, sender: str, step: int) -> bool:
        """Raise InputError."""
        self.require([SIGNIFICANT])
        return False


@dataclass(frozen=True)
class Stated:
    """Messages take this part of float32's bytes, or an update is significant in this part of the steps."""

    part: float

    def require(self, kinds: Collection[str]) -> None:
        """All is known."""

    def buffers(self, sender: str, step: int, kind: str, elements: int) -> Sequence[int]:
        """One buffer."""
        return [round(4 * self.part * elements)]

    def alike(self, kinds: Collection[str]) -> bool:
        """Yes: the part says nothing of who sends."""
        return True

    def significant(self, sender: str, step: int) -> bool:
        """Evenly, as often as said."""
        return int((step + 1) * self.part) > int(step * self.part)


TIMED = (("topology",), ("faults",), ("model",), ("compute", "device"), ("training", "batch_size"))


def differs(folder: Path, experiment: dict[str, Any]) -> str:
    """The key by which times in the run in `folder` may be others than in `experiment`; "" for none.

    Raises
    ------
    InputError
        No run is there, or it cannot be read.
    """

    def at(data: Any, path: Sequence[str]) -> Any:
        return at((data or {}).get(path[0]), path[1:]) if path else data

    recorded = info.read_info(folder, RunInfo).experiment
    return next((".".join(path) for path in TIMED if at(recorded, path) != at(experiment, path)), "")


@dataclass(frozen=True)
class Recorded:
    """What a system sent in a run with one seed.

    A role that was no part of it sends what one of its kind did. After its end, which may be its target, all is as in
    its last messages, and updates are significant when they were, from its first step on again.

    Parameters
    ----------
    sizes : by sender and kind, each step's, in order
    steps : that every worker was done with: fewer than the experiment's where the run ended at its target
    scale : parameters of this run's model over those of the recorded one's
    """

    path: Path
    steps: int
    scale: float = 1.0
    sizes: dict[tuple[str, str], Steps] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, system: str, seed: int, parameters: int) -> Recorded | None:
        """What the run in `folder` says of `system`, with `seed` or else its first one.

        None where it did not play it, or its events are not there: few systems' sizes depend on the data, and a kept
        run has the events of those.

        Raises
        ------
        InputError
            No run is there, or it cannot be read.
        """
        facts = info.read_info(folder, RunInfo)
        if system not in facts.systems:
            return None
        chosen = seed if seed in facts.seeds else next(iter(facts.seeds), seed)
        path = folder / system / f"seed-{chosen}" / lines.FILE_NAME
        if not path.is_file():
            return None
        if facts.parameters <= 0:
            raise InputError(f"{folder / info.FILE_NAME}: says nothing of the model's parameters")
        sizes: dict[tuple[str, str], Steps] = {}
        done: dict[str, int] = {}
        for line in lines.whole_lines(path):
            if line.startswith(lines.LINK_PREFIXES):
                continue
            event = lines.decode(line)
            if isinstance(event, StepDone):
                done[event.node] = event.step + 1
            elif isinstance(event, Sizes):
                sizes.setdefault((event.node, event.kind), {}).update(zip(event.steps, event.buffers, strict=False))
        if not done:
            raise InputError(f"{path}: holds no step, so nothing that is of any size; record the run again")
        return cls(path, min(done.values()), parameters / facts.parameters, sizes)

    def require(self, kinds: Collection[str]) -> None:
        """Raise InputError where the record has no sizes, as those of older versions have none."""
        if kinds and not self.sizes and set(kinds) != {SIGNIFICANT}:
            raise InputError(f"{self.path}: it says nothing of the sizes of its messages; record the run again")

    def buffers(self, sender: str, step: int, kind: str, elements: int) -> Sequence[int]:
        """As recorded; after the run's end, as the sender's last."""
        known = self._of(sender, kind)
        recorded = known.get(step, () if step < self.steps else known.get(next(reversed(known), 0), ()))
        return recorded if self.scale == 1 else [round(self.scale * nbytes) for nbytes in recorded]

    def alike(self, kinds: Collection[str]) -> bool:
        """Whether none of the recorded messages is a worker's."""
        return not any(kind in kinds and kind_of(sender) == "worker" for sender, kind in self.sizes)

    def significant(self, sender: str, step: int) -> bool:
        """As recorded, again and again: a sender that was silent in the last step would be so for ever."""
        return step % self.steps in self._of(sender, SIGNIFICANT)

    def _of(self, sender: str, kind: str) -> Steps:
        """What a sender sent; or, where it was not there, another one of its kind."""
        if (found := self.sizes.get((sender, kind))) is not None:
            return found
        alike = [who for who, each in self.sizes if each == kind and kind_of(who) == kind_of(sender)]
        return self.sizes[alike[_number_of(sender) % len(alike)], kind] if alike else {}


def _number_of(role: str) -> int:
    """The k of a worker "region/wk"; 0 for a server."""
    return int(role.rpartition("/w")[2]) if kind_of(role) == "worker" else 0
