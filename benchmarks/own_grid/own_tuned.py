"""A workload's file with every system tuned, and at longer periods as well."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from own_plays import Plan, at_most, called, settings

from testbed.experiment.load import find, load
from testbed.files import write_whole

LONGER = (100, 200)  # steps between two averagings
# By workload, the periods of these besides, with twice the file's steps. (CifarNet in 4 bits is not at the target after
# two averages and 1,600 steps.)
SELDOM = {
    "own": {"local-sgd": (400, 800), "local-sgd-4-bits": (400,)},
    "own-gpt": {"local-sgd": (400, 800), "local-sgd-4-bits": (400, 800), "muloco-flat": (400, 800)},
}
# By workload, whether those of these periods are played with the file's steps, too: a rate that falls to its end sooner
# reaches a target sooner, or never.
BRIEFLY = {"own": False, "own-gpt": True}
BRIEF = "-brief"
# By workload, whose period is the searched one alone. CifarNet's MuLoCo: Muon's steps take five gradients' time there,
# and averaged every 100 steps the first seed computed for 69 s, which is 1.6 s on an H100 and twice what the best other
# takes anywhere there. SparseLoCo between CifarNet's workers is at the target after 10.7 s with 5 steps a round and
# with 50 not in 24 s; CoCoD, whose messages are float32, after 15.4 s with the longest of its search, 50, where the
# best other takes 7. The language model's SparseLoCo and CoCoD are not at the target with longer ones of regions, which
# is the same arithmetic there, and Streaming DiLoCo is late with them by twice and more on any fast device.
AS_SEARCHED = {
    "own": ("muloco-flat", "sparseloco-flat", "cocod-flat"),
    "own-gpt": ("sparseloco-flat", "cocod-flat", "streaming-diloco-workers-damped"),
}
# By workload, who is first on a fast device, where one average or none is all that a target takes, and searched there
# once more, by another name: with periods up to 200 steps where that is in a region, and with 800 where it is on a WAN.
FAST = {
    "own": ("hierarchical-local-sgd",),
    "own-gpt": ("local-sgd-800", "local-sgd-4-bits-800", "muloco-flat-800", "muloco-flat-400-brief"),
}
THERE = "l40s"
LATE = ("deco",)  # far behind the best other on the file's own network: nobody waits for its end
BRIEF_S = {"own": 20, "own-gpt": 40}  # of its trials, two to three times what the best other takes


def tuned(plan: Plan, workload: str) -> str:
    """The file of a workload with every system tuned, and those that average at longer periods as well."""
    searched, to = plan.records / f"{workload}-tuned.toml", plan.records / f"{workload}.toml"
    if plan.trials:
        search_missing(plan, workload, searched)
    known = tomllib.loads(to.read_text())["systems"] if to.is_file() else {}
    to.parent.mkdir(parents=True, exist_ok=True)
    source = searched if plan.trials else find(workload)
    data = longer(source, plan.systems, SELDOM[workload], AS_SEARCHED[workload], BRIEFLY[workload])
    data["systems"] |= {name: options for name, options in known.items() if name.endswith("-fast")}
    write_whole(to, tomli_w.dumps(data))
    for name in FAST[workload] if plan.trials else ():
        if name in data["systems"] and f"{name}-fast" not in data["systems"]:
            data["systems"][f"{name}-fast"] = {"of": name, **searched_there(plan, workload, name, to)}
            write_whole(to, tomli_w.dumps(data))
    return str(to)


def search_missing(plan: Plan, workload: str, searched: Path) -> None:
    """Search what is not in the file of what has been; who has settings of its own for that alone."""
    names = list(plan.systems) or list(load(workload)[0].experiment.systems)
    known = tomllib.loads(searched.read_text())["systems"] if searched.is_file() else {}
    missing = [name for name in names if name not in known]
    alone = {name: where for name in missing if (where := brief(workload, name))}
    together = [name for name in missing if name not in alone]
    for some, where in [(together, []), *(([name], where) for name, where in alone.items())]:
        if some:
            part = searched.with_name(f"{workload}-{some[0]}-tuned.toml") if searched.is_file() else searched
            search(plan, workload, some, f"tune-{workload}", part, *where)
            if part != searched:
                write_whole(searched, with_more(searched.read_text(), part.read_text(), some))
                part.unlink()


def brief(workload: str, name: str) -> list[str]:
    """How long trials of a system take at most of which nobody waits for the end, on the command line."""
    return settings(f"run.stop_after_s={BRIEF_S[workload]}") if name in LATE else []


def with_more(text: str, more: str, names: Sequence[str]) -> str:
    """A file of what was searched with some systems of another, and the lines that say what came of each."""
    data, systems = tomllib.loads(text), tomllib.loads(more)["systems"]
    data["systems"] |= {name: systems[name] for name in names}
    said = [line for line in text.splitlines() if line.startswith("#")]
    said += [line for line in more.splitlines() if any(line.startswith(f"# {name}: ") for name in names)]
    return "\n".join([*said, "", tomli_w.dumps(data)])


def search(plan: Plan, file: str, names: Sequence[str], folder: str, to: Path, *where: str) -> None:
    """Tune some systems of a file, alike."""
    how = ["--out", str(plan.records / folder), "--seeds", "100", "--trials", str(plan.trials)]
    called("tune", file, *plan.changed, *where, "--systems", ",".join(names), *how, "--to", str(to))


def searched_there(plan: Plan, workload: str, name: str, file: Path) -> dict[str, Any]:
    """What a search on a fast device finds for one of a file's systems; a period that was chosen for it stays."""
    to = plan.records / f"{workload}-{name}-fast.toml"
    if not to.is_file():
        where, known = settings(f'compute.device="{THERE}"'), load(file)[0].experiment
        if is_seldom(known, name):
            where += at_most(2 * known.training.steps)
        if is_seldom(known, name) or is_brief(name):
            where += ["--fixed", "local_steps"]
        search(plan, str(file), [name], f"tune-{workload}-fast", to, *where)
    found: dict[str, Any] = tomllib.loads(to.read_text())["systems"][name]
    return found


