"""Which systems `testbed plan` asks about where nobody names them, and which it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.experiment.assembly import Assembly
from testbed.experiment.schema import Experiment
from testbed.systems import SYSTEMS

TABLE = Path(__file__).with_name("candidates.toml")
LONGEST_RING = 24  # workers; one of n takes 2 n (n - 1) messages, and a plan seconds


class Candidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system with options, and in words what makes its training another than the baseline's.

    `bits` are those of a value that a worker, or a region, sends. `steps_of` is a candidate whose training is the same.
    """

    system: str
    departs: str = ""
    bits: float | None = None
    name: str = ""
    steps_of: str = ""
    options: dict[str, Any] = {}


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    candidate: list[Candidate]


def candidates() -> dict[str, Candidate]:
    """Those of `candidates.toml` by name, in their order."""
    found = msgspec.toml.decode(TABLE.read_bytes(), type=_Table).candidate
    return {each.name or each.system: each for each in found}


def too_long(known: Mapping[str, Candidate], workers: int) -> tuple[str, ...]:
    """Those whose ring over so many workers would take longer to play than a plan should."""
    ringed = [name for name, each in known.items() if SYSTEMS[each.system].peers == "ring"]
    return tuple(ringed) if workers > LONGEST_RING else ()


def unlisted(known: Mapping[str, Candidate]) -> tuple[str, ...]:
    """The systems of which there is no candidate."""
    return tuple(sorted({*SYSTEMS} - {each.system for each in known.values()}))


def unsized(experiment: Experiment) -> tuple[str, ...]:
    """The systems of a timing-only experiment whose messages have sizes that nobody knows."""
    assembly = Assembly(experiment)

    def unknown(system: str) -> bool:
        try:
            assembly.require_sizes(system)
        except InputError:
            return True
        return False

    return tuple(filter(unknown, experiment.systems))


@dataclass(frozen=True)
class LeftOut:
    """Systems that are not asked about unless somebody names them, or states their sizes."""

    unlisted: tuple[str, ...] = ()
    rings: tuple[str, ...] = ()
    unsized: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """In words, and what would have them in."""
        said = []
        if names := self.unlisted:
            short = "without an experiment a short list of systems is asked about"
            said.append(f"Left out: {', '.join(names)}; {short}. --systems names others.")
        if names := self.rings:
            ring = f"a ring of more than {LONGEST_RING} workers takes long to play"
            said.append(f"Left out: {', '.join(names)}; {ring}. --systems {','.join(names)} plays it.")
        if names := self.unsized:
            data = "how large such messages are, or when they are sent, depends on the data"
            parts = ",".join(f"{name}=0.01" for name in names)
            how = f"--sizes RUN takes it from a recorded run, --sizes {parts} states parts of float32's bytes"
            said.append(f"Left out: {', '.join(names)}; {data}. {how}.")
        return said


NOBODY = LeftOut()
