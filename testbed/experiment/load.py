"""From a file, or plain data, to experiments: scales, sweeps, changed keys, and the checks that cross its parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from testbed import plugins as plugin
from testbed import shipped
from testbed.errors import InputError, naming, nearest
from testbed.experiment import strict, sweeps
from testbed.experiment.schema import Experiment
from testbed.experiment.strict import blaming, calling
from testbed.faults import FAULTS, Fault, sentence
from testbed.files import NAME_BYTES, plain_name
from testbed.roles.compute import compute_model
from testbed.systems import SYSTEMS
from testbed.systems.registry import check_name
from testbed.wan import plain, reading
from testbed.workloads.data import base as datasets
from testbed.workloads.models import base as models

if TYPE_CHECKING:
    from testbed.systems import Options

Given = tuple[str, Any]  # a fault, a table or a sentence, behind what errors call it
FOLDER = "experiments"
SOURCE = "the experiment"  # what errors call plain data
ONE_FABRIC = "run.fabric"
NO_FAULT = "none"  # what a run of a series is called that has no fault
EXPERIMENT = inspect.type_info(Experiment)
# Tables whose keys depend on a name in them, its key, and what they are to be read as.
CHOSEN = {"model": ("name", models.kind_of), "data": ("dataset", datasets.kind_of)}


@dataclass(frozen=True)
class Point:
    """One run of a series.

    Attributes
    ----------
    label : names what it differs in, "" where there is no series
    place : for each axis of the series what the values of its keys are called
    """

    label: str
    experiment: Experiment
    place: list[dict[str, str]] = field(default_factory=list)


def load(
    what: str | Path | Mapping[str, Any] | Experiment,
    changes: Mapping[str, Any] | None = None,
    scale: str = "",
    systems: Sequence[str] = (),
    seeds: Sequence[int] = (),
    plugins: Sequence[str] = (),
    faults: Sequence[Given] = (),
    axes: Sequence[sweeps.Axis] = (),
    options: Mapping[str, str] | None = None,
) -> list[Point]:
    """Read an experiment: its one run, or its series.

    Parameters
    ----------
    what : its name in `experiments/`, the path of its file, or what such a file holds as plain data
    changes : values by dotted key, e.g. {"training.steps": 50}
    scale : a table of `[scale]` to lay over the file, "" for none
    systems, seeds : run only these; a system the file does not name runs with its default options
    plugins : to load besides those that the file names, as seen from the working directory
    faults : tables or sentences, besides those of the file, each behind what errors call it
    axes : of a series, besides those of the file; each of their places with each of the others
    options : by changed or swept key the option that gave it, e.g. "--set", which errors name instead of the file

    Raises
    ------
    InputError
        Anything in the file, the changes or the plug-ins that cannot be.
    """
    data, source, base = _opened(what)
    given = data.get("plugins", [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise InputError(f"{source}: plugins is {given!r}: it must be a list of modules and files")
    with naming(f"{source}: plugins"):
        named = plugin.load(given, base)
    if found := list(dict.fromkeys([*named, *plugin.load(plugins)])):
        data["plugins"] = found
    swept = _scaled(data, source, scale)
    changes = changes or {}
    with blaming(source, options or {}):
        for key, value in changes.items():
            _put(data, key, value, f"{source}: {key}")
        _state_anew(data, changes)
        names: dict[str, str] = _add_faults(data, faults, source) if faults else {}
        with calling(names, source):
            plain.check(data, source)  # which the file was when it was read, but not the changes
        present = _table(data.get("systems", {}), f"{source}: systems")
        _check_sizes(data, {*present, *systems}, source)
        if systems:
            names |= {f"systems.{name}: unknown": "systems: unknown" for name in {*systems} - {*present}}
            _refuse_others([*changes, *(key for axis in axes for key in axis)], systems, source)
            data["systems"] = {system: present.get(system, {}) for system in systems}
        if seeds:
            _table(data.setdefault("run", {}), f"{source}: run")["seeds"] = list(seeds)
        given_here = [*changes, *(key for axis in axes for key in axis), *(["faults"] if faults else [])]
        given_here += ["run.seeds"] if seeds else []
        swept = sweeps.without(swept, given_here)
        with calling(names, source):
            return _points(data, [*(_concerning(swept, systems) if systems else swept), *axes], source)


def called(faults: Sequence[Any], by: str) -> list[Given]:
    """Faults behind what errors call each: "faults[0]", and so on, behind where they come from."""
    return [(f"{by}faults[{number}]", fault) for number, fault in enumerate(faults)]


def read_given(faults: Sequence[Given]) -> list[Fault]:
    """Read faults, each behind what errors call it; InputError as `read_faults` raises."""
    data: dict[str, Any] = {}
    with calling(_add_faults(data, faults, SOURCE), SOURCE):
        return read_faults(data["faults"], SOURCE)


def _add_faults(data: dict[str, Any], faults: Sequence[Given], source: str) -> dict[str, str]:
    """Put faults behind those of the file; returns what errors call each, by its place among them all."""
    own = _list(data.get("faults", []), f"{source}: faults")
    data["faults"] = [*own, *(fault for _, fault in faults)]
    return {f"faults[{number}]": name for number, (name, _) in enumerate(faults, start=len(own))}


def _refuse_others(keys: Sequence[str], systems: Sequence[str], source: str) -> None:
    """InputError where a key that an option gives is of a system that is not played: it would change nothing."""
    for key in keys:
        table, _, rest = key.partition(".")
        if table == "systems" and rest and (name := rest.partition(".")[0]) not in systems:
            said = f"{name} is not among the systems that are played{nearest(name, systems)}"
            raise InputError(f"{source}: {key}: {said}")


def _scaled(data: dict[str, Any], source: str, scale: str) -> list[sweeps.Axis]:
    """Take scales and sweeps out of `data`, lay the scale over it, and return the axes of the series that it is."""
    scales = _table(data.pop("scale", {}), f"{source}: scale")
    axes = {"": sweeps.read(data.pop("sweep", {}), f"{source}: sweep")}
    for each, table in scales.items():
        if "sweep" in _table(table, f"{source}: scale.{each}"):
            axes[each] = sweeps.read(table.pop("sweep"), f"{source}: scale.{each}.sweep")
        _check_scale(table, data, source, f"scale.{each}")
    if scale:
        if scale not in scales:
            raise InputError(f"{source}: no [scale.{scale}]{nearest(scale, scales) if scales else ' or any other'}")
        _lay_over(data, scales[scale])
        laid = _table(scales[scale].get("target", {}), f"{source}: scale.{scale}.target")
        _state_anew(data, [f"target.{key}" for key in laid])
    return axes.get(scale, axes[""])


def _opened(what: str | Path | Mapping[str, Any] | Experiment) -> tuple[dict[str, Any], str, Path]:
    """The plain data, what errors call it, and the folder that it names files from."""
    if isinstance(what, Experiment):
        return what.as_dict(), SOURCE, Path()
    if isinstance(what, Mapping):
        plain.check(dict(what), SOURCE)
        return deepcopy(dict(what)), SOURCE, Path()
    path = find(str(what))
    return _read(path), str(path), path.parent


def _concerning(axes: Sequence[sweeps.Axis], systems: Sequence[str]) -> list[sweeps.Axis]:
    """The axes without options of systems that are not run."""
    kept = [{key: each for key, each in axis.items() if _system_of(key) in ("", *systems)} for axis in axes]
    return [axis for axis in kept if axis]


def _points(data: Mapping[str, Any], axes: Sequence[sweeps.Axis], source: str) -> list[Point]:
    """The runs of the series that has these axes."""
    points = []
    for place in sweeps.places(axes, f"{source}: sweep"):
        changed = deepcopy(dict(data))
        if ONE_FABRIC in (keys := {key: value for axis in place for key, value in axis.items()}):
            raise InputError(
                f"{source}: sweep.{ONE_FABRIC}: the runs of a series share their fabric; begin one on each"
            )
        for key, value in keys.items():
            _put(changed, key, value, f"{source}: sweep.{key}")
        _state_anew(changed, keys)
        names = sweeps.called(place, lambda key, value: _called(key, value, source))
        points.append(Point(sweeps.label(names), from_dict(changed, source), names))
    if len(points) > 1:
        sweeps.check_labels((point.label for point in points), f"{source}: sweep")
    return points


def _called(key: str, value: Any, source: str) -> str:
    """What a value of a series is called in its run's label; faults by what they are about."""
    if key != "faults":
        return sweeps.plain(value)
    return sweeps.word("+".join(fault.about for fault in read_faults(value, f"{source}: sweep"))) or NO_FAULT