def is_seldom(experiment: Any, system: str) -> bool:
    """Whether a system averages so seldom that it has twice the file's steps."""
    return period_of(experiment, system) > max(LONGER) and not is_brief(system)


def is_brief(system: str) -> bool:
    """Whether it averages as seldom, and has the file's steps all the same."""
    return f"{BRIEF}-" in f"{system}-"


def longer(
    path: Path,
    chosen: Sequence[str],
    seldom: Mapping[str, Sequence[int]],
    as_searched: Sequence[str] = (),
    briefly: bool = False,
) -> dict[str, Any]:
    """A file's tables with one more system for each of `LONGER` and each system that averages more often than that.

    `seldom`: still longer periods of some, `briefly`: each of these once more, as `is_brief`. `as_searched`: who has
    none.
    """
    data, known = tomllib.loads(path.read_text()), load(path)[0].experiment
    systems: dict[str, Any] = {}
    for name in chosen or known.systems:
        options = data["systems"].get(name, {})
        period = 0 if name in as_searched else period_of(known, name)
        systems[name] = options
        for steps in (*LONGER, *seldom.get(name, ())) if period else ():
            if steps > period:
                more = {**options, "of": options.get("of", name), "local_steps": steps}
                once_more = briefly and steps > max(LONGER)
                systems |= {f"{name}-{steps}{how}": more for how in ("", *([BRIEF] if once_more else []))}
    return {**data, "systems": systems}


def period_of(experiment: Any, system: str) -> int:
    """After how many steps a system averages again, if only in the regions; 0: it says nothing of the kind."""
    return int(getattr(experiment.systems[system], "local_steps", 0))


def together_of(experiment: Any, system: str) -> int:
    """After how many steps all workers hold the same again; 0: it says nothing of the kind."""
    return period_of(experiment, system) * int(getattr(experiment.systems[system], "rounds", 1))
