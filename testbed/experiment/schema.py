"""The experiment file: TOML, typed and strict, one struct per part.

Whatever is wrong in it is one line that names the file, the key, what was found and what is allowed. A file may
hold other sizes of itself: `[scale.paper]` with the keys that differ, taken by `--scale paper`. And it may be a
series: `[sweep]` names keys with a list of values each, which are taken together, one run for each place in the
lists; of several `[[sweep]]` each place is taken with each of the others. Setting one of these keys on the command
line makes it a single run. A scale may have a `[sweep]` of its own, which takes the place of the file's; an empty one
makes it a single run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from testbed.faults import Schedule
from testbed.roles.compute import AUTO, MEASURED
from testbed.roles.gpu_links import GPU_LINKS, gpu_link
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS
from testbed.types import Count, Positive
from testbed.wan import profile as profiles
from testbed.wan import trace as traces
from testbed.wan.plan import NetworkPlan
from testbed.wan.tcp import Tcp
from testbed.wan.trace import Trace
from testbed.workloads import Data, Model
from testbed.workloads.config import Training

if TYPE_CHECKING:
    from testbed.systems import System

Asked = Annotated[float, msgspec.Meta(gt=0, le=1e7)] | msgspec.UnsetType
Dilation = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Interval = Annotated[float, msgspec.Meta(ge=1e-3, le=1e9)]  # seconds; records grow with their number
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Patience = Annotated[float, msgspec.Meta(gt=0, le=1e7)]  # seconds, 115 days: a timer cannot be set to much more
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Part = Annotated[float, msgspec.Meta(gt=0, le=1)]
WORKERS_AN_LPS = 5  # WeightGrad, Appendix B.2; more are a run's own choice, and its record says so
MOST_WORKERS = 16_384  # in a region
MOST_GPUS = 1_024  # a worker


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[topology]`: the WAN profile, the regions that hold data, and where the global server stands.

    `kind` is "tree" (workers - LPS - global server) or "flat" (every worker talks to the global server).
    `lan_mbit`, `wan_factor` and `rtt_factor` ask what if: the LAN's links with another goodput, and the WAN's with so
    many times the profile's goodput and round trip.
    `trace` is a file that says how the WAN's links change over the run (`testbed.wan.trace`), by its path or its
    name in `topologies/traces/`.
    """

    profile: str
    regions: Annotated[list[str], msgspec.Meta(min_length=1)]
    server_region: str
    trace: str | None = None
    kind: Literal["tree", "flat"] = "tree"
    workers_per_region: Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)] = 4
    lan_mbit: Asked = msgspec.UNSET  # unset: no key of `as_dict`, which records hold
    wan_factor: Asked = msgspec.UNSET
    rtt_factor: Asked = msgspec.UNSET


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[compute]`: what a computation is charged, and how much slower the emulation runs than the clock says.

    `device` is "measured" (what this machine took), a modelled device, or "auto": measured where time is real, a
    modelled device where it is virtual. `dilation` is the factor k by which rates are divided and delays multiplied
    in emulation, "auto" being the smallest at which the real math fits into the modelled device's time (1 when
    measured).

    `math = "none"` makes a run timing-only: computations are charged and not made, messages have their sizes and
    nothing in them, on the virtual fabric with a modelled device. `sizes` is what it takes the sizes from that depend
    on the data: the folder of a recorded run of the same systems, or by system a part of float32's bytes.

    With `gpus_per_worker` a worker is a machine of so many GPUs: each computes the gradient of its part of the worker's
    batch at the same time as the others, and before anything is coded or sent they add them up over `gpu_link`
    (`testbed.roles.gpu_links`), which is charged as computing.

    `fp32_precision` is how a real GPU multiplies float32 in gradients: "tf32", with 10 bits of fraction on its matrix
    units, or "ieee". It is no part of the modelled device.
    """

    device: str = AUTO
    dilation: Dilation | Literal["auto"] = "auto"
    math: Literal["full", "none"] | msgspec.UnsetType = msgspec.UNSET  # unset: no key of `as_dict`, which records hold
    sizes: str | dict[str, Part] | msgspec.UnsetType = msgspec.UNSET
    gpus_per_worker: Annotated[int, msgspec.Meta(ge=1, le=MOST_GPUS)] | msgspec.UnsetType = msgspec.UNSET
    gpu_link: str | msgspec.UnsetType = msgspec.UNSET
    fp32_precision: Literal["ieee", "tf32"] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.sizes is not msgspec.UNSET and self.math != "none":
            raise ValueError('sizes: a run that computes has its own; with math = "none", or --timing-only')
        if self.math == "none" and self.device == MEASURED:
            raise ValueError("device: a timing-only run computes nothing that could be measured; name a device")
        if self.gpus > 1 and self.gpu_link is msgspec.UNSET:
            raise ValueError(f"gpu_link: needed with gpus_per_worker, one of {', '.join(GPU_LINKS)}")
        if self.gpus == 1 and self.gpu_link is not msgspec.UNSET:
            raise ValueError("gpus_per_worker: of 2 or more is needed with gpu_link")
        if self.gpus > 1 and self.device == MEASURED:
            raise ValueError("device: several GPUs a worker are modelled and not measured; name a device")

    @property
    def precision(self) -> Literal["ieee", "tf32"]:
        """Of a gradient's products on a real GPU."""
        return "tf32" if isinstance(self.fp32_precision, msgspec.UnsetType) else self.fp32_precision

    @property
    def gpus(self) -> int:
        """GPUs of a worker."""
        return 1 if isinstance(self.gpus_per_worker, msgspec.UnsetType) else self.gpus_per_worker

    def first_reduction_s(self, nbytes: float) -> float:
        """Time in which a worker's GPUs add up gradients of `nbytes`."""
        link = self.gpu_link
        return 0.0 if isinstance(link, msgspec.UnsetType) else gpu_link(link).all_reduce_s(self.gpus, nbytes)

    @property
    def timing_only(self) -> bool:
        """Whether nothing is computed."""
        return self.math == "none"


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[target]`: what time-to-target means: the training loss, or a test's accuracy.

    Or it is `value` of the test's `metric`, whichever the data set has, e.g. "bits_per_character". All three are of the
    model that is reported: `model`, by default the quantized where a system has one, else the full-precision one. The
    loss is that of a fixed sample of the training data. Tests within `window` steps are averaged, and their mean stands
    for the middle of them. Where a generated stand-in takes the place of the data, the training loss is to come to
    `stand_in_loss` instead.
    """

    loss: Positive | None = None
    accuracy: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    window: Count = 10
    metric: str | msgspec.UnsetType = msgspec.UNSET  # unset: no key of `as_dict`, which records hold
    value: Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)] | msgspec.UnsetType = msgspec.UNSET

    model: Literal["full", "quantized", "ema"] | msgspec.UnsetType = msgspec.UNSET
    stand_in_loss: Positive | msgspec.UnsetType = msgspec.UNSET

    def on(self, real: bool) -> Target:
        """What is to be reached on the data set, or on its stand-in."""
        if self.stand_in_loss is msgspec.UNSET:
            return self
        of_data = msgspec.structs.replace(self, stand_in_loss=msgspec.UNSET)
        return of_data if real else Target(self.stand_in_loss, window=self.window, model=self.model)

    def __post_init__(self) -> None:
        if (self.metric is msgspec.UNSET) != (self.value is msgspec.UNSET):
            stated, lacking = ("value", "metric") if self.metric is msgspec.UNSET else ("metric", "value")
            raise ValueError(f"{lacking}: needed with {stated}")


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[run]`.

    Parameters
    ----------
    seeds : each system runs once per seed
    fabric : the network's kind by its name; "auto" takes an emulated one where it can run, else a virtual one
    checkpoint_steps : all roles stop, are saved and evaluated this often
    eval_images : test images an evaluation takes, None for all
    probe_steps : the model that is reported is tested this often, while the run's clock stands still; targets are
        judged by it. 0: never, and by the mean training loss and the evaluations at checkpoints instead
    probe_images : test images that takes, no more than `eval_images`, and as many training images
    stop_at_target : a system's run ends when a probe has shown that its target is reached, or that its loss is no
        number: at once on the virtual fabric, and then its last checkpoint is of before; else at the next checkpoint
    stop_after_s : a system's run ends as soon, in the same way, when so many seconds of its clock are over; with
        `stop_at_target`, when the target can no more be reached within them, which is known half a window later
    link_interval_s : bytes per link are recorded this often (at least every 10,000 s), inside the regions of virtual
        runs of over 64 hosts less
    timeline_steps : of so many steps, the first, each computation and each message is recorded (`testbed timeline`)
    patience_s : bound of every wait that has no other, in emulation
    gate : probe the emulated links before a run, which does not start if they are not what the profile says
    """

    seeds: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [0]
    )
    fabric: str = "auto"
    checkpoint_steps: Count = 50
    eval_images: Count | None = None
    probe_steps: Annotated[int, msgspec.Meta(ge=0)] = 10
    probe_images: Count = 500
    stop_at_target: bool = False
    stop_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | msgspec.UnsetType = (
        msgspec.UNSET
    )  # unset: no key of `as_dict`, which records hold
    link_interval_s: Interval = 1.0
    timeline_steps: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    patience_s: Patience = 300.0
    gate: bool = True

    def is_over(self, time_s: float) -> bool:
        """Whether a system's run has had the time that it was given."""
        return not isinstance(self.stop_after_s, msgspec.UnsetType) and time_s >= self.stop_after_s


