"""Errands on the nodes of a Ray cluster: any number of machines play a run's systems and seeds, with the same bits.

Ray is used as it is: each errand is a task with its needs, which Ray gives to a node that has them and, when that node
dies, to another. Here is what Ray does not know: what has to travel (`baggage`), whether a node can take part
(`fitness`), what happens on it (`node`), how records come home (`archive`), and the driver's side of it (`crew`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import FabricKind
from testbed.harness.pool import RunAll

INSTALL = "pip install 'geo-testbed[cluster]'"


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that is there already.

    Parameters
    ----------
    address : "auto" for the one this machine is a node of, or HOST:PORT
    storage : a folder that all nodes see, for checkpoints of what is not done yet; None: there is none
    """

    address: str = "auto"
    storage: Path | None = None


def check(cluster: Cluster | None, kind: FabricKind, experiments: Sequence[Experiment]) -> None:
    """Raise InputError where the experiments cannot be played on a cluster."""
    if cluster is None:
        return
    if cluster.storage is not None and not cluster.storage.is_dir():
        raise InputError(f"--storage {cluster.storage}: no such folder; make it, where every node sees it")
    for experiment in experiments:
        if why_not := kind.one_at_a_time(experiment.on(kind.device)):
            raise InputError(f"--ray: the {kind.name} fabric cannot play several at once: {why_not}")


@contextmanager
def joined(
    cluster: Cluster | None, experiments: Sequence[Experiment], device: str, say: Callable[[str], None]
) -> Iterator[RunAll | None]:
    """Join the cluster with what the experiments need; gives what does errands there, None for no cluster.

    Parameters
    ----------
    device : where the math runs, "cpu" or "cuda"
    say : takes lines that the user should read

    Raises
    ------
    InputError
        There is no such cluster, or it cannot be joined.
    """
    if cluster is None:
        yield None
        return
    try:
        from testbed.harness.cluster.crew import Crew
    except ImportError as error:
        raise InputError(f"--ray needs the package {error.name}: {INSTALL}") from None
    with Crew(cluster, experiments, device, say) as crew:
        yield crew.run_all
