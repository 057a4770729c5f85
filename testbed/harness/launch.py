"""From what was asked for to a finished report: choose the fabric, write down the run, enter the sandbox, play, report.

A run is first prepared: a folder that says all there is to know of it. Whoever then plays that folder goes on with what
is still to be played, so a new run, one that was interrupted and one inside a sandbox are the same thing. An emulated
network exists only in namespaces of its own, where there is no way out to the world: whatever needs the world, and
whatever the user may have got wrong, comes first; then `testbed run --resume FOLDER` is started inside. Should that
process, or what it stands on, be killed, this one is still there: it closes the record and says what died.

What draws is imported when a run has ended: no process is to wait for it before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from testbed import interpreter
from testbed.errors import InputError, Interrupted, RunError, TestbedError, of_file
from testbed.experiment.assembly import Assembly
from testbed.experiment.load import Point, from_dict
from testbed.experiment.schema import Experiment
from testbed.fabrics.registry import ANY, FabricKind, choose, virtual
from testbed.files import new_folder, plain_name, shown, typed_path
from testbed.harness import closing, cluster, session, sweep
from testbed.harness.cluster import Cluster
from testbed.harness.lock import held
from testbed.harness.not_finite import Diverged
from testbed.harness.pool import HERE, Elsewhere
from testbed.record import info as info_file
from testbed.record import series
from testbed.record.info import RunInfo
from testbed.record.tensorboard import require as require_tensorboard
from testbed.report.numbers.progress import to_resume
from testbed.workloads.devices import device as check_device

Say = Callable[[str], None]


class EndedInside(RunError):
    """A run in another process failed, which has said why; `exit_code` is that process's exit status."""

    told = True

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(line)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Wishes:
    """How to run an experiment.

    Parameters
    ----------
    target : what results/<target> is called
    device : where the math runs, "cpu" or "cuda"
    out : the folder of results
    jobs : systems and seeds at once; None: as many as make sense
    cluster : whose nodes play them; None: this machine
    tensorboard : write scalars, too
    command : as the record is to state it
    quiet : no tables when a run ends
    say : takes what is otherwise printed; None where this process's output is what the user sees
    alone : what only this process knows ("system 'sign'"), because it was defined in a notebook; "" for nothing
    """

    target: str
    device: str = "cpu"
    out: Path = session.RESULTS
    jobs: int | None = None
    cluster: Cluster | None = None
    tensorboard: bool = False
    command: tuple[str, ...] = ()
    quiet: bool = False
    say: Say | None = None
    alone: str = ""


def launch(points: Sequence[Point], wishes: Wishes) -> Path:
    """Run an experiment, or a series, on the fabric it names; returns the folder of its records.

    Raises
    ------
    InputError
        Something asked for cannot be; nothing was written.
    RunError
        It failed or was stopped; what was recorded is kept and reported on.
    """
    plain_name(wishes.target, "name:")
    experiments = [point.experiment for point in points]
    wanted = experiments[0].run.fabric
    kind, why = choose(virtual() if wishes.cluster and wanted == ANY else wanted, experiments)
    if wishes.alone and not kind.one_process:
        raise InputError(
            f"{wishes.alone}: known to this notebook only, and on the {kind.name} fabric each role is a process of its "
            'own; write the cell to a file (%%writefile mine.py) and give plugins=["./mine.py"]'
        )
    if wishes.alone and wishes.cluster:
        raise InputError(f"{wishes.alone}: known to this notebook only; write the cell to a file for other machines")
    _check_workplace(wishes.out, wishes.device)
    if wishes.tensorboard:
        require_tensorboard()
    for experiment in experiments:
        session.choose_jobs(experiment, kind, wishes.jobs)
    cluster.check(wishes.cluster, kind, experiments)
    say = wishes.say or print
    if why:
        say(why)
    _check_all(experiments, kind, wishes.device, say)
    request = session.Request(
        target=wishes.target,
        fabric=kind.name,
        device=wishes.device,
        results=wishes.out,
        tensorboard=wishes.tensorboard,
        command=wishes.command,
        notes=(why,) if why and kind.virtual_time else (),
    )
    with cluster.joined(wishes.cluster, kind, experiments, wishes.device, say) as elsewhere:
        if len(points) > 1:
            folder = new_folder(request.results / request.target, session.new_id(kind.name))
            sweep.begin(points, request, folder)
        else:
            folder = session.prepare(experiments[0], request)
        _play(folder, kind, wishes.jobs, wishes.quiet, wishes.say, elsewhere)
    return folder


