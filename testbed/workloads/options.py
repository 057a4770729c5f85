"""`[model]` and `[data]` of an experiment file: a name, and beside it the options of what it names.

What can be named is a function with keyword parameters; these are its options, typed by their annotations, with their
defaults. A struct in place of them says what several options must be together (`models/gpt.py`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from testbed.errors import InputError
from testbed.plugins import Registry

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def find(registry: Registry[T], name: str) -> T:
    """What `name` stands for in `registry`.

    Raises
    ------
    InputError
        Nothing; the message says what can be named, or how a file's own is brought in.
    """
    file, colon, _ = name.partition(":")
    if colon or name.endswith(".py"):
        raise InputError(
            f"'{name}' is a file, not the name of a {registry.kind}; "
            f'bring it with plugins = ["{file}"] and @testbed.{registry.kind.replace(" ", "")}'
        )
    return registry.find(name)


def extended(base: type[S], function: Callable[..., Any]) -> type[S]:
    """Return `base` with a field for each parameter of `function` (a function or a class) but the first.

    Raises
    ------
    InputError
        `base` has a field of that name.
    """
    called = inspect.getattr_static(function, "__init__") if isinstance(function, type) else function
    hints = typing.get_type_hints(called, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        name, default = parameter.name, parameter.default
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in base.__struct_fields__:
            raise InputError(f"{function.__qualname__}: an option cannot be called '{name}'; choose another name")
        if default is parameter.empty:
            fields.append((name, hints.get(name, Any)))
        else:
            fields.append((name, hints.get(name, Any if default is None else type(default)), default))
    if not fields:
        return base
    made = msgspec.defstruct(
        base.__name__, fields, bases=(base,), frozen=True, forbid_unknown_fields=True, kw_only=True
    )
    return typing.cast(type[S], made)


def beyond(struct: msgspec.Struct, base: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `struct` that `base` does not have, with their values."""
    return {name: getattr(struct, name) for name in struct.__struct_fields__ if name not in base.__struct_fields__}
