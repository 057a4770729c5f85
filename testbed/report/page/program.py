"""What is made of the record of a program on the emulated WAN: a summary, a picture, and a page with both."""

from __future__ import annotations

import shlex
from pathlib import Path

from testbed.files import write_whole
from testbed.report.numbers import prices
from testbed.report.numbers.carried import HEADS, HOST_HEADS, Carried, host_cells, link_cells, read, sentence
from testbed.report.numbers.tables import markdown_table, markdown_text
from testbed.report.numbers.wording import number
from testbed.report.page.html import data_uri, gate_facts, render
from testbed.report.pictures.carried import draw
from testbed.report.pictures.style import png
from testbed.wan.plan import label

TEMPLATE = "program.html.j2"
SUMMARY, PICTURE, PAGE = "summary.md", "links.png", "report.html"


def summary(carried: Carried) -> str:
    """What each WAN link carried, and each host, in Markdown."""
    info = carried.info
    parts = [
        f"# {markdown_text(f'{info.title} on {info.profile}')}",
        "",
        markdown_text(sentence(info)),
        "",
        markdown_table(HEADS, link_cells(carried)),
        "",
        markdown_table(HOST_HEADS, host_cells(carried)),
        "",
    ]
    if carried.marks:
        shown = carried.marks[:100]
        parts += [f"- at {number(mark.time_s)} s{_where(mark.node)}: {markdown_text(mark.text)}" for mark in shown]
        parts.append("")
    parts += [f"> {markdown_text(note)}" for note in carried.missing]
    return "\n".join(parts)


def write(folder: Path, path: Path | None = None) -> list[Path]:
    """Write `summary.md`, `report.html` and, where anything crossed the WAN, `links.png`; returns where they are.

    Parameters
    ----------
    path : where the page goes; `folder/report.html` when None

    Raises
    ------
    InputError
        `folder` has no record of a program.
    """
    carried = read(folder)
    figure = draw(carried)
    picture = png(figure) if figure is not None else b""
    paths = [folder / SUMMARY, path or folder / PAGE]
    write_whole(paths[0], summary(carried))
    write_whole(paths[1], page(carried, picture))
    if picture:
        write_whole(folder / PICTURE, picture)
        paths.append(folder / PICTURE)
    return paths


def page(carried: Carried, picture: bytes) -> str:
    """The HTML of the page; `picture` is a PNG, empty where there is none."""
    info = carried.info
    return render(
        TEMPLATE,
        title=f"{info.title} on {info.profile}",
        sentence=sentence(info),
        conditions=[f"{len(info.hosts)} hosts", *([f"{info.dilation:g} times slower"] if info.dilation != 1 else [])],
        heads=HEADS,
        cells=link_cells(carried),
        host_heads=HOST_HEADS,
        host_cells=host_cells(carried),
        marks=[[number(mark.time_s), label(mark.node), mark.text] for mark in carried.marks],
        programs=[[label(name), shlex.join(words)] for name, words in info.programs.items()],
        prices=prices.sources(),
        picture=data_uri(picture) if picture else "",
        gate=gate_facts(info.gate),
        delay={key.replace("_", " "): value for key, value in info.delay.items()},
        command=shlex.join(["testbed", *info.command]),
        started=info.started,
        missing=carried.missing,
        environment=info.environment,
    )


def _where(node: str) -> str:
    return f" on {label(node)}" if node else ""
