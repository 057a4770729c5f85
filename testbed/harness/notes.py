"""What a reader of a run's results must know beside its figures, one sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.experiment.schema import WORKERS_AN_LPS, Experiment
from testbed.record.info import RunInfo
from testbed.roles.compute import MEASURED
from testbed.wan.trace import LATE_S

ROLES, CLOCKS, PLAYED = "Its", "The nodes' clocks", "Each system and seed was played"  # how notes begin
UNLIKE = "Computing was measured on unlike processors"
MACHINE = "machine"  # key of `RunInfo.nodes`: what the machine is called that played it
STOLEN = 0.01  # of the cores' time; beyond it a run that measures says so


def beyond_the_paper(experiment: Experiment) -> list[str]:
    """What a reader of WeightGrad would not expect of the topology."""
    top = experiment.topology
    if top.kind == "flat" or top.workers_per_region <= WORKERS_AN_LPS:
        return []
    most = f"WeightGrad's serves at most {WORKERS_AN_LPS} (Appendix B.2)"
    return [f"A local parameter server serves {top.workers_per_region:,} workers; {most}."]


def faults_without_effect(experiment: Experiment) -> list[str]:
    """Which faults touch neither a link, a connection nor a role that a system uses: they cost it nothing."""
    said = []
    for number, fault in enumerate(experiment.faults):
        links = {frozenset(pair) for pair in fault.on_links(experiment.plan.wan)}  # acknowledgements go the other way
        roles, between = set(fault.on_roles(experiment.roles.all)), fault.on_connections(experiment.roles.all)
        untouched = []
        for system in experiment.systems:
            used = experiment.roles_of(system)
            touched = roles.intersection(used.all) or links.intersection(map(frozenset, used.wan_pairs))
            if not touched and not any(one in used.all and other in used.neighbours(one) for one, other in between):
                untouched.append(system)
        if untouched:
            said.append(f"Fault {number} ({fault.about}) touches nothing that is used by {', '.join(untouched)}.")
    return said


def of_nodes(notes: list[str], nodes: Mapping[str, Any], profile: Path | None) -> list[str]:
    """The run's notes, with what is to be known where its roles stood on the nodes of a cluster."""
    if not nodes:
        return notes
    addresses = dict.fromkeys(nodes["roles"].values())
    said = [note for note in notes if not note.startswith((ROLES, CLOCKS))]
    said.append(f"{ROLES} {len(nodes['roles'])} roles stood on {len(addresses)} nodes, on the network that joins them.")
    if profile is not None:
        said[-1] += f" What it was like before: {profile.name}, a profile with which an emulated run repeats this one."
    if not nodes["encrypted"]:
        said[-1] += " Messages were neither encrypted nor authenticated."
    clocks = nodes["clocks"].values()
    if clocks:
        apart_ms = max(each["ahead_ms"] for each in clocks) - min(each["ahead_ms"] for each in clocks)
        error_ms = max(each["error_ms"] for each in clocks)
        said.append(
            f"{CLOCKS} differed by {apart_ms / 1e3:,.3f} s, which was set right to {error_ms:.1f} ms: so far may be off"
            " what a step spent on links."
        )
    return said


def of_machines(notes: list[str], found: Sequence[RunInfo]) -> list[str]:
    """The run's notes, with what is to be known where its plays, whose facts were `found`, had a machine each."""
    machines = sorted({str(each.nodes.get(MACHINE, "")) for each in found})
    theirs = dict.fromkeys(note for each in found for note in each.notes)
    said = [note for note in notes if not note.startswith((PLAYED, UNLIKE)) and note not in theirs]
    said.append(f"{PLAYED} on a network of its own, on {len(machines)} machine{'s' * (len(machines) > 1)}.")
    processors = sorted({f"{each.environment.cpu}, {each.environment.cores} cores" for each in found})
    if len(processors) > 1 and any(each.compute == MEASURED for each in found):
        said.append(f"{UNLIKE} ({'; '.join(processors)}): times of different systems do not compare.")
    return said + list(theirs)


def with_warnings(notes: list[str], report: dict[str, Any], stolen: float) -> list[str]:
    """The run's notes, with one on each of links, trace and machine that did not do as they should."""
    changes, machine = "Of the trace's", "This machine's hypervisor"
    down = "Links went down"
    said = [note for note in notes if not note.startswith((changes, machine, down))]
    if were_down := report.get("were_down"):
        said.append(f"{down} and came up again, which nobody had asked for: {', '.join(were_down)}.")
    if stolen > STOLEN:
        said.append(f"{machine} took {100 * stolen:.0f} % of its time: what was measured meanwhile took longer.")
    if late := report.get("trace_late", 0):
        worst_ms = report["trace_late_max_ms"]
        said.append(
            f"{changes} {report['trace_changes']:,} changes {late:,} came more than {1e3 * LATE_S:g} ms late,"
            f" the latest by {worst_ms:.0f} ms."
        )
    return said
