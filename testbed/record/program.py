"""The facts of a program that ran on the emulated WAN, in `exec.json` beside its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.files import write_whole
from testbed.record.info import Environment, LinkInfo

FILE_NAME = "exec.json"


class ProgramInfo(msgspec.Struct, kw_only=True):
    """What ran, on which network, how it ended, and what the network carried.

    Hosts are "<region>/h<k>"; the second program of a host is "<region>/h<k>.2". Times have dilation divided out;
    bytes are those on the wire.
    """

    started: str = ""  # ISO 8601 with offset
    title: str = ""  # the program's name, or the file's that says what starts
    command: list[str] = []  # of `testbed`
    programs: dict[str, list[str]] = {}  # host -> words of what was started there
    profile: str = ""
    network: dict[str, LinkInfo] = {}  # WAN link -> as the profile states it
    dilation: float = 1.0
    hosts: dict[str, str] = {}  # -> address
    environment: Environment = msgspec.field(default_factory=Environment)
    gate: dict[str, Any] = {}  # what was measured before; {"skipped": true} with --no-gate
    took_s: float = 0.0
    status: int = 0  # the first failure's; 128 + n where signal n ended it
    statuses: dict[str, int | None] = {}
    services: list[str] = []  # of `programs`, those that were to end with the others
    delay: dict[str, Any] = {}  # how the delay stage and a trace did
    wan_bytes: dict[str, int] = {}
    wan_drops: dict[str, int] = {}  # packets that found a link's queue full
    error: str = ""


def write(folder: Path, info: ProgramInfo) -> None:
    """Write `info` to `folder/exec.json`, whole or not at all."""
    write_whole(folder / FILE_NAME, msgspec.json.format(msgspec.json.encode(info), indent=1) + b"\n")


def read(folder: Path) -> ProgramInfo:
    """Read `folder/exec.json`; fields that are not there keep their defaults.

    Raises
    ------
    InputError
        The file is missing, is not JSON, or holds a value of the wrong type.
    """
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=ProgramInfo)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
