"""A system and seed played by a testbed of its own, which can open its fabric: so emulated ones go to other machines.

It is a run like any other, in the folder that holds the play's, with a network and a gate of its own. What it found out
of its machine and its network is kept beside the play's records (`node.json`), and gathered for the whole run.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from testbed import interpreter
from testbed.errors import InputError, RunError
from testbed.experiment.load import from_dict
from testbed.fabrics.registry import FABRICS
from testbed.harness import closing, not_finite, notes
from testbed.harness.notes import MACHINE
from testbed.record import info as info_file
from testbed.record import lines
from testbed.record.info import RunInfo
from testbed.report.plain_progress import Watcher, watcher

FILE_NAME = "node.json"
LOOK_S = 0.5
SAID = "testbed: error: "  # how the command begins the line that says what failed
RAY = "RAY_"  # of the cluster's Ray, with which the run's own has nothing to do


def played(place: Path, experiment: dict[str, Any], facts: RunInfo, system: str, seed: int) -> bool:
    """Play one system and seed into `place`; False, and nothing was done, where this process can open the fabric.

    Parameters
    ----------
    experiment : the run's, with files as they are found here
    facts : the run's

    Raises
    ------
    InputError, RunError
        It failed there, and has said why, or it was killed.
    """
    kind, folder = FABRICS.find(facts.fabric), place.parents[1]
    if kind.virtual_time:
        return False
    narrowed = {**experiment, "systems": {system: experiment["systems"][system]}}
    narrowed["run"] = {**experiment["run"], "seeds": [seed]}
    there = msgspec.structs.replace(
        facts,
        experiment=narrowed,
        systems=[system],
        seeds=[seed],
        notes=[],
        nodes={},
        plugins=[],  # they came with the experiment, and have another path here
        environment=info_file.environment(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    info_file.write_info(folder, there)
    said: list[str] = []
    killed = dict[str, None]()
    command = interpreter.testbed("run", "--resume", str(folder), "--quiet")
    with _without_ray(), _watched(place, narrowed, system, seed):
        status = kind.enter(command, said.append, killed.setdefault)
    if status is None:
        return False
    if status and not not_finite.diverged([place]):
        _fail(place, status, said, list(killed))
    found = info_file.read_info(folder, RunInfo)
    found.nodes = {MACHINE: platform.node()}
    info_file.write_facts(place / FILE_NAME, found)
    return True


def _fail(place: Path, status: int, said: Sequence[str], killed: Sequence[str]) -> None:
    """Raise what the play failed with, whose record then ends."""
    line = next((line for line in said if line.startswith(SAID)), "")
    why = line.removeprefix(SAID) or (f"the run was killed: {', '.join(killed)}" if killed else "")
    why = why or f"the run broke off with exit status {status}{': ' if said else ''}{said[-1] if said else ''}"
    if place in closing.running(place.parents[1]):
        closing.close(place, why)
    raise InputError(why) if status == InputError.exit_code else RunError(why)


def gather(folder: Path, facts: RunInfo, places: Sequence[Path]) -> None:
    """Put into the facts of the run in `folder` what the machines that played its `places` found of their networks."""
    found = [info_file.read_facts(place / FILE_NAME, RunInfo) for place in places if (place / FILE_NAME).is_file()]
    if not found:
        return
    facts.delay_mechanism = ", ".join(sorted({each.delay_mechanism for each in found}))
    facts.dilation = max(each.dilation for each in found)
    gates = [each.gate for each in found]
    facts.gate = {
        "took_s": max(float(gate.get("took_s", 0.0)) for gate in gates),
        "figures": [
            {**figure, "play": f"{each.systems[0]}, seed {each.seeds[0]}"}
            for each in found
            for figure in each.gate.get("figures", ())
        ],
    }
    if any(gate.get("skipped") for gate in gates):
        facts.gate = {"skipped": True}
    facts.notes = notes.of_machines(facts.notes, found)
    info_file.write_info(folder, facts)


@contextmanager
def _without_ray() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(RAY)}
    try:
        yield
    finally:
        os.environ.update(kept)


@contextmanager
def _watched(place: Path, experiment: dict[str, Any], system: str, seed: int) -> Iterator[None]:
    """Show how far the play is, by what it records."""
    parsed = from_dict(experiment, info_file.FILE_NAME)
    progress = watcher()(f"{system}, seed {seed}", parsed.training.steps, parsed.roles_of(system), {}, can_draw=False)
    over = threading.Event()
    with progress:
        looking = threading.Thread(target=_follow, args=(place / lines.FILE_NAME, progress, over), daemon=True)
        looking.start()
        try:
            yield
        finally:
            over.set()
            looking.join()


def _follow(events: Path, progress: Watcher, over: threading.Event) -> None:
    follower = lines.Follower(events)
    while not over.wait(LOOK_S):
        if events.is_file():
            for event in follower.new():
                progress.see(event)
