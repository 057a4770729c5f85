"""The page of `testbed plan`: its answer in one HTML file, and beside it as a picture and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

from testbed.errors import InputError
from testbed.files import write_whole
from testbed.report import planned
from testbed.report.page.html import data_uri, render
from testbed.report.pictures.plan import draw
from testbed.report.pictures.style import png, save

TEMPLATE = "plan.html.j2"


def page(answer: planned.Answer, picture: bytes) -> str:
    """The HTML of the page; `picture` is a PNG."""
    heads, cells = planned.table(answer)
    return render(
        TEMPLATE,
        title=planned.title(answer),
        conditions=planned.conditions(answer).split(" · "),
        sentences=planned.sentences(answer),
        heads=heads,
        cells=cells,
        links=planned.links(answer),
        picture=data_uri(picture),
    )


def write(answer: planned.Answer, folder: Path) -> list[Path]:
    """Write `plan.json`, `plan.png` and the page `plan.html`; returns where they are.

    Raises
    ------
    InputError
        The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made: {error.strerror}; name another folder with --out") from None
    paths = [folder / name for name in ("plan.json", "plan.png", "plan.html")]
    figure = draw(answer)
    write_whole(paths[0], json.dumps(answer, indent=1) + "\n")
    write_whole(paths[2], page(answer, png(figure)))
    save(figure, paths[1])
    return paths
