"""What starts on which hosts, and what waits for what: one command for all, or a small TOML file.

[[start]]
hosts = "us-east-1-h0"                       # a host, a region, or a list of them; all where it is left out
run = "python -m http.server 8080"           # words as a shell splits them, but there is no shell; or a list
ready = "port 8080"                          # what starts after it waits until somebody listens there
service = true                               # it is ended when everything else has ended

[[start]]
hosts = "us-west-1"
run = ["sh", "-c", "curl -s http://us-east-1:8080/ > /dev/null"]
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from testbed.errors import InputError
from testbed.experiment import strict
from testbed.programs.hosts import named
from testbed.wan import plain, reading
from testbed.wan.plan import NetworkPlan

READY_S = 60.0
LARGEST_BYTES = 1 << 20  # of a file


@dataclass(frozen=True)
class Ready:
    """When a program counts as started: when somebody listens on `port`, or when it has written `line`."""

    port: int | None = None
    line: str = ""
    within_s: float = READY_S

    def __str__(self) -> str:
        return f"port {self.port}" if self.port else f"line '{self.line}'"


@dataclass(frozen=True)
class Start:
    """One command and the hosts that it starts on.

    Parameters
    ----------
    environment : variables beside those that every program is told
    ready : what the next commands wait for
    service : ended when all that are none have ended, and then no failure
    """

    hosts: tuple[str, ...]
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    ready: Ready | None = None
    service: bool = False


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    run: str | list[str]
    hosts: str | list[str] = msgspec.field(default_factory=list)
    ready: str = ""
    within_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = READY_S
    service: bool = False
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    start: Annotated[list[_Entry], msgspec.Meta(min_length=1)]


def everywhere(plan: NetworkPlan, command: Sequence[str]) -> list[Start]:
    """The same command on all hosts.

    Raises
    ------
    InputError
        There is no such command on this machine.
    """
    _find(command[0], "")
    return [Start(plan.hosts, tuple(command))]


def load(path: Path, plan: NetworkPlan) -> list[Start]:
    """Read a file of `[[start]]` tables, in the order in which they are started.

    Raises
    ------
    InputError
        The file cannot be read, has an unknown key, names a host, region or command that is not there, or all that
        it starts are services.
    """
    text = reading.read_text(path, limit_bytes=LARGEST_BYTES)
    data = plain.toml(text, str(path), any_text=True)  # NUL: see `_start`
    entries = strict.read(data, _File, str(path)).start
    found = [_start(entry, plan, f"{path}: start {number}") for number, entry in enumerate(entries, 1)]
    if all(start.service for start in found):
        raise InputError(f"{path}: all that it starts are services, which end with the rest; one must be none")
    return found


def _start(entry: _Entry, plan: NetworkPlan, where: str) -> Start:
    names = [entry.hosts] if isinstance(entry.hosts, str) else entry.hosts
    hosts = [host for name in names for host in named(plan, name, where)] or list(plan.hosts)
    try:
        words = shlex.split(entry.run) if isinstance(entry.run, str) else entry.run
    except ValueError as error:
        raise InputError(f"{where}: run is {entry.run!r}: {error}") from None
    if not words or any("\0" in word for word in words):
        raise InputError(f"{where}: run is {entry.run!r}; it must be a command and its arguments")
    _find(words[0], f"{where}: ")
    for name, value in entry.environment.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name) or "\0" in value:
            raise InputError(f"{where}: environment has '{name}', which is no name of a variable")
    environment = tuple(entry.environment.items())
    return Start(tuple(dict.fromkeys(hosts)), tuple(words), environment, _ready(entry, where), entry.service)


def _ready(entry: _Entry, where: str) -> Ready | None:
    kind, _, what = entry.ready.partition(" ")
    if not entry.ready:
        return None
    if kind == "port" and what.isdecimal() and 1 <= int(what) <= 65535:
        return Ready(port=int(what), within_s=entry.within_s)
    if kind == "line" and what:
        return Ready(line=what, within_s=entry.within_s)
    raise InputError(f"{where}: ready is '{entry.ready}'; it must be like 'port 8080' or 'line listening on'")


def _find(command: str, where: str) -> None:
    if shutil.which(command) is None:
        hint = "is it there, and executable?" if "/" in command else f"a program of this folder is ./{command}"
        raise InputError(f"{where}no command '{command}' on this machine; {hint}")
