"""The one style of all pictures, from `style.toml`, and how a picture is shown and saved.

The same records make the same file: fonts and style are fixed, and no date goes into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import msgspec
import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine, PlaceHolderLayoutEngine
from matplotlib.text import Text
from PIL import Image

from testbed.files import replacing

# No date and no version, so that the same records make the same file.
PDF_FACTS = {"CreationDate": None, "Creator": None, "Producer": None}
FORMATS = ("png", "pdf")
COLORS = 256  # of a PNG
FINAL = (type(None), PlaceHolderLayoutEngine)  # what a figure has whose layout is not sought any more
POWER = re.compile(r"\$\\mathdefault\{(\\times|[\d.-])*(\^\{[\d.-]*\})?\}\$")  # as matplotlib labels the ticks


class Ink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Colours of text and lines that belong to no system."""

    text: str
    small: str
    muted: str
    missing: str
    rule: str
    warning: str


class Style(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dots an inch, and matplotlib's parameters where they are not its defaults."""

    dpi: int
    params: dict[Any, Any]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ink: Ink
    wide: Style
    column: Style
    map: Style


_FILE = msgspec.toml.decode(Path(__file__).with_name("style.toml").read_bytes(), type=_File)
INK, WIDE = _FILE.ink, _FILE.wide
COLUMN, MAP = (Style(own.dpi, {**WIDE.params, **own.params}) for own in (_FILE.column, _FILE.map))

# The backend is pyplot's, which a figure does not need: setting it would import pyplot, and nothing would set it back.
_DEFAULTS: dict[Any, Any] = {key: value for key, value in matplotlib.rcParamsDefault.items() if key != "backend"}


@contextmanager
def drawing(style: Style = WIDE) -> Iterator[None]:
    """Draw in a style; the user's own settings are back after it."""
    with matplotlib.rc_context():
        matplotlib.rcParams.update({**_DEFAULTS, **style.params})
        yield


class Sheet(Figure):
    """An empty figure that is saved, and shown in a notebook, in the style that it was drawn in.

    Parameters
    ----------
    width_inches, height_inches : of the whole
    layout : as matplotlib's
    """

    def __init__(
        self,
        width_inches: float,
        height_inches: float,
        style: Style = WIDE,
        layout: LayoutEngine | str = "constrained",
    ) -> None:
        super().__init__(figsize=(width_inches, height_inches), dpi=style.dpi, layout=layout)  # type: ignore[arg-type]
        FigureCanvasAgg(self)
        self.style = style

    def draw(self, renderer: RendererBase) -> None:
        """Draw all text as it stands: a `$` in a name begins no formula, but for the powers on logarithmic axes."""
        for text in self.findobj(Text):
            assert isinstance(text, Text)
            if "$" in text.get_text() and not POWER.fullmatch(text.get_text()):
                text.set_parse_math(False)
        super().draw(renderer)

    def savefig(self, *args: Any, **options: Any) -> None:
        with drawing(self.style):
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        return png(self)


def settle(figure: Figure) -> Figure:
    """Find the layout, which takes longer than the drawing, and make it final; `savefig` alone finds it every time."""
    if not isinstance(figure.get_layout_engine(), FINAL):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # which leaves a placeholder where there was one
    return figure


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file of at most `COLORS` colours, which makes it less than half as large."""
    canvas, content = FigureCanvasAgg(settle(figure)), BytesIO()
    with drawing(figure.style) if isinstance(figure, Sheet) else nullcontext():
        canvas.draw()  # once; `savefig` draws twice, the first time for a layout
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    image.quantize(COLORS, dither=Image.Dither.NONE).save(content, "PNG", dpi=(figure.dpi, figure.dpi))
    return content.getvalue()


def save(figure: Figure, path: Path, kind: str = "png") -> None:
    """Write a figure as "png" or "pdf", whole or not at all. Its layout is final after that."""
    settle(figure)
    with replacing(path) as temporary:
        if kind == "png":
            temporary.write_bytes(png(figure))
        else:
            figure.savefig(temporary, format=kind, metadata=PDF_FACTS)


def save_all(figure: Figure, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `<stem>.png`, `<stem>.pdf`."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in formats]
    for path, kind in zip(paths, formats, strict=True):
        save(figure, path, kind)
    return paths