def _system_of(key: str) -> str:
    """The system whose option a key is; "" for any other key."""
    table, _, rest = key.partition(".")
    return rest.partition(".")[0] if table == "systems" else ""


def _read(path: Path) -> dict[str, Any]:
    return plain.toml(reading.read_text(path), str(path))


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is {value!r}: it must be a table")
    return value


def faults_in(path: Path) -> list[Any]:
    """The `[[faults]]` of a TOML file, as plain data; InputError where it has none."""
    found = _read(path).get("faults")
    if not isinstance(found, list):
        raise InputError(f"{path}: no [[faults]] in it")
    return found


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where} is {value!r}: it must be a list of tables, or of sentences")
    return value


def names() -> list[str]:
    """The experiments that have a name: those here and the testbed's own."""
    return sorted(shipped.names(FOLDER, ".toml"))


def title_of(name: str) -> str:
    """The title of the experiment called `name`, which its file states; else ""."""
    return str(_read(find(name)).get("title", ""))


def find(name: str) -> Path:
    """The file of the experiment called `name` (or that file's path)."""
    path = Path(name) if name.endswith(".toml") else shipped.find(FOLDER, f"{name}.toml")
    if path is None or not shipped.is_file(path):
        known = shipped.names(FOLDER, ".toml")
        raise InputError(f"no experiment '{name}'{nearest(Path(name).stem, known)}; or give the path of a .toml file")
    plain_name(path.stem, f"{path}: the name of its runs,")
    return path


