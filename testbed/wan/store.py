"""Writing profiles and traces: whole files or none, and never over another's by accident."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

from testbed.errors import InputError
from testbed.files import replacing
from testbed.wan import trace
from testbed.wan.profile import COLUMNS, IMPAIRMENT_COLUMNS, SPREAD_COLUMNS, Cap, Profile
from testbed.wan.reading import NAME
from testbed.wan.trace import Trace


def save_profile(profile: Profile, folder: Path, *, replace: bool = False) -> Path:
    """Write `<folder>/<name>.toml` and `.csv`, so that `profile.load` gives back what was saved.

    Parameters
    ----------
    replace : whether files of that name may be overwritten

    Returns
    -------
    The path of the TOML file.

    Raises
    ------
    InputError
        The name cannot be one, the files are there already, or the folder cannot be written to.
    """
    header, table = check_free(folder, profile.name, replace=replace)
    _write({table: _profile_csv(profile), header: _profile_toml(profile)})
    return header


def save_trace(found: Trace, folder: Path, comments: Sequence[str], *, replace: bool = False) -> Path:
    """Write `<folder>/<name>.csv` with `comments` above it, so that `trace.load` gives back what was saved.

    Parameters and errors are those of `save_profile`; a comment must not be a setting (`end: ...`).
    """
    path = _path(folder, found.name, ".csv", replace)
    settings = ["end: hold"]
    if found.period_s is not None:
        settings = ["end: loop", f"period_s: {_plain(found.period_s)}"]
    elif found.end_s is not None:
        settings = ["end: end", f"end_s: {_plain(found.end_s)}"]
    if found.profile:
        settings.append(f"profile: {found.profile}")
    heads = "".join(f"# {' '.join(line.split())}\n" for line in [*comments, *settings])
    rows = [[_plain(c.time_s), c.src, c.dst, _plain(c.goodput_mbit)] for c in found.changes]
    columns: tuple[str, ...] = trace.COLUMNS
    if any(change.rtt_ms is not None for change in found.changes):
        columns = (*columns, trace.RTT_COLUMN)
        for row, change in zip(rows, found.changes, strict=True):
            row.append("" if change.rtt_ms is None else _plain(change.rtt_ms))
    _write({path: heads + _csv(columns, rows)})
    return path


def check_free(folder: Path, name: str, *, replace: bool) -> tuple[Path, Path]:
    """The TOML and the CSV file of a profile to be saved; raises as `save_profile` where it could not be."""
    return _path(folder, name, ".toml", replace), _path(folder, name, ".csv", replace)


def _path(folder: Path, name: str, suffix: str, replace: bool) -> Path:
    if not NAME.fullmatch(name):
        raise InputError(f"--name {name[:80]}: a name is up to 63 letters, digits and . _ -")
    path = folder / f"{name}{suffix}"
    if path.exists() and not replace:
        raise InputError(f"{path}: there already; choose another --name, or say --replace")
    return path


def _write(files: dict[Path, str]) -> None:
    """All files are written beside their places before the first one is moved there."""
    with ExitStack() as stack:
        for path, text in files.items():
            try:
                stack.enter_context(replacing(path)).write_text(text, encoding="utf-8")
            except OSError as error:
                raise InputError(f"{path}: cannot be written: {error.strerror}") from None


def _profile_csv(profile: Profile) -> str:
    impaired = any(link.impaired for link in profile.pairs.values())
    columns = COLUMNS + (SPREAD_COLUMNS if profile.spread else ()) + (IMPAIRMENT_COLUMNS if impaired else ())
    rows = []
    for (src, dst), link in profile.pairs.items():
        origin = profile.origins[src, dst]
        row = [
            src,
            dst,
            _plain(link.goodput_mbit),
            _plain(link.rtt_ms),
            origin.source,
            "+".join(sorted(origin.assumed)),
        ]
        if profile.spread:
            spread = profile.spread.get((src, dst))
            row += [_plain(spread.p10_mbit), _plain(spread.p90_mbit)] if spread else ["", ""]
        if impaired:
            row += [_plain(link.loss_percent), _plain(link.jitter_ms)]
        rows.append(row)
    return _csv(columns, rows)


def _profile_toml(profile: Profile) -> str:
    lines = [f"title = {_string(profile.title)}"]
    lines += [f"{key} = {_string(text)}" for key in ("measured", "use") if (text := getattr(profile, key))]
    if profile.notes:
        lines.append(f"notes = {_string(profile.notes)}")
    lines += [
        "",
        "[lan]",
        f"goodput_mbit = {_plain(profile.lan.goodput_mbit)}",
        f"rtt_ms = {_plain(profile.lan.rtt_ms)}",
    ]
    if profile.lan_source:
        lines.append(f"source = {_string(profile.lan_source)}")
    if profile.lan_assumed:
        lines.append("assumed = true")
    for region, cap in profile.caps.items():
        lines += ["", f"[caps.{_key(region)}]", *_cap_lines(cap)]
    lines += ["", "[sources]"]
    lines += [f"{_key(key)} = {_string(citation)}" for key, citation in profile.sources.items()]
    return "\n".join(lines) + "\n"


def _cap_lines(cap: Cap) -> list[str]:
    figures = {"egress_mbit": cap.egress_mbit, "ingress_mbit": cap.ingress_mbit}
    lines = [f"{key} = {_plain(value)}" for key, value in figures.items() if value is not None]
    return [*lines, f"source = {_string(cap.source)}"]


def _csv(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def _string(text: str) -> str:
    """A TOML basic string, over several lines where the text is: JSON's escapes, and one for DEL, which TOML wants."""
    lines = [json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f") for line in text.split("\n")]
    return f'"{lines[0]}"' if len(lines) == 1 else '"""\n' + "\n".join(lines) + '"""'


def _key(text: str) -> str:
    """A TOML key, which needs no quotes where it is letters, digits, _ and -."""
    return (
        text
        if re.fullmatch(r"[A-Za-z0-9_-]+", text)
        else json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    )


def _plain(value: float) -> str:
    """The shortest text that reads back as the same number."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)
