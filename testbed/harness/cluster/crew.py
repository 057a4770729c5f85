"""The driver's side of a cluster: give Ray the errands, bring their files home as they are done."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import ray
from ray._raylet import IMPLICIT_RESOURCE_PREFIX  # type: ignore[attr-defined] # compiled
from ray.exceptions import (
    GetTimeoutError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
    TaskCancelledError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from testbed.errors import InputError, RunError
from testbed.experiment.assembly import Assembly
from testbed.experiment.schema import Experiment
from testbed.fabrics.cluster import fitness
from testbed.fabrics.cluster.baggage import Baggage
from testbed.fabrics.registry import FabricKind
from testbed.harness.cluster import Cluster, archive, node
from testbed.harness.cluster.board import Board, Told
from testbed.harness.pool import Errand
from testbed.report.live_errands import Errands

RETRIES = 5  # of an errand whose node dies
POLL_S = 0.5
LOOK_S = 3.0  # between two looks at which nodes there are
CANCEL_S = 10.0
BASE_BYTES = 1 << 30  # of a process: the libraries, a small data set
ROLE_BYTES = 128 << 20  # of a role that is a process of its own, a fork
COPIES = 2  # of the model, in float32, that a role holds: its weights, and a gradient or what is left of one
GPU_BYTES = 16 << 30  # of a GPU, to say which part of one an errand needs; they seldom have less
LEAST_GPU = 0.1
NODE_ID = "ray.io/node-id"
WHOLE_NODE = {f"{IMPLICIT_RESOURCE_PREFIX}testbed": 1}  # of which each node has one, as Serve's replicas take them


class Crew:
    """The driver's side of a cluster that was joined with what the experiments need, their `baggage`."""

    def __init__(
        self,
        cluster: Cluster,
        baggage: Baggage,
        experiments: Sequence[Experiment],
        kind: FabricKind,
        device: str,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._baggage, self._kind, self._say = cluster, baggage, kind, say
        self._needs = _needs(experiments, kind, device)
        self._passed_over: dict[str, str] = {}  # node's id -> why
        self._alive: dict[str, str] = {}  # node's id -> its address, when last looked
        self._looked_s = -LOOK_S

    def run_all(self, errands: Sequence[Errand]) -> None:
        """Do the errands wherever there is room; each one's folder is here when it is done.

        Raises
        ------
        RunError
            One failed, then the others are cancelled; or it could not be done though it was tried on several nodes.
        InputError
            No node can do it.
        """
        if not errands:
            return
        tasks = [self._task(number, errand) for number, errand in enumerate(errands)]
        left = {self._given(task, errand): (task, errand) for task, errand in zip(tasks, errands, strict=True)}
        self._warn_of_needs()
        with Errands(len(errands), self._say) as self._view:
            try:
                while left:
                    self._look(left)
                    ready, _ = ray.wait(list(left), num_returns=1, timeout=POLL_S)
                    for ref in ready:
                        task, errand = left.pop(ref)
                        if not self._taken(task, errand, ref):
                            left[self._given(task, errand)] = (task, errand)
                self._look_who_is_gone()
            finally:
                _cancel(list(left))

    def _task(self, number: int, errand: Errand) -> node.Task:
        there = replace(errand, experiment=self._baggage.renamed(errand.experiment))
        storage = self._cluster.storage
        folder = storage.absolute() / _called(errand.folder) if storage else None
        place = folder / errand.folder.parent.name / errand.folder.name if folder else ""
        return node.Task(number, there, self._kind.name, fitness.here(errand.experiment), str(place))

    def _given(self, task: node.Task, errand: Errand) -> Any:
        """Give a task to Ray; nodes that were passed over do not get it."""
        options = dict(self._needs)
        if self._passed_over:
            options["label_selector"] = {NODE_ID: f"!in({','.join(self._passed_over)})"}
        packed = archive.pack(errand.folder) if errand.folder.is_dir() else b""
        return _do.options(name=errand.label, **options).remote(task, packed, self._board)

    def _taken(self, task: node.Task, errand: Errand, ref: Any) -> bool:
        """Bring home what became of an errand; False where it is to be given to another node."""
        try:
            answer: node.Answer = ray.get(ref)
        except TaskCancelledError:  # its node was told to stop
            return False
        except OutOfMemoryError:
            raise RunError(
                f"{errand.label}: its node has too little memory for it; start Ray there with fewer CPUs"
            ) from None
        except RuntimeEnvSetupError as error:
            raise RunError(f"{errand.label}: a node cannot unpack what it needs: {_last_line(error)}") from None
        except RayTaskError as error:  # before the testbed's own code, which answers: something cannot be imported
            if (address := getattr(error, "ip", None)) is None:
                raise RunError(f"{errand.label}: {_last_line(error)}") from None
            self._pass_over_address(address, f"the testbed cannot be loaded there: {_last_line(error)}")
            return False
        except RayError as error:
            raise RunError(
                f"{errand.label}: every node that played it died, {RETRIES + 1} of them; the last: {_last_line(error)}"
            ) from None
        if answer.unfit:
            self._pass_over(answer.node_id, answer.node, answer.unfit)
            return False
        if answer.packed:
            archive.unpack(answer.packed, errand.folder)
        if answer.error:
            kind = InputError if answer.exit_code == InputError.exit_code else RunError
            raise kind(answer.error)
        self._view.done(errand.label, answer.node)
        return True

    def _pass_over_address(self, address: str, why: str) -> None:
        for each in ray.nodes():
            if each["Alive"] and each["NodeManagerAddress"] == address:
                self._pass_over(each["NodeID"], address, why)

    def _pass_over(self, node_id: str, address: str, why: str) -> None:
        """Note that a node cannot take part, and say so once."""
        if node_id not in self._passed_over:
            self._passed_over[node_id] = f"node {address}: {why}"
            self._view.say(f"node {address} is passed over: {why}")
        if not self._able():
            raise InputError(f"no node of the cluster can play this: {'; '.join(self._passed_over.values())}")

    def _able(self) -> list[dict[str, Any]]:
        """The nodes that are alive, were not passed over, and are large enough."""
        needs = {"CPU": self._needs["num_cpus"], "memory": self._needs["memory"], "GPU": self._needs["num_gpus"]}
        return [
            each
            for each in ray.nodes()
            if each["Alive"]
            and each["NodeID"] not in self._passed_over
            and all(each["Resources"].get(name, 0) >= amount for name, amount in needs.items())
        ]

    def _warn_of_needs(self) -> None:
        if not self._able():
            gib = self._needs["memory"] / 2**30
            gpus = f", {self._needs['num_gpus']:g} of a GPU" if self._needs["num_gpus"] else ""
            self._say(f"no node of the cluster has a core, {gib:.1f} GiB of memory{gpus} for this yet: waiting for one")

    def _look(self, left: dict[Any, tuple[node.Task, Errand]]) -> None:
        """See how far all are, and now and then which nodes died."""
        with suppress(GetTimeoutError):
            told: dict[int, Told] = ray.get(self._board.told.remote(), timeout=POLL_S)
            known = {task.number: errand.label for task, errand in left.values()}
            self._view.see(
                {known[number]: (each.node, each.done, each.total) for number, each in told.items() if number in known}
            )
        if monotonic() - self._looked_s >= LOOK_S:
            self._look_who_is_gone()

    def _look_who_is_gone(self) -> None:
        self._looked_s = monotonic()
        alive = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"]}
        for gone in self._alive.keys() - alive.keys():
            self._view.say(f"node {self._alive[gone]} is gone; what it had begun is played again on another")
        self._alive = alive

    @cached_property
    def _board(self) -> Any:
        """On this node, which lives as long as the driver does."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return ray.remote(num_cpus=0)(Board).options(scheduling_strategy=here).remote()


_do = ray.remote(max_retries=RETRIES)(node.do)


def _needs(experiments: Sequence[Experiment], kind: FabricKind, device: str) -> dict[str, Any]:
    """What one errand takes, as Ray's options."""
    parameters: dict[bytes, int] = {}  # by model and data, which take time to open
    nbytes = BASE_BYTES
    base_bytes = 0 if kind.one_process else ROLE_BYTES
    for each in experiments:
        if not each.compute.timing_only:
            key = msgspec.json.encode([each.model, each.data])
            if key not in parameters:
                parameters[key] = Assembly(each).sized.layout.size
            of_role = base_bytes + 4 * COPIES * parameters[key]
            nbytes = max(nbytes, BASE_BYTES + len(each.roles.all) * of_role)
    gpus = max(LEAST_GPU, min(1.0, round(nbytes / GPU_BYTES, 2))) if device.startswith("cuda") else 0
    alone = {} if kind.virtual_time else WHOLE_NODE  # what lasts as long as a clock says is not to share its cores
    return {"num_cpus": 1, "num_gpus": gpus, "memory": nbytes, "resources": alone}


def _called(folder: Path) -> str:
    """What an errand is called in the storage, where other drivers keep theirs; the same when it is resumed."""
    whole = f"{platform.node()}:{folder.parents[1].absolute()}"
    return f"{folder.parents[1].name}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def _cancel(refs: Sequence[Any]) -> None:
    """Stop what is still under way, as Ctrl-C would, and give it time to save."""
    for ref in refs:
        ray.cancel(ref, force=False)
    with suppress(RayError):
        ray.wait(list(refs), num_returns=len(refs), timeout=CANCEL_S) if refs else None


def _last_line(error: BaseException) -> str:
    """The line of Ray's many that says what happened."""
    found = [line.strip() for line in str(error).splitlines() if line.strip()]
    return found[-1] if found else type(error).__name__
