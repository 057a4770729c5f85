"""What the harness asks of a fabric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from testbed.record.events import Event
from testbed.roles import state as state_file
from testbed.wan.profile import Profile

Record = Callable[[Event], None]
Probe = Callable[[int, float, Mapping[str, Any]], bool]


class EndedEarly(Exception):
    """A system's run is over before its last step; `clock_s` is then what the clock shows, `how` how it ended."""

    how = "ended"

    def __init__(self, clock_s: float) -> None:
        super().__init__(f"{type(self).__name__} at {clock_s:g} s")
        self.clock_s = clock_s


class TraceEnded(EndedEarly):
    """The trace is at its end, where it says that the run ends, too."""


class ProbedEnough(EndedEarly):
    """What a probe showed was all that was asked."""

    how = "finished"


class Fabric(ABC):
    """Where messages travel and time passes. A fabric plays one system and seed after another.

    Attributes
    ----------
    record : writes an event; set by the harness
    observe : is shown the events that roles in other processes have written themselves; set by the harness
    probe, probe_steps : takes the states of the roles that show the model (`System.shown_by`) every so many steps, each
        as it was when its role had completed that step, and when the last of them had; set by the harness. It is
        called in the order of the steps, at the latest before `save` returns, and says whether that is enough
    """

    record: Record
    observe: Record
    probe: Probe | None = None
    probe_steps: int = 1

    @abstractmethod
    def begin(self, system: str, seed: int, records: Path, clock_s: float, checkpoint: Path | None) -> None:
        """Prepare all roles of `system`: from their initial states, or from those in folder `checkpoint`.

        `records` is the folder of this system's and seed's records, which roles in other processes write to
        themselves; `clock_s` is what the run's clock shows.
        """

    @abstractmethod
    def segment(self, stop_at: int) -> float:
        """Play all roles until each has completed step `stop_at` and stands still; return the run's clock.

        Raises
        ------
        EndedEarly
            The run ended before; its roles were stopped as they stood, and `begin` can play the next.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write every role's state to a file in `folder`."""

    @abstractmethod
    def states(self, folder: Path) -> Mapping[str, Any]:
        """Every role's state as of the last segment, which `save` has written to `folder`."""

    def describe(self) -> dict[str, Any]:
        """Facts about the fabric for the run's record: `delay_mechanism`, `dilation`, `gate` where there are such."""
        return {}

    def measured(self) -> Profile | None:
        """What its network was found to be, where that is nothing that was asked for."""
        return None

    def nodes(self) -> dict[str, Any]:
        """What machines the roles stand on, and what is known of these so far; empty where it is this one."""
        return {}

    def delay_report(self) -> dict[str, Any]:
        """How late the WAN's frames and a trace's changes were so far; empty where the network is a model."""
        return {}

    def close(self) -> None:  # noqa: B027 - a fabric that holds nothing need not say so
        """Let go of everything the fabric holds; safe to call twice."""

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def state_path(folder: Path, role: str) -> Path:
    """Where the state of `role` lies in a checkpoint."""
    return folder / f"{role.replace('/', '_')}.npz"


def probe_folder(folder: Path, step: int) -> Path:
    """Where roles in other processes put the states of a probe, in a checkpoint that is being written."""
    return folder / f"probe-{step}"


class SavedStates(Mapping[str, Any]):
    """The states of a checkpoint, each read when it is looked up."""

    def __init__(self, folder: Path, initial: Callable[[str], Any], roles: tuple[str, ...]) -> None:
        self._folder = folder
        self._initial = initial
        self._roles = roles

    def __getitem__(self, role: str) -> Any:
        if role not in self._roles:
            raise KeyError(role)
        state = self._initial(role)
        state_file.load(state_path(self._folder, role), state)
        return state

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)
