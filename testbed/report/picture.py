"""A drawn figure to a file."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from testbed.files import replacing

# No date and no version, so that the same records make the same file.
METADATA = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}


def save(figure: Figure, path: Path, kind: str = "png") -> None:
    """Write a figure as "png" or "pdf", whole or not at all. Its layout is final after that.

    The layout, which takes longer than the drawing, is found once here; `savefig` alone would find it twice a file.
    """
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, metadata=METADATA[kind])
