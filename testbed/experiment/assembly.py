"""From an experiment to what a fabric plays: tasks, systems, evaluation.

The data set and the model are opened once per process and shared by all its roles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from math import nan
from pathlib import Path

import msgspec
import torch

from testbed.codecs.kernels.compiled import not_needed
from testbed.codecs.sized import Sizes
from testbed.errors import InputError, code_of, naming, nearest
from testbed.experiment.schema import Experiment
from testbed.experiment.sizes import Recorded, Stated, Unknown, differs
from testbed.layout import Factors
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles, kind_of
from testbed.systems import System, Task
from testbed.workloads import Workload
from testbed.workloads.config import Training
from testbed.workloads.data import base as data
from testbed.workloads.data.base import Indices
from testbed.workloads.devices import device
from testbed.workloads.evaluation import Evaluation
from testbed.workloads.learner import Learner
from testbed.workloads.models.known import cannot_train, known_of
from testbed.workloads.sized import SizedWorkload

BACKWARD_PER_FORWARD = 2.0  # a backward pass does each product of the forward pass twice: for inputs and weights


class Assembly:
    """Builds the parts of one experiment on one device.

    Parameters
    ----------
    device_name : where the math runs, "cpu" or "cuda"
    allow_download : fetch a data set that is missing; not from within the sandbox, where there is no network
    on_notice : called with a line the user should read (a download, a stand-in)

    Attributes
    ----------
    home : where vectors are between two computations: on the device, if the fabric plays all roles in this process
    """

    def __init__(
        self,
        experiment: Experiment,
        device_name: str = "cpu",
        allow_download: bool = False,
        on_notice: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.experiment = experiment
        self._testing_threads = torch.get_num_threads()  # one where another run is on each core, see `pool`
        self.device = device(device_name)
        self.home = torch.device("cpu")
        self._allow_download = allow_download
        self._on_notice = on_notice
        self._split: dict[int, list[Indices]] = {}  # by seed
        # Kept, since each test of the reported model makes its system again.
        self._initial = lru_cache(1)(lambda seed, home: self.sized.initial_weights(seed).to(home))

    @cached_property
    def workload(self) -> Workload:
        """The experiment's model and data.

        Raises
        ------
        InputError
            The two do not go together, or the data cannot be opened, or be divided or measured as the experiment says.
        """
        it = self.experiment
        dataset = data.load(it.data, allow_download=self._allow_download, on_notice=self._on_notice)
        it.data.check(dataset)
        workload = Workload(it.model, dataset, self.device, it.compute.precision)
        if (metric := it.target.metric) is not msgspec.UNSET and metric not in workload.metrics:
            known = nearest(metric, workload.metrics)
            raise InputError(f"target.metric: data set '{dataset.name}' has no metric '{metric}'{known}")
        return workload

    @cached_property
    def sized(self) -> Workload | SizedWorkload:
        """The same as far as it is needed: in a timing-only run how large the two are.

        Raises
        ------
        InputError
            As `workload`; or such a model was to be trained.
        """
        model, timing_only = self.experiment.model, self.experiment.compute.timing_only
        known = known_of(model)
        if known is not None and not timing_only:
            raise cannot_train(model.name)
        if known is not None:
            return SizedWorkload.of_layers(known)
        return (SizedWorkload.of_module(model, self.experiment.data) if timing_only else None) or self.workload

    def system(self, name: str, seed: int) -> System:
        """The system `name` of the experiment on the task of `seed`."""
        options, kind = self.experiment.systems[name], self.experiment.kind_of(name)
        task = self.task(seed, self.experiment.roles_of(name), clipped=not kind.own_clip)
        made = code_of(f"system '{name}': it cannot be made")
        if not self.experiment.compute.timing_only:
            with made:
                return kind(task, options)
        nothing = torch.empty(0)
        learner, sizes = Uncomputed(nothing), self._sizes(name, seed)
        with not_needed(), made:
            return kind(replace(task, initial=nothing, learner=lambda worker: learner, sizes=sizes), options)

    def warm_up(self) -> list[System]:
        """Make all systems, so that data, model and the codecs' kernels are at hand when they are asked for."""
        return [self.system(name, self.experiment.run.seeds[0]) for name in self.experiment.systems]

    def check(self) -> None:
        """Refuse what would fail where the run begins, without computing anything.

        Raises
        ------
        InputError
            Examples are too few or no batches, the model cannot take them, a system cannot be made or has no states; of
            a timing-only run as `require_sizes`.
        """
        if self.experiment.compute.timing_only:
            self.require_sizes()
            return
        self.workload.check()
        seed = self.experiment.run.seeds[0]
        self._shards(seed)
        for name in self.experiment.systems:
            with not_needed():
                system = self.system(name, seed)
            with naming(f"system '{name}'"):
                _check_states(system)

    def require_sizes(self, *systems: str) -> None:
        """Of a timing-only run: raise InputError where a system's (of all) messages have sizes that nobody knows."""
        for name in systems or self.experiment.systems:
            for seed in self.experiment.run.seeds:
                system = self.system(name, seed)
                assert system.task.sizes is not None
                system.task.sizes.require(system.varying)

    def _sizes(self, system: str, seed: int) -> Sizes:
        """What is known of the messages of a system whose sizes depend on the data.

        Raises
        ------
        InputError
            They are of a recorded run, depend on the network as well, and that run's was another.
        """
        given = self.experiment.compute.sizes
        if isinstance(given, str):
            if self.experiment.kind_of(system).follows_network and (
                key := differs(Path(given), self.experiment.as_dict())
            ):
                raise InputError(
                    f"{system}: what it sends goes by how long its messages take, and {given} was recorded with "
                    f"another {key}; record a run with this one, or leave {system} out with --systems"
                )
            return Recorded.read(Path(given), system, seed, self.sized.layout.size) or Unknown(system)
        part = None if isinstance(given, msgspec.UnsetType) else given.get(system)
        return Unknown(system) if part is None else Stated(part)

    def task(self, seed: int, roles: Roles | None = None, clipped: bool = True) -> Task:
        """What is trained with `seed`, by `roles` (those of all systems together when None).

        `clipped`: a worker's gradient is clipped where it is made, rather than by the system.
        """
        training = self.experiment.training
        learned = training if clipped else msgspec.structs.replace(training, clip_norm=None)
        experiment = self.experiment
        compute = experiment.compute
        modelled = compute_model(compute.device).device
        batch = self.worker_batch // compute.gpus
        return Task(
            seed=seed,
            roles=roles or experiment.roles,
            layout=self.sized.layout,
            initial=self._initial(seed, self.home),
            training=training,
            learner=lru_cache(lambda worker: self._learner(seed, worker, learned)),
            images=self.sized.dataset.train_examples,
            gradient_flops=self.sized.forward_flops * batch * (1 + BACKWARD_PER_FORWARD),
            rate_mbit=experiment.plan.rate_mbit,
            seconds=modelled.seconds if modelled else None,
            first_reduction_s=compute.first_reduction_s(4.0 * self.sized.layout.size),
        )

    @property
    def worker_batch(self) -> int:
        """Examples in one worker's batch."""
        return self.experiment.training.worker_batch(len(self.experiment.roles.workers), self.experiment.compute.gpus)

    def _learner(self, seed: int, worker: int, training: Training) -> Learner:
        shard = self._shards(seed)[worker]
        return self.workload.learner(shard, worker, self.worker_batch, seed, training)

    def _shards(self, seed: int) -> list[Indices]:
        """Each worker's training examples, by worker number."""
        if seed not in self._split:
            counts = [self.experiment.topology.workers_per_region] * len(self.experiment.topology.regions)
            split = self.experiment.data.shards(self.workload.dataset, counts, seed)
            self._split[seed] = [shard for region in split for shard in region]
        return self._split[seed]

    def evaluate(self, weights: torch.Tensor, quickly: bool = False) -> Evaluation:
        """Test loss and metrics of flat `weights`; `quickly`: on no more images than a probe takes."""
        with threads(self._testing_threads):
            return self.workload.evaluate(weights, self._few if quickly else self.experiment.run.eval_images)

    def probe(self, weights: torch.Tensor) -> tuple[Evaluation, float]:
        """A quick test of flat `weights`, and their loss on a sample of the training data."""
        with threads(self._testing_threads):
            return self.workload.probe(weights, self._few, self.experiment.run.probe_images)

    @property
    def _few(self) -> int:
        """The images of a quick test."""
        run = self.experiment.run
        return min(run.eval_images or run.probe_images, run.probe_images)


def _check_states(system: System) -> None:
    """Raise InputError where a role of each kind has nothing to start from."""
    for role in {kind_of(role): role for role in system.task.roles.all}.values():
        with code_of(f"its initial_state('{role}') failed"):
            state = system.initial_state(role)
        if state is None:
            raise InputError(f"its initial_state('{role}') returned None, not a state with a `step`")


class Uncomputed:
    """The learner of a timing-only run: gradients without elements, no loss."""

    def __init__(self, vector: torch.Tensor) -> None:
        self._vector = vector

    def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
        """No number, and a vector without elements."""
        return nan, self._vector

    def factors(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor, list[Factors]]:
        """The same, and no factors."""
        return nan, self._vector, []


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads.

    A worker's gradient takes one: sums depend on the number of threads, and both fabrics and machines of any
    size are to get the same bits.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
