"""The facts of a program that ran on the emulated WAN, in `exec.json` beside its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from testbed.record.info import Environment, LinkInfo, OnDamage, read_facts, write_facts

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
    told: list[str] = []  # of `programs`, those that were told to end: services at last, the others of one that failed
    delay: dict[str, Any] = {}  # how the delay stage and a trace did
    wan_bytes: dict[str, int] = {}
    wan_drops: dict[str, int] = {}  # packets that found a link's queue full
    error: str = ""
    checksums: dict[str, str] = {}  # of the tables beside it (`testbed.files.crc32_of`), by file name

    @property
    def failed(self) -> list[str]:
        """Those that ended with an error by themselves."""
        return [name for name, status in self.statuses.items() if status and name not in self.told]


def write(folder: Path, info: ProgramInfo) -> None:
    """Write `info` to `folder/exec.json`, whole or not at all."""
    write_facts(folder / FILE_NAME, info)


def read(folder: Path, on_damage: OnDamage | None = None) -> ProgramInfo:
    """Read `folder/exec.json` as `testbed.record.info.read_facts` reads it."""
    return read_facts(folder / FILE_NAME, ProgramInfo, on_damage)
