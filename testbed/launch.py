"""From the command line's wishes to a finished report: choose the fabric, enter the sandbox, run, report.

An emulated run happens in namespaces of its own, where there is no way out to the network. So whatever needs
it, and whatever the user may have got wrong, comes first; then the process starts itself again inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import experiment as experiment_file
from testbed import run, series
from testbed.assembly import Assembly
from testbed.errors import InputError, Interrupted, TestbedError
from testbed.fabrics.choice import choose
from testbed.fabrics.emulation import sandbox
from testbed.learning.learner import device as check_device
from testbed.record import info as info_file
from testbed.record.info import RunInfo
from testbed.record.tensorboard import require as require_tensorboard
from testbed.report.page.markdown import REPLAY
from testbed.report.series import show_series, write_series
from testbed.report.terminal import show
from testbed.report.write import write_report


def launch(
    name: str,
    overrides: Sequence[str],
    scale: str,
    systems: Sequence[str],
    seeds: Sequence[int],
    device: str,
    out: Path,
    jobs: int | None = None,
    tensorboard: bool = False,
) -> int:
    """Run an experiment (parameters as in `experiment.load`) on the fabric it names; returns the exit code."""
    points = experiment_file.load(name, overrides, scale, systems, seeds)
    first = points[0].experiment
    not_virtual = next((why for point in points if (why := point.experiment.not_virtual)), "")
    not_emulated = next((why for point in points if (why := point.experiment.not_emulated)), "")
    fabric, why = choose(first.run.fabric, not_virtual, not_emulated)
    _check_workplace(out, device)
    if tensorboard:
        require_tensorboard()
    chosen = [run.choose_jobs(point.experiment, fabric, jobs) for point in points]
    inside = sandbox.inside()
    if not inside:
        if why:
            print(why)
        Assembly(first, device, allow_download=True, on_notice=print).dataset  # noqa: B018 - fetched here, where there is a network
    if fabric == "mininet" and not inside:
        return _again_inside()
    request = run.Request(
        target=experiment_file.find(name).stem,
        fabric=fabric,
        device=device,
        results=out,
        jobs=chosen[0],
        tensorboard=tensorboard,
        command=tuple(sys.argv[1:]),
        notes=(why,) if why and fabric == "virtual" else (),
    )
    if len(points) > 1:
        return _play_series(series.begin(points, request, run.new_id(fabric)), jobs)
    return _report_on(lambda begun: run.start(first, request, begun))


def relaunch(folder: Path, jobs: int | None = None) -> int:
    """Go on with the run or the series in `folder`; returns the exit code."""
    if series.is_series(folder):
        fabric = series.read(folder).fabric
    else:
        facts = info_file.read_info(folder, RunInfo)
        fabric = facts.fabric
    choose(fabric)
    if fabric == "mininet" and not sandbox.inside():
        return _again_inside()
    if series.is_series(folder):
        return _play_series(folder, jobs)
    experiment = experiment_file.from_dict(facts.experiment, str(folder / info_file.FILE_NAME))
    chosen = run.choose_jobs(experiment, fabric, jobs)
    return _report_on(lambda begun: run.resume(folder, experiment, facts, begun, chosen))


def _play_series(folder: Path, jobs: int | None) -> int:
    """Play all runs of a series that are still to play, and set them side by side, however it ends."""
    try:
        series.play(folder, jobs, _report_on)
    except Interrupted:
        raise Interrupted(f"stopped; go on with --resume {folder}") from None
    finally:
        labels = list(series.read(folder).points)
        written = write_series(folder, labels)
        show_series(folder, labels)
    print("\n".join(f"series: {_shown(path)}" for path in written))
    return 0


def _report_on(play: Callable[[Callable[[Path], None]], None]) -> int:
    """Play a run and report on it, however it ends; `play` is given what to call with the run's folder."""
    begun: list[Path] = []
    failure: TestbedError | None = None
    try:
        play(begun.append)
    except TestbedError as error:
        failure = error
    if begun:
        folder = begun[0]
        result, frame = write_report(folder)
        show(result, frame)
        shown = _shown(folder)
        print(f"table: {shown / 'summary.md'}\nplot:  {shown / 'comparison.png'}")
        if (folder / REPLAY).is_file():
            print(f"trace: {shown / REPLAY}")
        print(f"page:  make report RUN={shown}")
    if failure is not None:
        raise failure
    return 0


def _shown(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _check_workplace(out: Path, device: str) -> None:
    check_device(device)
    parent = out if out.exists() else next((path for path in out.absolute().parents if path.exists()), Path("/"))
    if not parent.is_dir():
        raise InputError(f"{out}: cannot hold results, {parent} is no folder; name another with --out")


def _again_inside() -> int:
    return sandbox.run([sys.executable, "-m", "testbed", *sys.argv[1:]])
