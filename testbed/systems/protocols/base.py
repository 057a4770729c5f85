"""What a training system is: three roles as coroutines, the states they keep, and the models that result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Literal, Protocol

import msgspec
import torch

from testbed.codecs import costs
from testbed.codecs.base import fixed_sizes
from testbed.codecs.resident import placed
from testbed.codecs.sized import Sizes, StandIn
from testbed.errors import InputError, ProtocolError, naming
from testbed.layout import Factors, Layout
from testbed.message import Message
from testbed.roles.attendance import Attendance, CatchUp, Tolerance, unanswered
from testbed.roles.compute import NOTHING, Work
from testbed.roles.node import Node
from testbed.roles.roles import Kind, Roles, kind_of
from testbed.systems.registry import SYSTEMS, check_name
from testbed.types import Fraction, Positive, Rate, Share
from testbed.workloads.config import Training


class Gradients(Protocol):
    """One worker's gradient step, whatever the model and the data."""

    def gradient(self, weights: torch.Tensor, step: int) -> tuple[float | torch.Tensor, torch.Tensor]:
        """Loss and flat gradient at `weights` on this worker's batch of `step`."""

    def factors(self, weights: torch.Tensor, step: int) -> tuple[float | torch.Tensor, torch.Tensor, list[Factors]]:
        """The same gradient with those of the linear layers as factors: loss, the other layers' flat, (X, Delta)s."""


@dataclass(frozen=True)
class Task:
    """What is trained, the same for every system of an experiment with the same seed.

    Parameters
    ----------
    layout : the model's parameters in the flat vector
    initial : initial weights, flat float32, where all vectors of the run are
    training : steps, batch, schedule, optimizer
    learner : makes the learner of worker number k (an index into `roles.workers`)
    images : training images in all, which make an epoch
    gradient_flops : floating-point operations of one worker's gradient; of several GPUs of a worker, of one's part;
        0 where times are measured, not modelled
    first_reduction_s : what these then take to add up their gradients
    rate_mbit : what a message alone on the network gets from one host to another, by the profile as it stands at
        step 0; a trace that changes the links later does not change it. Without a profile no link is slow
    seconds : what a computation is charged on the modelled device; None where its time is measured
    sizes : in a timing-only run, where nothing is computed and vectors have no elements, what is known of the
        messages whose sizes depend on the data; None in others
    """

    seed: int
    roles: Roles
    layout: Layout
    initial: torch.Tensor
    training: Training
    learner: Callable[[int], Gradients]
    images: int
    gradient_flops: float
    rate_mbit: Callable[[str, str], float] = lambda sender, receiver: inf
    seconds: Callable[[Work], float] | None = None
    sizes: Sizes | None = None
    first_reduction_s: float = 0.0

    @property
    def timing_only(self) -> bool:
        """Whether computations are charged and not made: vectors have a size and no elements."""
        return self.sizes is not None

    def rate_at(self, step: int) -> float:
        """The learning rate of `step`, from 0."""
        return self.training.rate_at(step, self.images)

    @property
    def gradient_work(self) -> Work:
        return Work(flops=self.gradient_flops, seconds=self.first_reduction_s)

    def passes(self, count: float) -> Work:
        """Work that reads or writes a whole float32 parameter vector `count` times."""
        return Work(nbytes=4.0 * self.layout.size * count)

    @property
    def update_work(self) -> Work:
        """An update of all parameters with the experiment's optimizer."""
        return self.passes(self.training.optimizer.passes)

    # What coding costs, by `testbed.codecs.costs`; `Codec` is anything with a layout that codes

    def surveying(self, codec: Any) -> Work:
        """Measuring a vector before it is coded, for a codec that can do that by itself."""
        return Work(coding_nbytes=costs.surveying(codec, codec.layout.size))

    def encoding(
        self, codec: Any, beside: Work = NOTHING, surveyed: bool = False
    ) -> Callable[[Message | Sequence[Any] | None], Work]:
        """Coding a vector that may be `surveyed`, and `beside` in the same computation.

        It is known once the message is made, or its buffers; None: there was nothing to send.
        """
        before = costs.surveying(codec, codec.layout.size) if surveyed else 0.0

        def charge(made: Message | Sequence[Any] | None) -> Work:
            return beside + Work(coding_nbytes=costs.encoding(codec, codec.layout.size, _size(made)) - before)

        return charge

    def decoding(self, codec: Any, message: Message) -> Work:
        """Taking the vector out of a message."""
        return Work(coding_nbytes=costs.decoding(codec, codec.layout.size, _size(message)))

    def adding(self, codec: Any, messages: Sequence[Message]) -> Work:
        """Adding up the vectors of several messages."""
        return Work(coding_nbytes=costs.adding(codec, codec.layout.size, [_size(message) for message in messages]))