def from_dict(data: dict[str, Any], source: str) -> Experiment:
    """Check plain data and make an experiment of it, its plug-ins loaded; `source` is the file that errors name."""
    plain.check(data, source)
    if isinstance(data.get("plugins"), list):
        with naming(f"{source}: plugins"):
            plugin.load([str(name) for name in data["plugins"]])
    rest = {key: value for key, value in data.items() if key not in (*CHOSEN, "faults")}
    experiment = strict.read(rest, Experiment, source)
    if not experiment.systems:
        raise InputError(f"{source}: [systems] is empty; known: {', '.join(sorted(SYSTEMS))}")
    options = {name: _options(name, table, source) for name, table in experiment.systems.items()}
    chosen = {key: strict.read(data[key], _kind(key, data[key], source), source, key) for key in CHOSEN if key in data}
    faults = read_faults(data.get("faults", []), source)
    experiment = msgspec.structs.replace(experiment, systems=options, faults=faults, **chosen)
    _check_names(experiment, source)
    return experiment


def _options(name: str, table: Any, source: str) -> Options:
    of = table.get("of") if isinstance(table, Mapping) else None
    with naming(f"{source}: systems.{name[:NAME_BYTES]}"):
        if of is not None:  # else it is one that was checked when it was registered
            check_name(name)
        system = SYSTEMS.find(of if isinstance(of, str) else name)
    return strict.read(table, system.options_type, source, f"systems.{name}")


def read_faults(tables: Any, source: str) -> list[Fault]:
    """Read `[[faults]]`: tables, or sentences (`faults.sentence`).

    Raises
    ------
    InputError
        One is no fault.
    """
    found = []
    for number, table in enumerate(_list(tables, f"{source}: faults")):
        path = f"faults[{number}]"
        with naming(f"{source}: {path}"):
            table = sentence.read(table) if isinstance(table, str) else _table(table, "this")
            kind = FAULTS.find(str(table.get("kind", "")))
        plain.check(table, f"{source}: {path}")  # a sentence's numbers were words before
        found.append(strict.read(table, kind, source, path))
    return found


def _kind(key: str, table: Any, source: str) -> type[msgspec.Struct]:
    """What the table `key`, one of CHOSEN, is to be read as."""
    name, kind_of = CHOSEN[key]
    with naming(f"{source}: {key}.{name}"):
        return kind_of(table if isinstance(table, Mapping) else {})


def _check_scale(table: Mapping[str, Any], data: Mapping[str, Any], source: str, where: str) -> None:
    """Check the keys of a scale, which is to be laid over `data`."""
    strict.check_keys({key: value for key, value in table.items() if key not in CHOSEN}, EXPERIMENT, source, where)
    for key in CHOSEN:
        if isinstance(changes := table.get(key), dict):
            kind = _kind(key, {**_table(data.get(key, {}), f"{source}: {key}"), **changes}, source)
            strict.check_keys(changes, inspect.type_info(kind), source, f"{where}.{key}")


