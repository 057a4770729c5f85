"""A crew without an emulated network: what it does where its logs, or its network, are gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testbed.emulation import hostname, netns
from testbed.errors import NetworkError, RunError
from testbed.programs.crew import Crew

MUCH = [sys.executable, "-c", "for _ in range(20000): print('x' * 50)"]
FOR_EVER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start where the test is."""

    @contextmanager
    def here(_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr(netns, "enter", here)
    monkeypatch.setattr(hostname, "called", here)


def test_a_log_that_cannot_be_written_ends_the_program_and_names_the_file(tmp_path: Path) -> None:
    """It would else wait for ever for somebody to take what it writes."""
    (tmp_path / "a-h0.log").symlink_to("/dev/full")
    crew = Crew(tmp_path, show=lambda _: None)
    crew.start("a/h0", os.getpid(), MUCH, os.environ)
    crew.start("a/h1", os.getpid(), FOR_EVER, os.environ)
    with pytest.raises(RunError, match=r"a-h0\.log: No space left on device"):
        crew.wait(keep_going=True)
    assert all(member.status is not None for member in crew.members)


def test_a_network_that_has_died_ends_programs_that_would_wait_for_it(tmp_path: Path) -> None:
    crew = Crew(tmp_path, show=lambda _: None, broken=lambda: NetworkError("the delay line has ended"))
    crew.start("a/h0", os.getpid(), FOR_EVER, os.environ)
    with pytest.raises(NetworkError, match="the delay line has ended"):
        crew.wait(keep_going=True)
    assert crew.members[0].status is not None and crew.members[0].told
