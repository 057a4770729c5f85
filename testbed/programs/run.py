"""`testbed exec`: commands run on the hosts of a WAN, and end together."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from testbed.programs.crew import Crew
from testbed.programs.starts import Start
from testbed.programs.wan import Asked, Wan, up

LOGS = "logs"


def run(
    asked: Asked,
    starts: Sequence[Start],
    folder: Path,
    say: Callable[[str], None],
    title: str,
    keep_going: bool = False,
) -> int:
    """Run programs on an emulated network, inside a sandbox; their exit status, the first failure's.

    `folder` has a log a host, `events.jsonl`, `links.parquet` and `exec.json` then.

    Parameters
    ----------
    title : what is run, in a word
    keep_going : the others go on where one fails

    Raises
    ------
    NetworkError
        The network is not what the profile says, or has died.
    InputError
        There is no such command.
    RunError
        What others wait for did not get ready, or a log cannot be written.
    """
    with up(asked, title, folder, say) as wan:
        logs = folder / LOGS
        logs.mkdir()
        crew = Crew(logs, broken=lambda: wan.failure)
        try:
            with _forwarding(crew):
                complete = _started(wan, crew, starts)
                wan.info.status = crew.wait(keep_going and complete)
        finally:
            finish(wan, crew)
    return wan.info.status


def finish(wan: Wan, crew: Crew) -> None:
    """End what still runs, and note how everything ended."""
    crew.end()
    wan.info.statuses = {member.name: member.status for member in crew.members}
    wan.info.told = [member.name for member in crew.members if member.told]


def _started(wan: Wan, crew: Crew, starts: Sequence[Start]) -> bool:
    """Start all in their order, each when those before it are ready; False where one of them has failed meanwhile."""
    for start in starts:
        members = []
        for host in start.hosts:
            environment = {**wan.told(host), **dict(start.environment)}
            pid = wan.network.hosts[host].netns_pid
            members.append(crew.start(host, pid, start.command, environment, start.ready, start.service))
        wan.info.programs |= {member.name: list(start.command) for member in members}
        if start.ready is not None and not crew.ready(members, start.ready):
            return False
    return True


@contextmanager
def _forwarding(crew: Crew) -> Iterator[None]:
    """Hand a signal on once; the second one of a kind ends what has not listened."""
    came: set[int] = set()

    def hand_on(number: int, _: FrameType | None) -> None:
        crew.signal(signal.SIGKILL if number in came else number)
        came.add(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
