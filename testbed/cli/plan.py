"""The sub-command `testbed plan`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.cli.options import SHORT, Commands, add_experiment, check_file, count, given_by, names, one, short
from testbed.cli.run import sizes
from testbed.errors import InputError, nearest

if TYPE_CHECKING:
    from testbed.experiment.schema import Experiment
    from testbed.harness.candidates import Candidate, LeftOut

EPILOG = """\
Which system, which period, how many bits; how long is a step and what does a day's egress cost: every system of a short
list (--systems names others) is played on the WAN of the profile without computing anything. The WAN is that of
--profile, by default of the first one in which all links between the regions are measured. Name what is trained by
--gradient, --parameters or --model, and how fast by --step-time, or by --device where the model's operations are known.
A worker is a GPU, or a machine whose GPUs add up their gradients first. An experiment file answers all of that, and its
own systems are compared.
examples:
  testbed plan --gradient 1.3GB --step-time 0.8 --regions us-west-1,eu-west-1,ap-southeast-1
  testbed plan --model llama-3-8b --batch 64 --device h100 --workers 4 --regions us-east-1,eu-west-1
  testbed plan cifarnet --sizes results/cifarnet/20260101-120000-virtual
"""
SIZE = re.compile(r"([\d.]+(?:e\d+)?)\s*([kMGTP]?)(i?)(B?)")
POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}
LEAST_PARAMETERS, MOST_PARAMETERS = 1, 10**14
PERIODS = (10, 50, 100, 500)
LAN_MBIT = 1e5  # of today's machines with GPUs


def add(commands: Commands) -> None:
    """Add the sub-command."""
    plan = commands.add("plan", _plan, "ask how systems would do on a WAN before training", EPILOG)
    add_experiment(plan, needed=False)
    plan.add_argument("--gradient", metavar="SIZE", help="of the gradient in float32, e.g. 1.3GB")
    plan.add_argument("--parameters", metavar="N", help="of the model, e.g. 325M")
    plan.add_argument("--model", metavar="NAME", help="a model that is known, e.g. resnet-50, llama-3-8b")
    plan.add_argument("--batch", type=count, metavar="N", help="of all workers, in examples")
    plan.add_argument("--regions", type=names, default=(), metavar="A,B", help="where the data and the GPUs are")
    plan.add_argument("--workers", type=count, metavar="N", help="in each region (1)")
    plan.add_argument("--server", metavar="REGION", help="of the global server; default: the best connected")
    plan.add_argument("--profile", metavar="NAME", help="the WAN: a profile's name or file")
    plan.add_argument("--lan", type=float, metavar="MBIT", help="goodput inside a region (100,000)")
    plan.add_argument("--step-time", type=float, metavar="S", help="that a worker takes for a gradient, in seconds")
    plan.add_argument("--device", default="", help="what a worker is, e.g. a100, h100 (h100)")
    plan.add_argument(
        "--sizes", metavar="RUN|SYSTEM=PART", help="of messages that depend on the data, as for testbed run"
    )
    plan.add_argument(
        "--share", type=float, default=0.9, metavar="PART", help="of a step that is to be computing (0.9)"
    )
    plan.add_argument("--json", action="store_true", help="print the answer as JSON")
    plan.add_argument("--out", type=Path, metavar="DIR", help="write plan.json, plan.png and a page, plan.html, there")


def _plan(options: argparse.Namespace) -> int:
    check_file(options)
    from testbed.harness import plan as plans
    from testbed.report import planned

    if not 0 < options.share < 1:
        raise InputError(f"--share {options.share:g}: a part of a step above 0 and below 1, e.g. 0.9")
    experiment, known, left_out = _experiment(options)
    plan = plans.ask(experiment, known, () if options.file else PERIODS)
    shares = tuple(sorted({*plans.SHARES, options.share}))
    changes = plans.what_would_change(plan, options.share)
    answer = plans.answer(plan, shares, options.share, changes, left_out)
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        planned.show(answer)
    if options.out is not None:
        from testbed.report.page.plan import write  # matplotlib

        for path in write(answer, options.out):
            print(f"written: {path}", file=sys.stderr if options.json else sys.stdout)
    return 0


def _experiment(options: argparse.Namespace) -> tuple[Experiment, dict[str, Candidate], LeftOut]:
    """The timing-only experiment that is asked about, what is known of its systems, and which are left out."""
    from testbed.fabrics.registry import FABRICS, virtual
    from testbed.harness import candidates
    from testbed.harness import plan as plans

    common: dict[str, Any] = {"compute.math": "none", "run.fabric": "virtual", "run.link_interval_s": 1e9}
    if options.sizes:
        common["compute.sizes"] = sizes(options.sizes)
    if options.device:
        common["compute.device"] = options.device
    if options.lan is not None:
        common["topology.lan_mbit"] = options.lan
    if options.batch is not None:
        common["training.batch_size"] = options.batch
    known = candidates.candidates()
    left_out = candidates.NOBODY
    if options.file:
        known = {name: each for name, each in known.items() if not each.options}  # there they may have others
        given = {"--gradient": options.gradient, "--parameters": options.parameters, "--model": options.model}
        given |= {"--regions": options.regions, "--workers": options.workers, "--server": options.server}
        if named := [name for name, value in given.items() if value]:
            raise InputError(f"{named[0]} cannot go with an experiment file, which says so itself")
        if options.profile:
            common["topology.profile"] = options.profile
        experiment = one(options, common).on(FABRICS[virtual()].device)
        if not options.systems:
            experiment, left_out = _sized(experiment)
    else:
        experiment, left_out = _without_file(options, common, known)
    if options.step_time is not None:
        experiment = plans.step_device(experiment, options.step_time)
    return experiment, known, left_out


def _without_file(
    options: argparse.Namespace, common: dict[str, Any], known: Mapping[str, Candidate]
) -> tuple[Experiment, LeftOut]:
    """The experiment that the options describe by themselves, and which systems are left out of it."""
    from testbed.experiment import load
    from testbed.harness import candidates

    if options.scale:
        raise InputError(f"--scale {options.scale}: it is a table of an experiment file; name the file as well")
    settings = load.parse_changes(options.settings)
    by = given_by({"--set": [*settings], **short(options, SHORT.values())})
    options.workers = options.workers or 1
    left_out = candidates.NOBODY
    if not options.systems:
        rings = candidates.too_long(known, len(options.regions) * options.workers)
        left_out = candidates.LeftOut(candidates.unlisted(known), rings)
    wanted = options.systems or tuple(name for name in known if name not in left_out.rings)
    systems = {name: known[name].options | _of(known, name) if name in known else {} for name in wanted}
    model = _model(options)
    data = {
        "topology": _topology(options),
        "model": model,
        "data": {"dataset": _dataset(model, options.plugin)},
        "training": {"steps": 1_000_000, "batch_size": options.batch or len(options.regions) * options.workers},
        "compute": {"device": "h100"},
        "systems": systems,
    }
    changes = {"topology.lan_mbit": LAN_MBIT, **settings, **common}
    return load.load(data, changes, plugins=options.plugin, options=by)[0].experiment, left_out


def _sized(experiment: Experiment) -> tuple[Experiment, LeftOut]:
    """The experiment without those whose messages have sizes that nobody knows, unless that is all of them."""
    from msgspec.structs import replace

    from testbed.harness import candidates

    unsized = candidates.unsized(experiment)
    rest = {name: options for name, options in experiment.systems.items() if name not in unsized}
    if not rest:
        return experiment, candidates.NOBODY  # which is refused, in words
    return replace(experiment, systems=rest), candidates.LeftOut(unsized=unsized)


def _of(known: Any, name: str) -> dict[str, str]:
    return {} if known[name].system == name else {"of": known[name].system}


def _topology(options: argparse.Namespace) -> dict[str, Any]:
    from testbed.wan import profile as profiles

    if len(options.regions) < 1:
        raise InputError("name the regions, e.g. --regions us-west-1,eu-west-1,ap-southeast-1, or an experiment")
    if len(set(options.regions)) < len(options.regions):
        raise InputError(f"--regions {','.join(options.regions)}: a region is named twice; --workers says how many")
    if options.profile:
        chosen = options.profile
    else:
        pairs = {(a, b) for a in options.regions for b in options.regions if a != b}
        loaded = {name: profiles.load(name) for name in profiles.available()}
        having = [
            name
            for name, each in loaded.items()
            if pairs <= each.pairs.keys() - each.assumed and set(options.regions) <= set(each.regions)
        ]
        if not having:
            known = sorted({region for each in loaded.values() for region in each.regions})
            for region in options.regions:
                if region not in known:
                    raise InputError(f"--regions: no profile has a region '{region}'{nearest(region, known)}")
            raise InputError("--regions: no profile has measured all links between these; name one with --profile")
        chosen = having[0]
    profile = profiles.load(chosen)
    for region in options.regions:
        if region not in profile.regions:
            raise InputError(f"--regions: profile {chosen} has no region '{region}'{nearest(region, profile.regions)}")
    server = options.server or max(
        options.regions,
        key=lambda region: min(
            (profile.link(region, other).goodput_mbit for other in options.regions if other != region), default=0.0
        ),
    )
    return {
        "profile": chosen,
        "regions": list(options.regions),
        "server_region": server,
        "workers_per_region": options.workers,
    }


def _model(options: argparse.Namespace) -> dict[str, Any]:
    given = [name for name in ("gradient", "parameters", "model") if getattr(options, name)]
    if len(given) != 1:
        raise InputError("name what is trained by one of --gradient, --parameters and --model, or an experiment")
    if options.model:
        return {"name": options.model}
    if options.step_time is None:
        raise InputError(f"--{given[0]} says nothing of how long a gradient takes: give --step-time as well")
    text, unit = (options.gradient, 4) if options.gradient else (options.parameters, 1)
    parameters = int(_number(text, given[0], bytes_=unit == 4) / unit)
    if not LEAST_PARAMETERS <= parameters <= MOST_PARAMETERS:
        raise InputError(f"--{given[0]} {text}: a model has 1 to {MOST_PARAMETERS:,} parameters, 4 bytes each")
    if parameters >= 1000 * options.workers:  # a few more, so that rings have chunks of one length and play in a moment
        parameters += -parameters % options.workers
    return {"name": "vector", "parameters": parameters}


def _dataset(model: dict[str, Any], plugins: Sequence[str]) -> str:
    """One whose examples the model takes: it is not opened, but a model has as many outputs as it has classes."""
    import msgspec

    from testbed import plugins as plugin
    from testbed.workloads import workload
    from testbed.workloads.models import base as models

    plugin.load(plugins)
    return workload.datasets_for(msgspec.convert(model, models.kind_of(model)))[0]


def _number(text: str, option: str, bytes_: bool) -> float:
    """A number with a unit; InputError where it is none."""
    found = SIZE.fullmatch(text.strip())
    example = "1.3GB" if bytes_ else "325M"
    if found is None or (found[4] and not bytes_):
        raise InputError(f"--{option} '{text}': a number and its unit is needed, e.g. {example}")
    try:
        number = float(found[1]) * (1024 if found[3] else 1000) ** POWERS[found[2]]
    except ValueError:
        raise InputError(f"--{option} '{text}': a number and its unit is needed, e.g. {example}") from None
    if isinf(number):
        raise InputError(f"--{option} '{text}': that is more than any model has; e.g. {example}")
    return number
