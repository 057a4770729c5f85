"""The report page of a run: one HTML file that needs nothing else, made from the records alone."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from testbed.files import write_whole
from testbed.record.info import RunInfo, probes_of
from testbed.record.reader import Run
from testbed.report.numbers import disturbed, prices, why
from testbed.report.numbers.asked import Target, experiment_of, flat, is_modelled, timing_only
from testbed.report.numbers.compare import compare
from testbed.report.numbers.sentences import caveats, command, conditions, fidelity, headlines, title, verdict
from testbed.report.numbers.summary import read, wan_only
from testbed.report.numbers.tables import SEEDS_NOTE, compared_tables
from testbed.report.numbers.wording import NONE, number
from testbed.report.papers.beside import paper_rows
from testbed.report.pictures.registry import PICTURES, drawn, gallery
from testbed.report.pictures.style import png

FILE_NAME = "report.html"
TEMPLATE = "page.html.j2"
LAN = "lan"
OVERVIEW = ("comparison", "stacked")
Picture = tuple[str, str, str]  # name, caption, data URI


def write_page(
    folder: Path, path: Path | None = None, on_missing: Callable[[str], None] = lambda sentence: None
) -> Path:
    """Write the report page of the run in `folder` (`numbers.summary.read`) to `path`; returns where it is.

    It is `<run>/report.html` unless `path` says otherwise; `on_missing` is told what the record lacks.
    """
    run, frame = read(folder)
    path = path or run.folder / FILE_NAME
    write_whole(path, page(run, frame, pictures(run, frame)))
    for sentence in run.missing:
        on_missing(sentence)
    return path


def page(run: Run, frame: pd.DataFrame, pictures: Sequence[Picture]) -> str:
    """The HTML of the page; `frame` is `summarize(run)`."""
    return render(TEMPLATE, **_facts(run, frame, pictures))


def render(template: str, **facts: Any) -> str:
    """A template of this folder, filled in; what it asks for and is not given is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(facts)


def _facts(run: Run, frame: pd.DataFrame, pictures: Sequence[Picture]) -> dict[str, Any]:
    """What the template shows."""
    info = run.info
    return {
        "title": title(run),
        "name": run.name,
        "question": question(run),
        "verdict": verdict(run, frame) or "No verdict: the experiment names no target, or nothing was recorded",
        "headlines": headlines(run, frame),
        "caveats": caveats(run, frame),
        "conditions": conditions(run).split(" · "),
        "seeds_note": SEEDS_NOTE if frame["seed"].nunique() > 1 else "",
        "overview": {name: (caption, uri) for name, caption, uri in pictures if name in OVERVIEW},
        "gallery": [picture for picture in pictures if picture[0] not in OVERVIEW],
        "details": compared_tables(compare([run])) if len(frame) else {},
        "prices": prices.sources() if any(wan_only(one.link_bytes) for one in run.results) else (),
        "faults": disturbed.rows(run),
        "faults_heads": disturbed.HEADS,
        "faults_note": disturbed.NOTE,
        "why": _why(run),
        "papers": paper_rows(run, frame),
        "links": _links(info),
        "gate": _gate(info),
        "fidelity": fidelity(info),
        "delay": {key.replace("_", " "): value for key, value in info.delay_report.items()},
        "trace": experiment_of(info).topology.trace,
        "started": info.started_at,
        "command": _command(info),
        "commit": info.environment.commit,
        "dirty": bool(info.environment.dirty),
        "settings": [(key, NONE if value is None else str(value)) for key, value in flat(info.experiment)],
        "environment": _environment(info),
        "missing": run.missing,
    }


def _why(run: Run) -> dict[str, Any]:
    """Why a step of each system takes as long; nothing where the record has no timeline."""
    if not (found := why.of_systems(run)):
        return {}
    heads, cells = why.rows(found)
    return {
        "head": why.HEAD,
        "said": [it.sentence for it in found],
        "heads": heads,
        "cells": cells,
        "note": why.NOTE,
    }


def question(run: Run) -> str:
    """What the run was to find out, in a sentence."""
    where = f"On the WAN of profile {run.info.profile}" if run.info.profile else "On this WAN"
    if timing_only(run.info):
        return f"{where}, how long does a step of each system take, and what does it put on the wire?"
    target = Target.of(run.info)
    goal = f"reach {' and '.join(target.in_words)}" if target.stated else "train"
    return f"{where}, how soon does each system {goal}, and what does it put on the wire?"


def pictures(run: Run, frame: pd.DataFrame, ready: Mapping[str, bytes] | None = None) -> list[Picture]:
    """The pictures of the page: the overview, the same for a narrow window, the others; `ready` has some, by kind."""
    found, known = [], ready or {}
    for kind in (*map(PICTURES.find, OVERVIEW), *gallery()):
        image = known.get(kind.name)
        if image is None and (figure := drawn(kind, [run], frame)) is not None:
            image = png(figure)
        if image is not None:
            found.append((kind.name, kind.caption, data_uri(image)))
    return found


def data_uri(image: bytes) -> str:
    """A PNG as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _links(info: RunInfo) -> list[list[str]]:
    """Each link as the profile states it: name, goodput in Mbit/s, RTT in ms."""
    return [
        ["inside a region" if link == LAN else link.replace(">", " → "), number(one.goodput_mbit), number(one.rtt_ms)]
        for link, one in sorted(info.network.items(), key=lambda item: (item[0] != LAN, item[0]))
    ]


def _gate(info: RunInfo) -> dict[str, Any]:
    if is_modelled(info):
        return {"said": "The network was modelled on a virtual clock; there was nothing to measure.", "probes": []}
    return gate_facts(info.gate)


def gate_facts(gate: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured of the emulated links before the run: a sentence and, where it was, the probes."""
    if gate.get("skipped"):
        return {"said": "NOT CHECKED: the run was started with --no-gate.", "probes": []}
    measured = probes_of(gate)
    if not measured:
        return {"said": "The record has no measurement of the emulated network.", "probes": []}
    good = sum(probe.ok for probe in measured)
    said = f"{good} of {len(measured)} measurements before the run kept their bounds."
    if all(probe.asked is None for probe in measured):
        said = f"{len(measured)} measurements of the real network before the run, of which nothing was asked."
    cells = [
        [
            *(probe.section, f"{probe.name} ({probe.play})" if probe.play else probe.name),
            *(f"{number(value)} {probe.unit}" if value else NONE for value in (probe.asked, probe.measured)),
            *(str(probe.bound), "✓" if probe.ok else "✗"),
        ]
        for probe in measured
    ]
    return {"said": said, "probes": cells}


def _command(info: RunInfo) -> str:
    """How to run it again: the command line, else the settings that stand below."""
    return command(info) or ("# from Python, with the settings below" if info.experiment else "# not known")


def _environment(info: RunInfo) -> list[tuple[str, str]]:
    machine = info.environment
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes else ""
    facts = {
        "processor": f"{machine.cpu}, {machine.cores} cores" if machine.cores else machine.cpu,
        "memory": memory,
        "device": info.device,
        "kernel": machine.kernel,
        "python": machine.python,
        **machine.packages,
        "experiment": f"SHA-256 {info.experiment_hash}" if info.experiment_hash else "",
    }
    return [(name, value) for name, value in facts.items() if value]
