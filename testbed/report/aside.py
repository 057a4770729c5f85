"""A console for what is shown beside the work."""

from __future__ import annotations

import os
from contextlib import suppress

from rich.console import Console


class Aside(Console):
    """Standard error; what goes on outlives whoever reads it, e.g. `2> >(head)`."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Say no more; rich would end the process, and lead its standard output nowhere."""
        self.quiet = True
        with suppress(OSError):  # what is still held of the line would make the exit status 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
