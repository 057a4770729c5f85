"""The recorder appends whole lines, and a resumed record equals an uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.record import lines
from testbed.record.events import Checkpointed, Event, RunEnded, StepDone
from testbed.record.recorder import DISCARDED, Recorder


def step(number: int) -> StepDone:
    return StepDone(time_s=number + 1.0, node="us-east-1/w0", step=number, loss=2.0, compute_s=0.1)


def checkpoint(number: int) -> Checkpointed:
    return Checkpointed(time_s=float(number), step=number)


def record(folder: Path, *events: Event) -> Path:
    with Recorder(folder) as recorder:
        for event in events:
            recorder.record(event)
    return folder / lines.FILE_NAME


def test_an_event_is_on_disk_when_record_returns(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(step(0))
    assert (tmp_path / lines.FILE_NAME).read_bytes() == lines.encode(step(0))


@pytest.mark.slow
def test_a_killed_process_loses_nothing_it_recorded(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from testbed.record.recorder import Recorder;"
        "from testbed.record.events import Checkpointed; r = Recorder(Path(sys.argv[1]));"
        "[r.record(Checkpointed(time_s=0.0, step=k)) for k in range(100)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    events = [lines.decode(line) for line in lines.whole_lines(tmp_path / lines.FILE_NAME)]
    assert events == [checkpoint_at(k) for k in range(100)]


def checkpoint_at(number: int) -> Checkpointed:
    return Checkpointed(time_s=0.0, step=number)


def test_a_folder_with_events_is_not_written_over(tmp_path: Path) -> None:
    record(tmp_path, step(0))
    with pytest.raises(InputError, match="--resume"):
        Recorder(tmp_path)


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        threads = [threading.Thread(target=lambda: [recorder.record(step(k)) for k in range(300)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = [lines.decode(line) for line in lines.whole_lines(tmp_path / lines.FILE_NAME)]
    assert len(events) == 1200 and None not in events


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(steps=st.integers(1, 12), every=st.integers(1, 5), killed_at=st.integers(0, 1500))
def test_a_run_killed_anywhere_and_resumed_equals_the_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, steps: int, every: int, killed_at: int
) -> None:
    folder = tmp_path_factory.mktemp("run")

    def play(recorder: Recorder, first: int) -> None:
        with recorder:
            for number in range(first, steps):
                recorder.record(step(number))
                if (number + 1) % every == 0:
                    recorder.record(checkpoint(number + 1))
            recorder.record(RunEnded(time_s=float(steps), step=steps, how="finished"))

    play(Recorder(folder), 0)
    path = folder / lines.FILE_NAME
    whole = path.read_bytes()
    os.truncate(path, min(killed_at, len(whole)))
    saved = [lines.decode(line) for line in lines.whole_lines(path)]
    at = max((event.step for event in saved if isinstance(event, Checkpointed)), default=0)
    play(Recorder.resume(folder), at)
    assert path.read_bytes() == whole


def test_what_lies_behind_the_checkpoint_is_kept_aside_and_a_torn_line_dropped(tmp_path: Path) -> None:
    path = record(tmp_path, step(0), checkpoint(1), step(1), step(2))
    with path.open("ab") as file:
        file.write(b'{"event":"step","ti')
    Recorder.resume(tmp_path).close()
    assert path.read_bytes() == lines.encode(step(0)) + lines.encode(checkpoint(1))
    assert (tmp_path / DISCARDED).read_bytes() == lines.encode(step(1)) + lines.encode(step(2))


def test_resuming_at_an_earlier_checkpoint_goes_back_to_it(tmp_path: Path) -> None:
    path = record(tmp_path, step(0), checkpoint(1), step(1), checkpoint(2))
    Recorder.resume(tmp_path, step=1).close()
    assert path.read_bytes() == lines.encode(step(0)) + lines.encode(checkpoint(1))


def test_a_checkpoint_that_was_never_recorded_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path, step(0), checkpoint(1))
    before = path.read_bytes()
    with pytest.raises(InputError, match="no checkpoint of step 7"):
        Recorder.resume(tmp_path, step=7)
    assert path.read_bytes() == before


def test_without_a_checkpoint_the_run_starts_afresh(tmp_path: Path) -> None:
    path = record(tmp_path, step(0))
    Recorder.resume(tmp_path).close()
    assert path.read_bytes() == b""
    assert (tmp_path / DISCARDED).read_bytes() == lines.encode(step(0))


def test_nothing_is_left_aside_when_nothing_lay_behind_the_checkpoint(tmp_path: Path) -> None:
    record(tmp_path, step(0), checkpoint(1))
    Recorder.resume(tmp_path).close()
    assert not (tmp_path / DISCARDED).exists()
