"""The experiment file: TOML, typed and strict, one struct per part.

Whatever is wrong in it is one line that names the file, the key, what was found and what is allowed. A file may
hold other sizes of itself: `[scale.paper]` with the keys that differ, taken by `--scale paper`. And it may be a
series: `[sweep]` names keys with a list of values each, which are taken together, one run for each place in the
lists. Setting one of these keys on the command line makes it a single run. A scale may have a `[sweep]` of its own,
which takes the place of the file's; an empty one makes it a single run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from testbed.compute import compute_model
from testbed.errors import InputError, nearest
from testbed.systems import SYSTEMS, Options
from testbed.wan import profile as profiles
from testbed.wan import trace as traces
from testbed.wan.plan import NetworkPlan, Roles
from testbed.wan.tcp import Tcp
from testbed.wan.trace import Trace
from testbed.workloads import Data, Model
from testbed.workloads.config import Training
from testbed.workloads.data import base as datasets
from testbed.workloads.models import base as models
from testbed.workloads.workload import check_fits

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"

T = TypeVar("T")
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
WORKERS_AN_LPS = 5  # WeightGrad, Appendix B.2


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[topology]`: the WAN profile, the regions that hold data, and where the global server stands.

    `kind` is "tree" (workers - LPS - global server) or "flat" (every worker talks to the global server).
    `trace` is a file that says how the WAN's links change over the run (`testbed.wan.trace`), by its path or its
    name in `topologies/traces/`.
    """

    profile: str
    regions: Annotated[list[str], msgspec.Meta(min_length=1)]
    server_region: str
    trace: str | None = None
    kind: Literal["tree", "flat"] = "tree"
    workers_per_region: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4

    def __post_init__(self) -> None:
        if self.kind == "tree" and self.workers_per_region > WORKERS_AN_LPS:
            raise ValueError(f"workers_per_region: an LPS serves at most {WORKERS_AN_LPS}; use more regions, or flat")


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[compute]`: what a computation is charged, and how much slower the emulation runs than the clock says.

    `device` is "measured" (what this machine took) or a modelled device; `dilation` is the factor k by which
    rates are divided and delays multiplied in emulation, "auto" being the smallest at which the real math fits
    into the modelled device's time (1 when measured).
    """

    device: str = "measured"
    dilation: Positive | Literal["auto"] = "auto"


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[target]`: what time-to-target means: the training loss, averaged over `window` steps, or a test's accuracy.

    Or it is `value` of the test's `metric`, whichever the data set has, e.g. "bits_per_character".
    """

    loss: Positive | None = None
    accuracy: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    window: Count = 10
    metric: str | msgspec.UnsetType = msgspec.UNSET  # unset: no key of `as_dict`, which records hold
    value: Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.metric is msgspec.UNSET) != (self.value is msgspec.UNSET):
            stated, lacking = ("value", "metric") if self.metric is msgspec.UNSET else ("metric", "value")
            raise ValueError(f"{lacking}: needed with {stated}")


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[run]`.

    Parameters
    ----------
    seeds : each system runs once per seed
    fabric : "auto" takes "mininet" where it can run, else "virtual"
    checkpoint_steps : all roles stop, are saved and evaluated this often
    eval_images : test images an evaluation takes, None for all
    link_interval_s : bytes per link are recorded this often
    patience_s : bound of every wait that has no other, in emulation
    gate : probe the emulated links before a run, which does not start if they are not what the profile says
    """

    seeds: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [0]
    )
    fabric: Literal["auto", "mininet", "virtual"] = "auto"
    checkpoint_steps: Count = 50
    eval_images: Count | None = None
    link_interval_s: Positive = 1.0
    patience_s: Positive = 300.0
    gate: bool = True


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole experiment file; `systems` are the options by system name, in the order they run."""

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

    @property
    def roles(self) -> Roles:
        """Who takes part; neighbours are those of all systems together."""
        top = self.topology
        mesh = any(SYSTEMS[system].mesh for system in self.systems)
        return Roles(tuple(top.regions), top.workers_per_region, top.server_region, top.kind, mesh)

    def roles_of(self, system: str) -> Roles:
        """Who takes part, and who talks to whom, in a run of `system`."""
        return replace(self.roles, mesh=SYSTEMS[system].mesh)

    @property
    def plan(self) -> NetworkPlan:
        return NetworkPlan(self.roles.all, profiles.load(self.topology.profile))

    @property
    def trace(self) -> Trace | None:
        if self.topology.trace is None:
            return None
        path = Path(self.topology.trace)
        stored = traces.TRACES / f"{path.name.removesuffix('.csv')}.csv"
        return traces.load(stored if not path.is_file() and stored.is_file() else path, self.plan.regions)

    @property
    def not_emulated(self) -> str:
        """Why no emulated network can run this; "" where one can."""
        asked = [key for key, value in msgspec.structs.asdict(self.network).items() if value]
        return f"it has a TCP of its own, and no network.{asked[0]}" if asked else ""

    @property
    def not_virtual(self) -> str:
        """Why the virtual network cannot run this; "" where it can."""
        impaired = [f"{src} to {dst}" for (src, dst), link in self.plan.wan.items() if link.impaired]
        return f"it knows no packets, and the profile asks for loss or jitter on {impaired[0]}" if impaired else ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` takes back."""
        return msgspec.to_builtins(self)


