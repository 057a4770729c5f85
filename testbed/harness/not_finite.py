"""Training that has diverged, until a role had NaN or infinity to send: a result, and nothing else waits for it.

Its record says so: it failed, with the line of `NotFinite`. To play it again would end in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed.errors import NotFinite, RoleDied, RunError, listed
from testbed.record.info import FILE_NAME, ResultInfo, read_info


class Diverged(RunError):
    """Training has diverged in some of a run's, or a series', systems and seeds; all others were played.

    Attributes
    ----------
    folder : of the run, or the series
    places : of the systems and seeds in it
    """

    def __init__(self, folder: Path, places: Sequence[Path]) -> None:
        super().__init__(folder, places)
        self.folder, self.places = folder, places

    def __str__(self) -> str:
        names = listed([str(place.relative_to(self.folder)) for place in self.places])
        why = read_info(self.places[0], ResultInfo).error
        how = "begin a new run with a lower training.schedule.rate, or keep it as what came of this one"
        return f"{self.folder}: training diverged in {names} ({why}); all else was played: {how}"


@contextmanager
def passed_over() -> Iterator[None]:
    """Training may diverge within it; whoever wants to know asks the records (`diverged`)."""
    try:
        yield
    except (NotFinite, RoleDied) as error:
        if not is_divergence(error):
            raise


def is_divergence(error: BaseException) -> bool:
    """Whether this is what a play fails with when its training diverges."""
    return isinstance(error, NotFinite) or (isinstance(error, RoleDied) and error.diverged)


def diverged(places: Iterable[Path]) -> list[Path]:
    """Those of the `places` of systems and seeds where training has diverged."""
    there = [place for place in places if (place / FILE_NAME).is_file()]
    return [place for place in there if read_info(place, ResultInfo).diverged]


def raise_diverged(folder: Path, places: Iterable[Path]) -> None:
    """Raise Diverged where training has, in some of the `places` of the run or the series in `folder`."""
    if found := diverged(places):
        raise Diverged(folder, found)
