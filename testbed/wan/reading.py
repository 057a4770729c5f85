"""Strict reading of the small text files that describe a network: every error is one line with file and line number.

A file's size is looked at before it is read, and a number is checked for being one, finite and in range.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from testbed.errors import InputError, listed, nearest
from testbed.wan import plain

LIMIT_BYTES = 32 * 2**20  # hours of iperf3 intervals; what is larger is not what it was taken for
RATE_LIMIT_MBIT = 10e6  # 10 Tbit/s: above it the unit is wrong
RATE_LEAST_MBIT = 1e-3  # a packet in twelve seconds; what is slower is as good as cut
RTT_LIMIT_MS = 60e3  # a minute: above it the unit is wrong
UNITS_MBIT = {  # the names that options and column heads use for a unit of rate
    "bit/s": 1e-6,
    "kbit/s": 1e-3,
    "Mbit/s": 1.0,
    "Gbit/s": 1e3,
    "kB/s": 8e-3,
    "MB/s": 8.0,
    "GB/s": 8e3,
}
Struct = TypeVar("Struct", bound=msgspec.Struct)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Row:
    """One line of a table; `where` is "file:line" for errors."""

    where: str
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """A cell without surrounding blanks."""
        return self.cells[column].strip()

    def number(self, column: str) -> float:
        """A cell that must be a finite number."""
        return number(self.text(column), f"{self.where}: {column}")

    def region(self, column: str) -> str:
        """A cell that must be the name of a region."""
        return region(self.text(column), f"{self.where}: {column}")


@dataclass(frozen=True)
class Table:
    """A CSV file: comment lines (`# ...`) before the header, the header, and rows that are checked as they come."""

    where: str  # "file:line" of the header
    comments: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Iterator[Row]

    def column(self, *names: str) -> str:
        """The first of `names` that the table has as a column.

        Raises
        ------
        InputError
            It has none of them.
        """
        for name in names:
            if name in self.columns:
                return name
        raise InputError(f"{self.where}: no column '{names[0]}'{nearest(names[0], self.columns)}")


def read_text(path: Path, hint: str = "", limit_bytes: int = LIMIT_BYTES) -> str:
    """The whole of a text file of at most `limit_bytes`.

    Raises
    ------
    InputError
        It is not there, not a plain file, too large or not text; `hint` ends the message.
    """
    tail = f"; {hint}" if hint else ""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a plain file{tail}")
        size_bytes = path.stat().st_size
        if size_bytes > limit_bytes:
            raise InputError(f"{path}: {size_bytes:,} bytes; at most {limit_bytes:,} are read{tail}")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        if isinstance(error, FileNotFoundError) and not path.is_absolute():
            reason = f"{reason} in {Path.cwd()}"  # of a run that is resumed, maybe not where it was begun
        raise InputError(f"{path}: {reason}{tail}") from None


def read_toml(path: Path, kind: type[Struct], hint: str = "", any_text: bool = False) -> Struct:
    """A TOML file as the msgspec struct `kind`; `any_text` as `plain.toml` takes it.

    Raises
    ------
    InputError
        As `read_text`; or it is not TOML, or not of that kind.
    """
    found = plain.toml(read_text(path, hint), str(path), any_text)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}") from None


def read_table(path: Path, hint: str = "") -> Table:
    """Open a CSV file with a header.

    Raises
    ------
    InputError
        As `read_text`; or the file has no header or names a column twice. Rows raise as they are read.
    """
    lines = read_text(path, hint).split("\n")
    heads = 0
    while heads < len(lines) and lines[heads].startswith("#"):
        heads += 1
    reader = csv.reader(lines[heads:], strict=True)
    cells = _cells(reader, path, heads)
    where, header = next(cells, (f"{path}:{heads + 1}", []))
    columns = tuple(column.strip() for column in header)
    if not any(columns):
        raise InputError(f"{where}: no header; the first line names the columns")
    if twice := [column for column, count in Counter(columns).items() if count > 1]:
        raise InputError(f"{where}: column '{twice[0]}' stands there twice")
    return Table(where, tuple(line.rstrip("\r") for line in lines[:heads]), columns, _rows(cells, columns))


def _cells(reader: Iterator[list[str]], path: Path, heads: int) -> Iterator[tuple[str, list[str]]]:
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputError(f"{path}:{heads + _line(reader)}: not CSV: {error}") from None
        if cells:  # an empty line is none
            yield f"{path}:{heads + _line(reader)}", cells


def _line(reader: Iterator[list[str]]) -> int:
    return int(getattr(reader, "line_num"))  # noqa: B009 - the reader's type has no public name


def _rows(cells: Iterator[tuple[str, list[str]]], columns: Sequence[str]) -> Iterator[Row]:
    for where, found in cells:
        if len(found) != len(columns):
            raise InputError(f"{where}: {len(found)} fields; a row needs {listed(columns)}")
        yield Row(where, dict(zip(columns, found, strict=True)))


def number(text: str | None, where: str) -> float:
    """`text` as a finite number; `where` begins the error's line."""
    try:
        value = math.nan if "_" in (text or "") else float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where} is '{text or ''}'; it must be a number")
    return value


def rate(value: float, where: str) -> float:
    """`value` if it can be a rate in Mbit/s."""
    if not 0 < value < math.inf:
        raise InputError(f"{where} is {value:g}; a rate must be above 0")
    if value < RATE_LEAST_MBIT:
        raise InputError(f"{where} is {value:g} Mbit/s; a rate must be at least {RATE_LEAST_MBIT:g}")
    if value > RATE_LIMIT_MBIT:
        raise InputError(f"{where} is {value:g} Mbit/s; above {RATE_LIMIT_MBIT:g} the unit must be wrong")
    return value


def rtt(value: float, where: str) -> float:
    """`value` if it can be a round-trip time in ms."""
    if not 0 <= value < math.inf:
        raise InputError(f"{where} is {value:g}; it must not be negative")
    if value > RTT_LIMIT_MS:
        raise InputError(f"{where} is {value:g} ms; above {RTT_LIMIT_MS:g} the unit must be wrong")
    return value


def region(name: str, where: str) -> str:
    """`name` if a region can be called so: hosts are named "<region>/<role>" and links "<a>><b>"."""
    if not NAME.fullmatch(name):
        raise InputError(f"{where} is '{name[:80]}'; a region's name is up to 63 letters, digits and . _ -")
    return name
