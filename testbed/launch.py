"""From the command line's wishes to a finished report: choose the fabric, enter the sandbox, run, report.

An emulated run happens in namespaces of its own, where there is no way out to the network. So whatever needs
it, and whatever the user may have got wrong, comes first; then the process starts itself again inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from testbed import experiment as experiment_file
from testbed import run
from testbed.assembly import Assembly
from testbed.errors import InputError, TestbedError
from testbed.fabrics.choice import choose
from testbed.fabrics.emulation import sandbox
from testbed.learning.learner import device as check_device
from testbed.record import info as info_file
from testbed.record.info import RunInfo
from testbed.report.tables import show
from testbed.report.write import write_report


def launch(
    name: str,
    overrides: Sequence[str],
    scale: str,
    systems: Sequence[str],
    seeds: Sequence[int],
    device: str,
    out: Path,
) -> int:
    """Run an experiment (parameters as in `experiment.load`) on the fabric it names; returns the exit code."""
    experiment = experiment_file.load(name, overrides, scale, systems, seeds)
    fabric, why = choose(experiment.run.fabric)
    _check_workplace(out, device)
    inside = sandbox.inside()
    if not inside:
        if why:
            print(why)
        Assembly(experiment, device, allow_download=True, on_notice=print).dataset  # noqa: B018 - fetched here, where there is a network
    if fabric == "mininet" and not inside:
        return _again_inside()
    request = run.Request(
        target=experiment_file.find(name).stem,
        fabric=fabric,
        device=device,
        results=out,
        command=tuple(sys.argv[1:]),
        notes=(why,) if why and fabric == "virtual" else (),
    )
    return _report_on(lambda begun: run.start(experiment, request, begun))


def relaunch(folder: Path) -> int:
    """Go on with the run in `folder`; returns the exit code."""
    facts = info_file.read_info(folder, RunInfo)
    experiment = experiment_file.from_dict(facts.experiment, str(folder / info_file.FILE_NAME))
    choose(facts.fabric)
    if facts.fabric == "mininet" and not sandbox.inside():
        return _again_inside()
    return _report_on(lambda begun: run.resume(folder, experiment, facts, begun))


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
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        print(f"table: {shown / 'summary.md'}\nplot:  {shown / 'comparison.png'}")
    if failure is not None:
        raise failure
    return 0


def _check_workplace(out: Path, device: str) -> None:
    check_device(device)
    parent = out if out.exists() else next((path for path in out.absolute().parents if path.exists()), Path("/"))
    if not parent.is_dir():
        raise InputError(f"{out}: cannot hold results, {parent} is no folder; name another with --out")


def _again_inside() -> int:
    return sandbox.run([sys.executable, "-m", "testbed", *sys.argv[1:]])
