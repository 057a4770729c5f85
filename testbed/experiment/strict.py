"""Reading plain data into structs strictly: whatever is wrong is one line that names the file, the key, what was found
and what is allowed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from testbed.errors import COMPARED, InputError, listed, nearest

S = TypeVar("S", bound=msgspec.Struct)
SHOWN = 100  # characters of a value
ANY = "..."  # in a place of msgspec's: some key of a dict


def read(data: Any, struct: type[S], source: str, path: str = "") -> S:
    """Make a `struct` of plain data; `source` is the file that errors name, `path` where in it the data stands.

    Raises
    ------
    InputError
        A key that the struct has not, a value of another type or out of its range, or a key that is missing.
    """
    kind = _type_info(struct)
    check_keys(data, kind, source, path)
    try:
        return msgspec.convert(data, struct)
    except msgspec.ValidationError as error:
        raise InputError(_explain(error, _place(error, data, struct), data, kind, source, path)) from None


_type_info = cache(inspect.type_info)


SHARED_BY = {"training.batch_size": ("topology.workers_per_region", "topology.regions", "compute.gpus_per_worker")}
"""By a key that may be wrong because of others, these: an option that gave one of them is to be named."""


@contextmanager
def blaming(source: str, options: Mapping[str, str]) -> Iterator[None]:
    """Within it, an error about a key that an option gave names the option, not the file, which says nothing of it."""
    try:
        yield
    except InputError as error:
        about = _about(error, source)
        for key, option in options.items():
            unknown = f"{key}.".startswith(f"{about.partition(': unknown key')[0]}.")
            if unknown or re.match(rf"{re.escape(key)}(?![\w-])", about):
                raise InputError(f"{option} {about}") from None
        for key in SHARED_BY.get(about.partition(" ")[0], ()):
            if key in options:
                raise InputError(f"{options[key]} {key}: {about}") from None
        raise


@contextmanager
def calling(names: Mapping[str, str], source: str) -> Iterator[None]:
    """Within it, an error about one of these places of the data calls it by its name, which is no place of the file."""
    try:
        yield
    except InputError as error:
        about = _about(error, source)
        for place, name in names.items():
            if about.startswith(place):
                raise InputError(name + about.removeprefix(place)) from None
        raise


def _about(error: InputError, source: str) -> str:
    """What an error says, behind the key that it is about."""
    said = str(error).removeprefix(f"{source}: ").removeprefix("sweep.")
    return re.sub(r"^unknown key '([^']*)'", r"\1: unknown key", said)


def check_keys(
    value: Any, kind: inspect.Type, source: str, path: str, whole: dict[str, inspect.Type] | None = None
) -> None:
    """Raise on a key that no struct at that place has, with the nearest that it, or another of the `whole`, has."""
    whole = dict(_keys(kind, path)) if whole is None else whole
    if isinstance(value, list):
        for item_kind in (each.item_type for each in _alternatives(kind) if isinstance(each, inspect.ListType)):
            for place, item in enumerate(value):
                check_keys(item, item_kind, source, f"{path}[{place}]", whole)
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
            raise InputError(f"{source}: unknown key '{where}'{_nearest_key(key, path, fields, whole)}")
        check_keys(inner, fields[key], source, where, whole)


def is_list(kind: inspect.Type, path: str) -> bool:
    """Whether a list is wanted at a dotted path, and nothing else."""
    found = dict(_keys(kind)).get(path)
    return isinstance(found, inspect.ListType)


def _keys(kind: inspect.Type, path: str = "") -> Iterator[tuple[str, inspect.Type]]:
    """Every key at and below a place, dotted, with what it takes."""
    for struct in _structs(kind):
        for field in struct.fields:
            where = f"{path}.{field.encode_name}" if path else field.encode_name
            yield where, field.type
            yield from _keys(field.type, where)


def _nearest_key(key: str, path: str, fields: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    """As `nearest`, with the section that a key is of: one of the same name elsewhere, else one like it here."""
    known = f"known: {listed(sorted(fields))}"
    near = [f"{path}.{found}" if path else found for found in difflib.get_close_matches(key[:COMPARED], fields, n=1)]
    elsewhere = [other for other in whole if other.rpartition(".")[2] == key]
    found = (elsewhere or near)[:1]
    return f"; did you mean '{found[0]}'? {known}" if found else f"; {known}"


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


def _place(error: msgspec.ValidationError, data: Any, struct: type) -> list[str]:
    """The keys and numbers that lead to what is wrong; msgspec names no key of a dict, but has "[...]" for any."""
    path = str(error).partition(" - at `$")[2].rstrip("`")
    parts = re.findall(r"\.\.\.|[^.\[\]]+", path)
    if ANY not in parts:
        return parts
    above = parts[: parts.index(ANY)]
    alone = ({key: value} for key, value in _at(data, above).items())
    wrong = next((each for each in alone if _refusal(_replaced(data, above, each), struct) == str(error)), {})
    return [*above, *wrong, *parts[len(above) + 1 :]]


def _at(data: Any, place: Sequence[str]) -> Any:
    for part in place:
        data = data[int(part) if isinstance(data, list) else part]
    return data


def _replaced(data: Any, place: Sequence[str], value: Any) -> Any:
    """A copy of plain data with another value at a place."""
    if not place:
        return value
    key = int(place[0]) if isinstance(data, list) else place[0]
    copied = copy(data)
    copied[key] = _replaced(data[key], place[1:], value)
    return copied


def _refusal(data: Any, struct: type) -> str:
    try:
        msgspec.convert(data, struct)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _explain(
    error: msgspec.ValidationError, place: Sequence[str], data: Any, kind: inspect.Type, source: str, prefix: str = ""
) -> str:
    """msgspec's message as "file: key is value: what is allowed"."""
    text = str(error).partition(" - at `$")[0]
    where = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in place)
    where = f"{prefix}{where}".lstrip(".")
    found, words = _find(data, kind, place)
    if "missing required field" in text:
        field = text.rpartition("field `")[2].rstrip("`")
        return f"{source}: {f'{where}.{field}'.strip('.')} is missing; it must be set"
    if text.startswith("Invalid") and words:
        return f"{source}: {where} is {_shown(found)}{nearest(str(found), words)}"
    if isinstance(found, dict) and (about := re.fullmatch(r"(\w+): (.*)", text)):  # from a struct's __post_init__
        return f"{source}: {where}.{about[1]}: {about[2]}"
    found_text = "a table" if isinstance(found, dict) else _shown(found)
    return f"{source}: {where} is {found_text}: {text[:1].lower()}{text[1:].replace('`', '')}"


def _shown(value: Any) -> str:
    """A value as a line can show it."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


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