def relaunch(
    folder: Path,
    jobs: int | None = None,
    quiet: bool = False,
    say: Say | None = None,
    on: Cluster | None = None,
) -> None:
    """Go on with the run or the series in `folder`, on the cluster `on` or here. Raises as `launch` does."""
    stored = series.read(folder) if series.is_series(folder) else _facts(folder)
    kind, _ = choose(stored.fabric)
    played = [stored.experiment] if isinstance(stored, RunInfo) else list(stored.points.values())
    experiments = [from_dict(each, str(folder)) for each in played] if on else []
    cluster.check(on, kind, experiments)
    with cluster.joined(on, kind, experiments, stored.device.partition(" ")[0], say or print) as elsewhere:
        _play(folder, kind, jobs, quiet, say, elsewhere)


def _facts(folder: Path) -> RunInfo:
    try:
        return info_file.read_info(folder, RunInfo)
    except InputError as error:
        read = f"{interpreter.typed()} report {typed_path(folder)}"
        raise InputError(f"{error}; without it no run goes on: put it back, or read what is recorded: {read}") from None


def _play(
    folder: Path, kind: FabricKind, jobs: int | None, quiet: bool, say: Say | None, elsewhere: Elsewhere = HERE
) -> None:
    """Play what is prepared in `folder`, where its fabric can be opened."""
    command = interpreter.testbed("run", "--resume", str(folder))
    command += ["--jobs", str(jobs)] if jobs is not None else []
    command += ["--quiet"] if quiet else []
    if elsewhere.run_all is None and _played_elsewhere(folder, kind, command, quiet, say):
        return
    with held(folder):
        if series.is_series(folder):
            _play_series(folder, jobs, quiet, elsewhere)
        else:
            try:
                _report_on(folder, session.ready(folder, jobs, elsewhere), quiet)
            except KeyboardInterrupt:  # before it plays, or while its report is made
                raise session.stopped(folder) from None


def _played_elsewhere(folder: Path, kind: FabricKind, command: Sequence[str], quiet: bool, say: Say | None) -> bool:
    """Whether the fabric is opened in another process, which has then played what is in `folder`.

    Raises
    ------
    RunError
        It failed there, and has said why, or it was killed, and its record was closed here.
    """
    said: list[str] = []

    def hear(line: str) -> None:
        said.append(line)
        assert say is not None
        say(line)

    before, killed = closing.running(folder), dict[str, None]()
    status = kind.enter(command, None if say is None else hear, killed.setdefault)
    if not status:
        return status is not None
    if status != InputError.exit_code:  # it has begun to play
        unfinished = [place for place, since in closing.running(folder).items() if before.get(place) != since]
        if unfinished or status != RunError.exit_code:
            how = f"was killed: {', '.join(killed)}" if killed else f"broke off with exit status {status}"
            _close(folder, unfinished, f"the run {how}", quiet)
    raise EndedInside(said[-1] if said else f"{folder}: exit status {status}", status)


def _close(folder: Path, unfinished: Sequence[Path], why: str, quiet: bool) -> NoReturn:
    """End the record of a run, or of a series, that was killed, report on what there is of it, and say what died."""
    try:
        with held(folder):
            for place in unfinished:
                closing.close(place, why)
        if series.is_series(folder):
            from testbed.report.write import write_report

            for run in dict.fromkeys(place.parents[1] for place in unfinished):
                write_report(run)
            _show_series(folder, quiet)
        else:
            _report(folder, quiet)
    finally:  # whatever the report comes to
        raise RunError(
            f"{why}; what it recorded is kept: go on with {interpreter.typed()} run --resume {typed_path(folder)}"
        )


