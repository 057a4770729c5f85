"""The record of a run whose process died is closed by the one that supervised it, and goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from small_runs import experiment, start

from testbed import interpreter
from testbed.errors import RunError
from testbed.fabrics.base import Fabric
from testbed.fabrics.registry import FabricKind, Setting
from testbed.harness import closing, launch, play, session
from testbed.record import lines
from testbed.record.events import RunEnded
from testbed.record.info import ResultInfo, read_info, write_info
from testbed.record.reader import load

pytestmark = [pytest.mark.usefixtures("small_data"), pytest.mark.slow]
WHY = "the run was killed: raylet (SIGKILL)"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a run that was killed while its last system played, in the middle of a line."""
    folder = start(experiment(systems={"baseline": {}, "terngrad": {}}), tmp_path)
    place = folder / "terngrad" / "seed-0"
    events = place / lines.FILE_NAME
    whole = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(whole[:-1]) + b'{"event":"ste')
    for frame in place.glob("*.parquet"):
        frame.unlink()
    (place / play.RESERVED).write_bytes(bytes(100))
    info = read_info(place, ResultInfo)
    info.status, info.checksums = "running", {}
    write_info(place, info)
    return folder


def test_only_what_was_being_played_is_closed(killed: Path) -> None:
    assert [place.parent.name for place in closing.running(killed)] == ["terngrad"]
    assert list(closing.running(killed.parent)) == list(closing.running(killed)), "the same in a series of runs"


def test_a_closed_record_says_why_and_has_all_that_was_recorded(killed: Path) -> None:
    (place,) = closing.running(killed)
    closing.close(place, WHY)
    assert not closing.running(killed)
    assert not (place / play.RESERVED).exists()
    result = load(killed).results[1]
    assert (result.status, result.info.error) == ("failed", WHY)
    assert result.steps["step"].tolist() == list(range(8))
    last = lines.last_event(place / lines.FILE_NAME)
    assert isinstance(last, RunEnded)
    assert (last.how, last.error) == ("failed", WHY)
    assert all(lines.decode(line) for line in lines.whole_lines(place / lines.FILE_NAME)), "no torn line is left inside"


class Elsewhere(FabricKind):
    """A fabric whose other process is killed; where it has got to is in the records."""

    def __init__(self, begins: Callable[[], None], status: int) -> None:
        self._begins, self._status = begins, status

    def open(self, setting: Setting) -> Fabric:
        raise AssertionError("its process is elsewhere")

    def enter(
        self,
        command: Sequence[str],
        say: Callable[[str], None] | None = None,
        witness: Callable[[str], None] | None = None,
    ) -> int:
        self._begins()
        if witness and self._status > 128:
            witness("its own process (SIGKILL)")
        return self._status


def begin(place: Path) -> None:
    write_info(place, read_info(place, ResultInfo))


@pytest.mark.slow
def test_a_run_that_was_killed_elsewhere_is_closed_and_says_how_to_go_on(killed: Path) -> None:
    (place,) = closing.running(killed)
    with pytest.raises(RunError) as caught:
        launch._play(killed, Elsewhere(lambda: begin(place), 137), None, True, None)
    said = "the run was killed: its own process (SIGKILL)"
    assert (
        str(caught.value) == f"{said}; what it recorded is kept: go on with {interpreter.typed()} run --resume {killed}"
    )
    assert not caught.value.told
    assert load(killed).results[1].info.error == said
    assert (killed / "summary.csv").is_file()


@pytest.mark.slow
def test_one_that_ended_in_order_but_left_its_record_open_is_closed_too(killed: Path) -> None:
    (place,) = closing.running(killed)
    with pytest.raises(RunError, match=r"the run broke off with exit status 1; .* --resume"):
        launch._play(killed, Elsewhere(lambda: begin(place), 1), None, True, None)
    assert not closing.running(killed)


def test_what_another_process_plays_is_not_closed(killed: Path) -> None:
    """A second `--resume` ends before it begins: with status 2, or with the record as it found it."""
    (place,) = closing.running(killed)
    for elsewhere in (Elsewhere(lambda: begin(place), 2), Elsewhere(lambda: None, 1)):
        with pytest.raises(launch.EndedInside):
            launch._play(killed, elsewhere, None, True, None)
        assert list(closing.running(killed)) == [place]


def test_a_run_that_was_killed_before_it_began_says_so(killed: Path) -> None:
    for system in ("baseline", "terngrad"):
        shutil.rmtree(killed / system)
    with pytest.raises(RunError, match=r"the run was killed: its own process \(SIGKILL\); .* --resume"):
        launch._play(killed, Elsewhere(lambda: None, 137), None, True, None)


def test_a_closed_run_can_be_resumed(killed: Path) -> None:
    (place,) = closing.running(killed)
    closing.close(place, WHY)
    session.ready(killed, 1)()
    assert [result.status for result in load(killed).results] == ["finished", "finished"]
