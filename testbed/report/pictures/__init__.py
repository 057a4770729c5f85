"""Pictures of runs, drawn from their records alone: `draw` makes one, `picture` adds a kind of one's own."""

from testbed.report.pictures.parts import sheet
from testbed.report.pictures.registry import FOLDER, PICTURES, Kind, draw, picture, write

__all__ = ["FOLDER", "PICTURES", "Kind", "draw", "picture", "sheet", "write"]
