"""Which fabrics there are, what is to be known of one before it is opened, and which of them a run takes.

A fabric's folder registers one `FabricKind` when it is imported; it must import neither Ray nor Mininet nor sockets,
which only an opened fabric needs. A fabric of one's own is a plug-in that does the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from testbed.errors import InputError, nearest
from testbed.plugins import Registry
from testbed.roles.compute import AUTO, MEASURED

if TYPE_CHECKING:  # torch, which naming a fabric does not need
    from testbed.experiment.assembly import Assembly
    from testbed.experiment.schema import Experiment
    from testbed.fabrics.base import Fabric

ANY = "auto"
Renamed = Callable[
    [dict[str, Any]], dict[str, Any]
]  # an experiment (plain data) here, as the nodes of a cluster find it
Gate = Callable[[Any], dict[str, Any]]  # takes an emulated network, raises where it is wrong, returns what it measured


@dataclass(frozen=True)
class Setting:
    """What a fabric is opened with.

    Parameters
    ----------
    assembly : the experiment's parts, for this process
    device : where the math runs, "cpu" or "cuda"
    gate : for fabrics with a network to check before a run; None for no check
    renamed : what an experiment is on the nodes of the Ray cluster that this process has joined; None for none
    """

    assembly: Assembly
    device: str
    gate: Gate | None = None
    renamed: Renamed | None = None


class FabricKind(ABC):
    """What a fabric is called and can do; subclass it, set `name`, and `--fabric` takes it.

    Attributes
    ----------
    virtual_time : whether the run's clock is the fabric's own, so that nothing on this machine disturbs it
    one_process : whether all roles are played in the process that opens the fabric
    on_nodes : whether the roles of a run stand on the nodes of a Ray cluster, which is joined before
    device : what a computation is charged where the experiment leaves that open
    rank : "auto" takes the fabric of the lowest rank that can run; None: it is taken only by its name
    """

    name: ClassVar[str] = ""
    virtual_time: ClassVar[bool] = False
    one_process: ClassVar[bool] = False
    on_nodes: ClassVar[bool] = False
    device: ClassVar[str] = MEASURED
    rank: ClassVar[int | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name:
            FABRICS.add(cls.name, cls(), cls.__module__)

    @abstractmethod
    def open(self, setting: Setting) -> Fabric:
        """Build the fabric; what it needs is imported here."""

    def cannot_play(self, experiment: Experiment) -> str:
        """Why this fabric cannot run the experiment on any machine; "" where it can."""
        return ""

    def cannot_run_here(self) -> str:
        """Why this machine cannot run it; "" where it can."""
        return ""

    def check_nodes(self, experiment: Experiment) -> None:  # noqa: B027 - most have no such need
        """Raise InputError where the cluster that was joined has no nodes for the experiment."""

    def one_at_a_time(self, experiment: Experiment) -> str:
        """Why systems and seeds cannot be played at once; "" where they can."""
        return "" if self.virtual_time else "runs in real time would take each other's"

    def entered(self) -> bool:
        """Whether this process was started by `enter`."""
        return False

    def enter(
        self,
        command: Sequence[str],
        say: Callable[[str], None] | None = None,
        witness: Callable[[str], None] | None = None,
    ) -> int | None:
        """Run a command where the fabric can be opened and return its exit status; None where that is here.

        Parameters
        ----------
        say : takes each line of the command's output; None: it goes where this process's goes
        witness : is told of each process there that had been killed when the command failed
        """
        return None


FABRICS: Registry[FabricKind] = Registry("fabric", "testbed.fabrics")
"""Every fabric by the name it has in an experiment file."""


def choose(wanted: str, experiments: Sequence[Experiment] = ()) -> tuple[FabricKind, str]:
    """The fabric to take for all of `experiments`, and one line that says why ("" when it was asked for).

    Raises
    ------
    InputError
        There is no such fabric, or it, or none, can run them here.
    """
    if wanted != ANY:
        if wanted not in FABRICS:
            raise InputError(f"run.fabric: unknown fabric '{wanted}'{nearest(wanted, [ANY, *FABRICS])}")
        kind = FABRICS[wanted]
        if why_not := _why_not(kind, experiments):
            raise InputError(f"the {wanted} fabric cannot run this here: {why_not}")
        return kind, ""
    refused: dict[str, str] = {}
    for _, name in sorted((kind.rank, name) for name, kind in FABRICS.items() if kind.rank is not None):
        why_not = _why_not(FABRICS[name], experiments)
        if why_not:
            refused[name] = why_not
            continue
        before = "; ".join(f"{other} cannot run this here: {why}" for other, why in refused.items())
        return FABRICS[name], f"fabric: {name}, because {before}" if before else f"fabric: {name} (auto takes it first)"
    raise InputError(f"no fabric can run this here: {'; '.join(f'{name}: {why}' for name, why in refused.items())}")


def virtual() -> str:
    """The name of the fabric whose time is its own, for what need not be emulated."""
    return next(name for name, kind in FABRICS.items() if kind.virtual_time)


def _why_not(kind: FabricKind, experiments: Sequence[Experiment]) -> str:
    if not kind.virtual_time and any(each.compute.timing_only for each in experiments):
        return "a timing-only run computes nothing, so its clock cannot be real"
    if any(each.compute.gpus > 1 and each.compute.device == AUTO for each in experiments) and kind.device == MEASURED:
        return "several GPUs a worker are modelled and not measured; set compute.device"
    return next((why for each in experiments if (why := kind.cannot_play(each))), "") or kind.cannot_run_here()