def _size(made: Message | Sequence[Any] | None) -> int:
    """Bytes of a message's buffers."""
    return costs.size_of(made.buffers if isinstance(made, Message) else made or ())


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every system can be given for itself; those with further options subclass it.

    Parameters
    ----------
    of : the system that this is, where the table has a name of its own: `[systems.weightgrad-average]` with
        `of = "weightgrad"` is a second WeightGrad beside the first
    rate : learning rate in the place of the one that the experiment's schedule begins with
    momentum : in the place of its SGD's
    topology : "flat", where its workers are to talk to the global server past their LPSs, whatever others do
    tolerance : "none", unless given: servers wait for whoever is late, as papers print it. "leave-out": a server goes
        on without those who are not there `patience_s` (10) seconds after the first, if a share of `quorum` (0.5) of
        its workers, or regions, is; the global server after twice as long, since LPSs may wait first. Who comes back
        is told the weights of that moment (`roles.attendance`)
    """

    of: str | msgspec.UnsetType = msgspec.UNSET
    rate: Rate | msgspec.UnsetType = msgspec.UNSET  # unset: no key of `as_dict`, which records hold
    momentum: Fraction | msgspec.UnsetType = msgspec.UNSET
    topology: Literal["flat"] | msgspec.UnsetType = msgspec.UNSET
    tolerance: Literal["none", "leave-out"] | msgspec.UnsetType = msgspec.UNSET
    quorum: Share | msgspec.UnsetType = msgspec.UNSET
    patience_s: Positive | msgspec.UnsetType = msgspec.UNSET

    def tolerated(self) -> Tolerance | None:
        """When servers go on without those who are late; None for never."""
        if self.tolerance != "leave-out":
            return None
        given = {"quorum": _given(self.quorum), "patience_s": _given(self.patience_s)}
        return Tolerance(**{key: value for key, value in given.items() if value is not None})


@dataclass(frozen=True)
class Knob:
    """An option that `testbed tune` searches: of `choices`, or from `low` to `high`, evenly in its logarithm."""

    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    def nearest(self, value: Any) -> Any:
        """The value of the search that is nearest."""
        if self.choices:
            return min(self.choices, key=lambda choice: abs(choice - value))
        return min(max(value, self.low), self.high)


class System(ABC):
    """A training system. Subclass it in one file, `testbed/systems/` or a plug-in, set `name`, and it can be named.

    The coroutines keep nothing in local variables from step to step: all of it is in their state, a dataclass
    of tensors and numbers, so that a run can stop at any step boundary and go on from a file.
    """

    name: ClassVar[str] = ""
    options_type: ClassVar[type[Options]] = Options
    topologies: ClassVar[tuple[str, ...]] = ("tree", "flat")  # where it can run
    knobs: ClassVar[Mapping[str, Knob]] = {}  # its options, beside rate and momentum, that tuning searches
    own_momentum: ClassVar[bool] = False  # whether its option `momentum` is not the optimizer's
    # What its momentum makes of gradients: their sum, 1 / (1 - m) times as long; their mean; or, of either, a step of a
    # length of its own, whatever gradients are multiplied by (signs, Muon).
    momentum_of: ClassVar[Literal["sum", "mean", "unit"]] = "sum"
    own_clip: ClassVar[bool] = False  # whether it clips gradients itself, by `training.clip_norm`
    sums_gradients: ClassVar[bool] = True  # whether what a worker sends can be made from a sum of its GPUs' gradients
    follows_network: ClassVar[bool] = False  # whether what a message holds goes by how long others took
    alike: ClassVar[bool] = (
        False  # whether a region's workers are treated the same: collected, then answered at once; or in rings
    )
    tolerant: ClassVar[bool] = False  # whether it has the option `tolerance`
    returning: ClassVar[tuple[str, ...]] = ()  # the kinds of roles that then can take part again after their death
    peers: ClassVar[Kind | None] = None  # how its workers talk to each other where they have no server

    @classmethod
    def is_mesh(cls, options: Any, regions: int) -> bool:
        """Whether LPSs of so many regions exchange messages with each other."""
        return False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name != "":
            with naming(f"system '{cls.__qualname__}': name"):
                check_name(cls.name)
            SYSTEMS.add(cls.name, cls, cls.__module__)

    def __init__(self, task: Task, options: Any) -> None:
        self.task = replace(task, training=self.own_training(task.training, options))
        self.options = options
        self.tolerance = self._tolerance(options)
        self.varying: set[str] = set()  # kinds of messages that depend on the data: their size, or when they are sent

    def _tolerance(self, options: Any) -> Tolerance | None:
        tolerance = options.tolerated() if isinstance(options, Options) else None
        if tolerance is None and isinstance(options, Options):
            for key in ("quorum", "patience_s"):
                if _given(getattr(options, key)) is not None:
                    raise InputError(f"{self.name}: {key}: it goes with tolerance = 'leave-out'")
        if tolerance is not None and not self.tolerant:
            able = ", ".join(name for name in SYSTEMS if SYSTEMS[name].tolerant)
            raise InputError(f"{self.name}: tolerance: it always waits for all; those that can do without: {able}")
        return tolerance

    def attendance(self, node: Node, catch_up: CatchUp) -> Attendance:
        """Whom the server `node` waits for in its steps; `catch_up` makes what those are told who were not there."""
        tolerance, roles = self.tolerance, self.task.roles
        if tolerance is not None and node.name == roles.global_server and roles.lpss:
            tolerance = replace(tolerance, patience_s=2 * tolerance.patience_s)  # LPSs wait for workers meanwhile
        return Attendance(node, node.clients, tolerance, catch_up)

    def end(self, node: Node) -> None:
        """A role's last step is over: nothing that its server still sends matters."""
        if self.tolerance is not None:
            node.spawn_server(unanswered(node))

    def coder(self, codec: Any, kind: str = "") -> Any:
        """The codec of this system's messages of a kind, or in a timing-only run what stands in for it."""
        if fixed_sizes(codec) is None:
            self.varying.add(kind)
        if self.task.sizes is None:
            return placed(codec, self.task.initial.device)
        roles = self.task.roles
        return StandIn(codec, kind, self.task.sizes, (*roles.workers, *roles.lpss, roles.global_server))

    @property
    def folds(self) -> bool:
        """Whether one worker of a region can play for all: none computes, and they do the same at the same time."""
        sizes, roles = self.task.sizes, self.task.roles
        same = self.alike and self.tolerance is None and self.peers != "ring"  # of which a region has two ends
        return same and sizes is not None and sizes.alike(self.varying) and not roles.beside

    @classmethod
    def own_training(cls, training: Training, options: Options) -> Training:
        """The experiment's training with the rate and the momentum of the options.

        Raises
        ------
        InputError
            The optimizer has no momentum to be set.
        """
        momentum = msgspec.UNSET if cls.own_momentum else getattr(options, "momentum", msgspec.UNSET)
        return training.with_own(_given(getattr(options, "rate", msgspec.UNSET)), _given(momentum))

    @abstractmethod
    def initial_state(self, name: str) -> Any:
        """The state that role `name` starts from."""

    def unite(self, states: Mapping[str, Any]) -> None:  # noqa: B027, most have nothing that stays equal
        """Let what stays equal in all workers' states be one, where one process plays them all and takes no time.

        What is made of it once is there for all: a fabric must not measure how long that takes.
        """

    @abstractmethod
    async def worker(self, node: Node, state: Any) -> None:
        """A worker machine."""

    @abstractmethod
    async def lps(self, node: Node, state: Any) -> None:
        """The local parameter server of one region."""

    @abstractmethod
    async def global_server(self, node: Node, state: Any) -> None:
        """The global server."""

    @abstractmethod
    def models(self, states: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The models to evaluate, by name ("full", "quantized", "ema", each also per "@region"): flat weights.

        `states` holds every role's state; only those looked up are read from disk.
        """

    @cached_property
    def shown_by(self) -> tuple[str, ...]:
        """The roles whose states `models` looks up."""
        states = _Initial(self)
        self.models(states)
        return tuple(states.asked)

    def role(self, node: Node, state: Any) -> Any:
        """The coroutine of `node`'s role."""
        node.ledger.noted = self.varying
        play = {"worker": self.worker, "lps": self.lps, "gs": self.global_server}[kind_of(node.name)]
        return play(node, state)

    async def play(self, node: Node, state: Any, fresh: bool) -> None:
        """Play a role that was dead: `fresh`, with nothing that it remembered."""
        if fresh:
            begun = self.initial_state(node.name)
            for field in fields(state):
                setattr(state, field.name, getattr(begun, field.name))
        await self.rejoin(node, state)
        await self.role(node, state)

    async def rejoin(self, node: Node, state: Any) -> None:
        """Let a role that was dead catch up, one of the `returning`."""
        raise ProtocolError(f"{node.name}: {self.name} has no way back for it")

    def returns(self, name: str) -> bool:
        """Whether a role takes part again after its death."""
        return self.tolerance is not None and kind_of(name) in self.returning

    def worker_index(self, node: Node) -> int:
        """The worker's number in the run, which keys its data and its random draws."""
        return self.task.roles.stream_of(node.name)


def _given(value: float | msgspec.UnsetType) -> float | None:
    return None if isinstance(value, msgspec.UnsetType) else value


class _Initial(Mapping[str, Any]):
    """The states that a system's roles start from, each made when it is looked up; `asked` are those that were."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.asked: dict[str, None] = {}

    def __getitem__(self, role: str) -> Any:
        if role not in self._system.task.roles.all:
            raise KeyError(role)
        self.asked[role] = None
        return self._system.initial_state(role)

    def __iter__(self) -> Iterator[str]:
        return iter(self._system.task.roles.all)

    def __len__(self) -> int:
        return len(self._system.task.roles.all)
