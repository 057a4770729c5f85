"""Errands on the nodes of a Ray cluster: any number of machines play a run's systems and seeds, with the same bits.

Ray is used as it is: each errand is a task with its needs, which Ray gives to a node that has them and, when that node
dies, to another. Here is what Ray does not know: what happens on a node (`node`), how records come home (`archive`),
and the driver's side of it (`crew`). What has to travel, and whether a node can take part, is in `fabrics.cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError
from testbed.experiment.schema import Experiment
from testbed.fabrics.cluster import INSTALL
from testbed.fabrics.registry import FabricKind
from testbed.harness.pool import HERE, Elsewhere


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
    """Raise InputError where the experiments cannot be played on a cluster, or can be played nowhere else."""
    if cluster is None:
        if kind.on_nodes:
            raise InputError(f"the {kind.name} fabric plays on the nodes of a Ray cluster; say which with --ray")
        return
    if cluster.storage is not None and kind.on_nodes:
        raise InputError(f"--storage: on the {kind.name} fabric checkpoints are kept with the run's records, here")
    if cluster.storage is not None and not cluster.storage.is_dir():
        raise InputError(f"--storage {cluster.storage}: no such folder; make it, where every node sees it")
    if cluster.storage is not None and not kind.virtual_time:
        raise InputError(f"--storage: on the {kind.name} fabric what a node has begun begins anew on another")
    for experiment in experiments:
        if kind.virtual_time and (why_not := kind.one_at_a_time(experiment.on(kind.device))):
            raise InputError(f"--ray: the {kind.name} fabric cannot play several at once: {why_not}")


@contextmanager
def joined(
    cluster: Cluster | None,
    kind: FabricKind,
    experiments: Sequence[Experiment],
    device: str,
    say: Callable[[str], None],
) -> Iterator[Elsewhere]:
    """Join the cluster with what the experiments need; gives what it does for them, nothing for no cluster.

    Parameters
    ----------
    device : where the math runs, "cpu" or "cuda"
    say : takes lines that the user should read

    Raises
    ------
    InputError
        There is no such cluster, it cannot be joined, or it has no nodes for the roles.
    """
    if cluster is None:
        yield HERE
        return
    try:
        from testbed.fabrics.cluster.joining import joined as ray_joined
        from testbed.harness.cluster.crew import Crew
    except ImportError as error:
        raise InputError(f"--ray needs the package {error.name}: {INSTALL}") from None
    with ray_joined(cluster.address, experiments) as baggage:
        if kind.on_nodes:
            for experiment in experiments:
                kind.check_nodes(experiment)
            yield Elsewhere(renamed=baggage.renamed)
        else:
            yield Elsewhere(run_all=Crew(cluster, baggage, experiments, kind, device, say).run_all)