def _play_series(folder: Path, jobs: int | None, quiet: bool, elsewhere: Elsewhere) -> None:
    """Play all runs of a series that are still to play, and set them side by side, however it ends."""
    try:
        sweep.play(folder, jobs, lambda place, play: _report_on(place, play, quiet), elsewhere)
    except (Interrupted, KeyboardInterrupt):  # the latter between two runs
        raise session.stopped(folder) from None
    finally:
        _show_series(folder, quiet)


def _show_series(folder: Path, quiet: bool) -> None:
    """Write the report of a series, and print it."""
    from testbed.report.series import show_series, write_series

    written = write_series(folder)
    if written and not quiet:
        show_series(folder)
        print("\n".join(f"series: {shown(path)}" for path in written))


def _report_on(folder: Path, play: Callable[[], None], quiet: bool = False) -> None:
    """Play the run in `folder` and report on it, however it ends."""
    try:
        play()
    except Diverged:  # nothing is left to resume
        _report(folder, quiet)
        raise
    except (TestbedError, FileNotFoundError) as error:
        if not (folder / info_file.FILE_NAME).is_file():
            raise RunError(f"{folder}: its files were taken away while it ran; what they held is lost") from None
        said = isinstance(error, Interrupted)  # how to go on
        with suppress(OSError, RunError):  # of a full disk, which the failure itself tells of
            _report(folder, quiet or (said and series.is_series(folder.parent)))  # which shows what there is
        if not said:  # beside the error, where nothing else is shown
            with suppress(OSError):
                out = sys.stderr if quiet else sys.stdout
                print(f"resume: {interpreter.typed()} run --resume {typed_path(to_resume(folder))}", file=out)
        raise
    _report(folder, quiet)


def _report(folder: Path, quiet: bool) -> None:
    """Write the report of a run, and print it; RunError where its record is not as it was written."""
    from testbed.report.page.html import FILE_NAME as PAGE
    from testbed.report.page.markdown import REPLAY
    from testbed.report.terminal import show
    from testbed.report.write import write_report

    try:
        result, frame = write_report(folder)
    except (InputError, FileNotFoundError) as error:  # nothing that was asked for is wrong
        raise RunError(of_file(error) if isinstance(error, OSError) else str(error)) from None
    if quiet:
        return
    place = shown(folder)
    # Who reads may have gone, e.g. `| head`, of which rich makes an exit; the other runs of a series are played.
    with suppress(BrokenPipeError, SystemExit):
        show(result, frame)
        print(f"table: {place / 'summary.md'}\nplot:  {place / 'comparison.png'}")
        if (folder / REPLAY).is_file():
            print(f"trace: {place / REPLAY}")
        print(f"page:  {place / PAGE}  (to open it: {interpreter.typed()} report --open {typed_path(folder)})")


def _check_all(experiments: Sequence[Experiment], kind: FabricKind, device: str, say: Say) -> None:
    """Fetch the data of all runs, and refuse what only the data, sizes of a record or a plug-in tells of one."""
    said: set[str] = set()

    def once(line: str) -> None:
        if line not in said:
            said.add(line)
            say(line)

    for experiment in experiments:
        assembly = Assembly(experiment.on(kind.device), device, allow_download=True, on_notice=once)
        assembly.sized  # noqa: B018 - data fetched here
        assembly.check()


def _check_workplace(out: Path, device: str) -> None:
    check_device(device)
    parent = out if out.exists() else next((path for path in out.absolute().parents if path.exists()), Path("/"))
    if not parent.is_dir():
        raise InputError(f"{out}: cannot hold results, {parent} is no folder; name another with --out")