def _check_sizes(data: Mapping[str, Any], systems: Collection[str], source: str) -> None:
    """Sizes that are stated are of systems of the file, or of those that are asked for."""
    compute = data.get("compute")
    stated = compute.get("sizes") if isinstance(compute, Mapping) else None
    for name in stated if isinstance(stated, Mapping) else ():
        if name not in systems:
            raise InputError(f"{source}: compute.sizes: no system '{name}' here{nearest(str(name), systems)}")


def _check_topology(experiment: Experiment, system: str, source: str) -> None:
    """A system can run where its servers are to stand, and has some where it is told its own place for them."""
    kind, own = experiment.kind_of(system), experiment.systems[system].topology is not msgspec.UNSET
    if own and kind.peers:
        raise InputError(f"{source}: systems.{system}.topology: its workers have no server; leave it out")
    if (where := experiment.topology_of(system)) not in kind.topologies:
        key, wanted = "its topology" if own else "topology.kind", " or ".join(kind.topologies)
        raise InputError(f"{source}: systems.{system}: {key} is '{where}'; it needs '{wanted}'")


def _check_names(experiment: Experiment, source: str) -> None:
    """Names that only their own part knows: each part's own error, with the file in front."""
    from testbed.workloads.workload import check_fits  # which needs torch: what has been found wrong by now did not

    top = experiment.topology
    with naming(f"{source}: model.name"):
        check_fits(experiment.model, experiment.data)
    with naming(source):
        experiment.training.worker_batch(len(experiment.roles.workers), experiment.compute.gpus)
        compute_model(experiment.compute.device)
        experiment.compute.first_reduction_s(0)
    with naming(f"{source}: topology.profile"):
        profile = experiment.plan.profile
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
        _check_topology(experiment, system, source)
        if experiment.compute.gpus > 1 and not experiment.kind_of(system).sums_gradients:
            raise InputError(
                f"{source}: systems.{system}: what it sends cannot be added up among the GPUs of a worker first; "
                "compute.gpus_per_worker is to be 1"
            )
        with naming(f"{source}: systems.{system}"):
            experiment.kind_of(system).own_training(experiment.training, experiment.systems[system])
    if len(set(experiment.run.seeds)) < len(experiment.run.seeds):
        raise InputError(f"{source}: run.seeds: a seed is named twice")
    with naming(f"{source}: topology.trace"):
        experiment.trace  # noqa: B018 - read for its errors
    for number, fault in enumerate(experiment.faults):
        with naming(f"{source}: faults[{number}]"):
            fault.on_links(experiment.plan.wan)
            fault.on_roles(experiment.roles.all)
            between = fault.on_connections(experiment.roles.all)
            if between and not any(other in experiment.roles.neighbours(one) for one, other in between):
                raise InputError(f"{between[0][0]} and {between[0][1]} have no connection in this run")


def _lay_over(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict):
            _lay_over(data[key], value)
        else:
            data[key] = value


def _state_anew(data: Mapping[str, Any], changed: Collection[str]) -> None:
    """A target that is stated in the place of the file's is one for generated images, too."""
    target, given = data.get("target"), {key.removeprefix("target.") for key in changed if key.startswith("target.")}
    if isinstance(target, dict) and given & {"loss", "accuracy", "value"} and "stand_in_loss" not in given:
        target.pop("stand_in_loss", None)


def parse_changes(settings: Sequence[str]) -> dict[str, Any]:
    """The changes that `--set KEY=VALUE` asks for; a value is TOML, a bare word is a string, a list may be "a,b"."""
    changes: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        key = path.strip()
        if not equals or not key:
            raise InputError(f"--set {setting}: write it as key.path=value, e.g. training.steps=50")
        try:
            value = sweeps.value(text)
            listed = sweeps.value(f"[{text}]")
        except RecursionError:
            raise InputError(f"--set {key}: nested too deeply") from None
        if strict.is_list(EXPERIMENT, key) and not isinstance(value, list):
            value = listed if isinstance(listed, list) else [sweeps.value(word.strip()) for word in text.split(",")]
        changes[key] = value
    return changes


def _put(data: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set the key at a dotted path."""
    *tables, key = path.split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise InputError(f"{where}: {table} is not a table")
    data[key] = value