class Cluster(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[cluster]`: of a run whose roles stand on the nodes of a Ray cluster (the fabric `cluster`).

    Parameters
    ----------
    nodes : by region, the addresses of its nodes; those of no region stand where their labels say
    encrypt : whether the roles' connections are authenticated and encrypted
    ports : the first and the last port that they listen on; any that is free where it is not given
    threads : of each role's math; with more than 1 sums come out in another order
    """

    nodes: dict[str, Annotated[list[str], msgspec.Meta(min_length=1)]] = {}
    encrypt: bool = True
    ports: Annotated[list[Port], msgspec.Meta(min_length=2, max_length=2)] | msgspec.UnsetType = msgspec.UNSET
    threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1

    def __post_init__(self) -> None:
        if self.port_range and self.port_range[0] > self.port_range[1]:
            raise ValueError(f"ports: {self.port_range[0]} is above {self.port_range[1]}")
        addresses = [address for each in self.nodes.values() for address in each]
        if twice := [address for address in addresses if addresses.count(address) > 1]:
            raise ValueError(f"nodes: {twice[0]} stands there twice")

    @property
    def port_range(self) -> tuple[int, int] | None:
        """`ports` as a pair; None for any."""
        return None if isinstance(self.ports, msgspec.UnsetType) else (self.ports[0], self.ports[1])


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A whole experiment file; `systems` are the options by system name, in the order they run.

    `faults` are what goes wrong on purpose (`testbed.faults`), `plugins` the modules and files that were loaded for its
    names (`testbed.plugins`). The profile and the trace are read once.
    """

    topology: Topology
    training: Training
    systems: dict[str, Any]
    title: str = ""
    model: Model = Model()
    data: Data = Data()
    compute: Compute = Compute()
    network: Tcp = Tcp()
    target: Target = Target()
    run: Run = Run()
    cluster: Cluster = Cluster()
    faults: list[Any] = []
    plugins: list[str] = []

    @cached_property
    def roles(self) -> Roles:
        """Who takes part; neighbours are those of all systems together."""
        top = self.topology
        shapes = dict.fromkeys(self.kind_of(system).peers or self.topology_of(system) for system in self.systems)
        beside = tuple(kind for kind in shapes if kind != top.kind)
        mesh = any(map(self._is_mesh, self.systems))
        return Roles(tuple(top.regions), top.workers_per_region, top.server_region, top.kind, mesh, beside)

    def kind_of(self, system: str) -> type[System]:
        """What the table `[systems.<system>]` runs: what it is `of`, or the system of its own name."""
        of = self.systems[system].of
        return SYSTEMS[system if isinstance(of, msgspec.UnsetType) else of]

    def topology_of(self, system: str) -> Literal["tree", "flat"]:
        """Where the servers of a system stand: in its own topology, or in the experiment's."""
        own = self.systems[system].topology
        return self.topology.kind if isinstance(own, msgspec.UnsetType) else own

    def roles_of(self, system: str) -> Roles:
        """Who takes part, and who talks to whom, in a run of `system`."""
        kind = self.kind_of(system).peers or self.topology_of(system)
        return replace(self.roles, kind=kind, mesh=self._is_mesh(system), beside=())

    def _is_mesh(self, system: str) -> bool:
        """Whether its LPSs exchange messages with each other."""
        return self.kind_of(system).is_mesh(self.systems[system], len(self.topology.regions))

    @cached_property
    def plan(self) -> NetworkPlan:
        top = self.topology
        asked = {name: getattr(top, name) for name in ("lan_mbit", "wan_factor", "rtt_factor")}
        changed = {name: value for name, value in asked.items() if value is not msgspec.UNSET}
        profile = profiles.load(top.profile)
        return NetworkPlan(self.roles.all, profile.altered(**changed) if changed else profile)

    @cached_property
    def trace(self) -> Trace | None:
        if self.topology.trace is None:
            return None
        return traces.load(traces.find(self.topology.trace), self.plan.regions)

    @cached_property
    def schedule(self) -> Schedule | None:
        """What changes over a run; None where nothing does."""
        if self.trace is None and not self.faults:
            return None
        return Schedule(self.trace, self.faults, self.plan.wan, self.roles.all)

    @cached_property
    def network_plan(self) -> NetworkPlan:
        """The plan with room for all that the schedule will make of its links."""
        return self.schedule.on(self.plan) if self.schedule else self.plan

    def on(self, device: str) -> Experiment:
        """The experiment with `device` in the place of `compute.device = "auto"`."""
        if self.compute.device != AUTO:
            return self
        return msgspec.structs.replace(self, compute=msgspec.structs.replace(self.compute, device=device))

    def on_data(self, real: bool) -> Experiment:
        """The experiment with the target that stands for its data set, or for the stand-in."""
        return msgspec.structs.replace(self, target=self.target.on(real))

    def as_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` takes back."""
        data = msgspec.to_builtins(self)
        for key in ("faults", "plugins"):
            if not data[key]:  # as before there were any: equal experiments, equal hashes
                del data[key]
        if self.cluster == Cluster():
            del data["cluster"]
        return data
