"""The experiment file: TOML, typed and strict, one struct per part.

Whatever is wrong in it is one line that names the file, the key, what was found and what is allowed. A file may
hold other sizes of itself: `[scale.paper]` with the keys that differ, taken by `--scale paper`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import inspect

from testbed.compute import compute_model
from testbed.errors import InputError, nearest
from testbed.learning import models
from testbed.learning.config import Data, Training
from testbed.systems import SYSTEMS, Options
from testbed.wan import profile as profiles
from testbed.wan import trace as traces
from testbed.wan.plan import NetworkPlan, Roles
from testbed.wan.trace import Trace

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[model]`."""

    name: str = "cifarnet"


class Topology(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[topology]`: the WAN profile, the regions that hold data, and where the global server stands.

    `trace` is a file that says how the WAN's capacity changes over the run (`testbed.wan.trace`), by its path or its
    name in `topologies/traces/`.
    """

    profile: str
    regions: Annotated[list[str], msgspec.Meta(min_length=1)]
    server_region: str
    trace: str | None = None
    workers_per_region: Annotated[int, msgspec.Meta(ge=1, le=5)] = 4  # at most 5 an LPS: WeightGrad, B.2


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[compute]`: what a computation is charged, and how much slower the emulation runs than the clock says.

    `device` is "measured" (what this machine took) or a modelled device; `dilation` is the factor k by which
    rates are divided and delays multiplied in emulation, "auto" being the smallest at which the real math fits
    into the modelled device's time (1 when measured).
    """

    device: str = "measured"
    dilation: Positive | Literal["auto"] = "auto"


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[target]`: what time-to-target means: the training loss, averaged over `window` steps, or a test accuracy."""

    loss: Positive | None = None
    accuracy: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    window: Count = 10


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
    """

    seeds: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [0]
    )
    fabric: Literal["auto", "mininet", "virtual"] = "auto"
    checkpoint_steps: Count = 50
    eval_images: Count | None = None
    link_interval_s: Positive = 1.0
    patience_s: Positive = 300.0


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole experiment file; `systems` are the options by system name, in the order they run."""

    topology: Topology
    training: Training
    systems: dict[str, Any]
    title: str = ""
    model: Model = Model()
    data: Data = Data()
    compute: Compute = Compute()
    target: Target = Target()
    run: Run = Run()

    @property
    def roles(self) -> Roles:
        top = self.topology
        return Roles(tuple(top.regions), top.workers_per_region, top.server_region)

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

    def as_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` takes back."""
        return msgspec.to_builtins(self)


def load(
    name: str,
    overrides: Sequence[str] = (),
    scale: str = "",
    systems: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> Experiment:
    """Read an experiment by its name in `experiments/`, or by the path of its file.

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
    try:
        data = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    scales = data.pop("scale", {})
    if scale:
        if scale not in scales:
            raise InputError(f"{path}: no [scale.{scale}]{nearest(scale, scales)}")
        _lay_over(data, scales[scale])
    for override in overrides:
        _override(data, override)
    if systems:
        present = data.get("systems", {})
        data["systems"] = {system: present.get(system, {}) for system in systems}
    if seeds:
        data.setdefault("run", {})["seeds"] = list(seeds)
    return from_dict(data, str(path))


def find(name: str) -> Path:
    """The file of the experiment called `name` (or that file's path)."""
    path = Path(name) if name.endswith(".toml") else EXPERIMENTS / f"{name}.toml"
    if not path.is_file():
        known = [file.stem for file in EXPERIMENTS.glob("*.toml")]
        raise InputError(f"no experiment '{name}'{nearest(Path(name).stem, known)}")
    return path


def from_dict(data: dict[str, Any], source: str) -> Experiment:
    """Check plain data and make an experiment of it; `source` is the file that errors name."""
    _check_keys(data, inspect.type_info(Experiment), source, "")
    try:
        experiment = msgspec.convert(data, Experiment)
    except msgspec.ValidationError as error:
        raise InputError(_explain(error, data, source)) from None
    if not experiment.systems:
        raise InputError(f"{source}: [systems] is empty; known: {', '.join(sorted(SYSTEMS))}")
    options = {name: _options(name, table, source) for name, table in experiment.systems.items()}
    experiment = msgspec.structs.replace(experiment, systems=options)
    _check_names(experiment, source)
    return experiment


def _options(name: str, table: Any, source: str) -> Options:
    if name not in SYSTEMS:
        raise InputError(f"{source}: systems.{name}: unknown system '{name}'{nearest(name, SYSTEMS)}")
    kind = SYSTEMS[name].options_type
    _check_keys(table, inspect.type_info(kind), source, f"systems.{name}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InputError(_explain(error, table, source, f"systems.{name}.")) from None


def _check_names(experiment: Experiment, source: str) -> None:
    """Names that only their own part knows: each part's own error, with the file in front."""
    top = experiment.topology
    try:
        models.spec(experiment.model.name)
        experiment.training.worker_batch(len(experiment.roles.workers))
        compute_model(experiment.compute.device)
        profile = profiles.load(top.profile)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    for key, region in [("topology.server_region", top.server_region)] + [
        ("topology.regions", region) for region in top.regions
    ]:
        if region not in profile.regions:
            raise InputError(
                f"{source}: {key}: profile {profile.name} has no region '{region}'{nearest(region, profile.regions)}"
            )
    if len(set(top.regions)) < len(top.regions):
        raise InputError(f"{source}: topology.regions: a region is named twice")
    try:
        experiment.trace  # noqa: B018 - read for its errors
    except InputError as error:
        raise InputError(f"{source}: topology.trace: {error}") from None


def _check_keys(value: Any, kind: inspect.Type, source: str, path: str) -> None:
    """Raise on a key that no struct at that place has, with the nearest that it has."""
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


def _struct_for(value: Mapping[str, Any], kind: inspect.Type) -> inspect.StructType | None:
    """The struct that `value` is meant to be: the one, or of several the one whose tag it carries."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    structs = [each for each in kinds if isinstance(each, inspect.StructType)]
    if len(structs) == 1:
        return structs[0]
    return next((each for each in structs if value.get(each.tag_field or "") == each.tag), None)


def _explain(error: msgspec.ValidationError, data: Any, source: str, prefix: str = "") -> str:
    """msgspec's message as "file: key is value: what is allowed"."""
    text, _, place = str(error).partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    found = data
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(found, dict):
            found = found.get(part)
        elif isinstance(found, list) and part.isdigit():
            found = found[int(part)]
    if "missing required field" in text:
        field = text.rpartition("field `")[2].rstrip("`")
        where = f"{path}.{field}" if path else field
        return f"{source}: {prefix}{where} is missing; it must be set"
    found_text = "a table" if isinstance(found, dict) else repr(found)
    return f"{source}: {prefix}{path} is {found_text}: {text[:1].lower()}{text[1:].replace('`', '')}"


def _lay_over(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _lay_over(data[key], value)
        else:
            data[key] = value


def _override(data: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path.strip():
        raise InputError(f"--set {override}: write it as key.path=value, e.g. training.steps=50")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word
    *tables, key = path.strip().split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise InputError(f"--set {override}: {table} is not a table")
    data[key] = value