EXPERIMENT = inspect.type_info(Experiment)
# Tables whose keys depend on a name in them, its key, and what they are to be read as.
CHOSEN = {"model": ("name", models.kind_of), "data": ("dataset", datasets.kind_of)}


@dataclass(frozen=True)
class Point:
    """One run of a series; `label` names what it differs in, "" where there is no series."""

    label: str
    experiment: Experiment


def load(
    name: str,
    overrides: Sequence[str] = (),
    scale: str = "",
    systems: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> list[Point]:
    """Read an experiment by its name in `experiments/`, or by the path of its file: its one run, or its series.

    Parameters
    ----------
    overrides : "key.path=value" each, value as TOML (a bare word is a string)
    scale : a table of `[scale]` to lay over the file, "" for none
    systems, seeds : run only these; a system the file does not name runs with its default options

    Raises
    ------
    InputError
        Anything in the file or the overrides that cannot be.
    """
    path = find(name)
    data = _read(path)
    scales = _table(data.pop("scale", {}), f"{path}: scale")
    sweeps = {"": _sweep(data.pop("sweep", {}), f"{path}: sweep")}
    for each, table in scales.items():
        if "sweep" in _table(table, f"{path}: scale.{each}"):
            sweeps[each] = _sweep(table.pop("sweep"), f"{path}: scale.{each}.sweep")
        _check_scale(table, data, str(path), f"scale.{each}")
    if scale:
        if scale not in scales:
            raise InputError(f"{path}: no [scale.{scale}]{nearest(scale, scales) if scales else ' or any other'}")
        _lay_over(data, scales[scale])
    sweep = sweeps.get(scale, sweeps[""])
    for override in overrides:
        if _override(data, override) in sweep:
            sweep = {}
    if systems:
        present = _table(data.get("systems", {}), f"{path}: systems")
        data["systems"] = {system: present.get(system, {}) for system in systems}
        sweep = {key: values for key, values in sweep.items() if _system_of(key) in ("", *systems)}
    if seeds:
        _table(data.setdefault("run", {}), f"{path}: run")["seeds"] = list(seeds)
    return [_point(data, sweep, place, path) for place in range(max(map(len, sweep.values()), default=1))]


def _sweep(sweep: Any, where: str) -> dict[str, list[Any]]:
    """`[sweep]`, checked: keys with lists of values, as many for each."""
    values = _table(sweep, where)
    for key, each in values.items():
        if not isinstance(each, list) or not each:
            raise InputError(f"{where}.{key} is {each!r}: it must be a list of values")
    lengths = {key: len(each) for key, each in values.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise InputError(f"{where}: its lists are taken together and must be equally long; {counts}")
    return values


def _point(data: Mapping[str, Any], sweep: Mapping[str, list[Any]], place: int, path: Path) -> Point:
    """The run at a place of the series."""
    changed = deepcopy(dict(data))
    for key, values in sweep.items():
        _put(changed, key, values[place], f"{path}: sweep.{key}")
    label = "-".join(f"{_short(key)}={values[place]}" for key, values in sweep.items())
    return Point(label, from_dict(changed, str(path)))


def _system_of(key: str) -> str:
    """The system whose option a key is; "" for any other key."""
    table, _, rest = key.partition(".")
    return rest.partition(".")[0] if table == "systems" else ""


def _short(key: str) -> str:
    """A key as a point's label names it: its last part, a system's option behind the system's name."""
    return key.removeprefix("systems.") if _system_of(key) else key.rpartition(".")[2]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r}: it must be a table")
    return value


def find(name: str) -> Path:
    """The file of the experiment called `name` (or that file's path)."""
    path = Path(name) if name.endswith(".toml") else EXPERIMENTS / f"{name}.toml"
    if not path.is_file():
        known = [file.stem for file in EXPERIMENTS.glob("*.toml")]
        raise InputError(f"no experiment '{name}'{nearest(Path(name).stem, known)}")
    return path


def from_dict(data: dict[str, Any], source: str) -> Experiment:
    """Check plain data and make an experiment of it; `source` is the file that errors name."""
    plain = {key: value for key, value in data.items() if key not in CHOSEN}
    _check_keys(plain, EXPERIMENT, source, "")
    try:
        experiment = msgspec.convert(plain, Experiment)
    except msgspec.ValidationError as error:
        raise InputError(_explain(error, data, EXPERIMENT, source)) from None
    if not experiment.systems:
        raise InputError(f"{source}: [systems] is empty; known: {', '.join(sorted(SYSTEMS))}")
    options = {name: _options(name, table, source) for name, table in experiment.systems.items()}
    chosen = {key: _read_as(_kind(key, data[key], source), data[key], source, key) for key in CHOSEN if key in data}
    experiment = msgspec.structs.replace(experiment, systems=options, **chosen)
    _check_names(experiment, source)
    return experiment


def _options(name: str, table: Any, source: str) -> Options:
    if name not in SYSTEMS:
        raise InputError(f"{source}: systems.{name}: unknown system '{name}'{nearest(name, SYSTEMS)}")
    return _read_as(SYSTEMS[name].options_type, table, source, f"systems.{name}")


def _read_as(kind: type[T], table: Any, source: str, where: str) -> T:
    """A table of the file as a struct."""
    _check_keys(table, inspect.type_info(kind), source, where)
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InputError(_explain(error, table, inspect.type_info(kind), source, where)) from None


def _kind(key: str, table: Any, source: str) -> type[msgspec.Struct]:
    """What the table `key`, one of CHOSEN, is to be read as."""
    name, kind_of = CHOSEN[key]
    with _naming(f"{source}: {key}.{name}"):
        return kind_of(table if isinstance(table, Mapping) else {})


def _check_scale(table: Mapping[str, Any], data: Mapping[str, Any], source: str, where: str) -> None:
    """Check the keys of a scale, which is to be laid over `data`."""
    _check_keys({key: value for key, value in table.items() if key not in CHOSEN}, EXPERIMENT, source, where)
    for key in CHOSEN:
        if isinstance(changes := table.get(key), dict):
            kind = _kind(key, {**data.get(key, {}), **changes}, source)
            _check_keys(changes, inspect.type_info(kind), source, f"{where}.{key}")


def _check_names(experiment: Experiment, source: str) -> None:
    """Names that only their own part knows: each part's own error, with the file in front."""
    top = experiment.topology
    with _naming(f"{source}: model.name"):
        check_fits(experiment.model, experiment.data)
    with _naming(source):
        experiment.training.worker_batch(len(experiment.roles.workers))
        compute_model(experiment.compute.device)
    with _naming(f"{source}: topology.profile"):
        profile = profiles.load(top.profile)
    for key, region in [("topology.server_region", top.server_region)] + [
        ("topology.regions", region) for region in top.regions
    ]:
        if region not in profile.regions:
            raise InputError(
                f"{source}: {key}: profile {profile.name} has no region '{region}'{nearest(region, profile.regions)}"
            )
    if len(set(top.regions)) < len(top.regions):
        raise InputError(f"{source}: topology.regions: a region is named twice")
    for system in experiment.systems:
        if top.kind not in SYSTEMS[system].topologies:
            wanted = " or ".join(SYSTEMS[system].topologies)
            raise InputError(f"{source}: systems.{system}: topology.kind is '{top.kind}'; it needs '{wanted}'")
    if len(set(experiment.run.seeds)) < len(experiment.run.seeds):
        raise InputError(f"{source}: run.seeds: a seed is named twice")
    with _naming(f"{source}: topology.trace"):
        experiment.trace  # noqa: B018 - read for its errors


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _check_keys(value: Any, kind: inspect.Type, source: str, path: str) -> None:
    """Raise on a key that no struct at that place has, with the nearest that it has, and on numbers beyond msgspec."""
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise InputError(f"{source}: {path} is {number}: it must fit into 64 bits")
    if not isinstance(value, dict):
        return
    struct = _struct_for(value, kind)
    if struct is None:
        return
    fields = {field.encode_name: field.type for field in struct.fields}
    if struct.tag_field:
        fields[struct.tag_field] = inspect.StrType()
    for key, inner in value.items():
        where = f"{path}.{key}" if path else key
        if key not in fields:
            raise InputError(f"{source}: unknown key '{where}'{nearest(key, fields)}")
        _check_keys(inner, fields[key], source, where)


def _structs(kind: inspect.Type) -> list[inspect.StructType]:
    return [each for each in _alternatives(kind) if isinstance(each, inspect.StructType)]


def _alternatives(kind: inspect.Type) -> Sequence[inspect.Type]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _struct_for(value: Mapping[str, Any], kind: inspect.Type) -> inspect.StructType | None:
    """The struct that `value` is meant to be: the one, or of several the one whose tag it carries."""
    structs = _structs(kind)
    if len(structs) == 1:
        return structs[0]
    return next((each for each in structs if value.get(each.tag_field or "") == each.tag), None)


def _explain(error: msgspec.ValidationError, data: Any, kind: inspect.Type, source: str, prefix: str = "") -> str:
    """msgspec's message as "file: key is value: what is allowed"."""
    text, _, place = str(error).partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    where = f"{prefix}.{path}".strip(".")
    found, words = _find(data, kind, re.findall(r"[^.\[\]]+", path))
    if "missing required field" in text:
        field = text.rpartition("field `")[2].rstrip("`")
        return f"{source}: {f'{where}.{field}'.strip('.')} is missing; it must be set"
    if text.startswith("Invalid") and words:
        return f"{source}: {where} is {found!r}{nearest(str(found), words)}"
    if isinstance(found, dict) and (about := re.fullmatch(r"(\w+): (.*)", text)):  # from a struct's __post_init__
        return f"{source}: {where}.{about[1]}: {about[2]}"
    found_text = "a table" if isinstance(found, dict) else repr(found)
    return f"{source}: {where} is {found_text}: {text[:1].lower()}{text[1:].replace('`', '')}"


def _find(data: Any, kind: inspect.Type, parts: Sequence[str]) -> tuple[Any, list[str]]:
    """What stands at a place of the file, and the words allowed there, if only some are."""
    tags: list[str] = []
    for part in parts:
        if isinstance(data, list):
            data = data[int(part)]
            continue
        tags = [str(struct.tag) for struct in _structs(kind) if struct.tag_field == part]
        struct = _struct_for(data, kind)
        kinds = [field.type for field in struct.fields if field.encode_name == part] if struct else []
        data, kind = data.get(part), kinds[0] if kinds else inspect.AnyType()
    literals = [each for each in _alternatives(kind) if isinstance(each, inspect.LiteralType)]
    words = [str(value) for literal in literals for value in literal.values]
    numeric = any(isinstance(each, inspect.FloatType) for each in _alternatives(kind))
    return data, tags or (words + ["a number"] * numeric if words else [])


def _lay_over(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _lay_over(data[key], value)
        else:
            data[key] = value


def _override(data: dict[str, Any], override: str) -> str:
    """Change a key as `--set` says; returns the key."""
    path, equals, text = override.partition("=")
    key = path.strip()
    if not equals or not key:
        raise InputError(f"--set {override}: write it as key.path=value, e.g. training.steps=50")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word
    _put(data, key, value, f"--set {override}")
    return key


def _put(data: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set the key at a dotted path."""
    *tables, key = path.split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise InputError(f"{where}: {table} is not a table")
    data[key] = value
