"""`testbed plan` ranks systems by step time as the kept runs of the same experiments did."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from testbed.experiment.load import load
from testbed.experiment.schema import Experiment
from testbed.harness import plan as plans

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOLD_APART = 1.1  # the least quotient of two step times that is a ranking where sizes are only stated


def kept(name: str) -> pd.DataFrame:
    """By system, the mean over the seeds of a kept run's step time and of its WAN bytes a step."""
    frame = pd.read_csv(ROOT / "results" / "reference" / name / "summary.csv")
    frame["bytes"] = frame["wan_bytes"] / frame["steps"]
    return frame.groupby("system")[["mean_step_s", "bytes"]].mean().sort_values("mean_step_s")


def planned(name: str, systems: list[str], sizes: dict[str, float]) -> dict[str, plans.Option]:
    """What is planned for an experiment of the testbed's own, on the device of its virtual runs."""
    changes = {"compute.math": "none", "compute.device": "m60", "run.fabric": "virtual", "run.link_interval_s": 1e9}
    it: Experiment = load(name, changes | {"compute.sizes": sizes})[0].experiment
    it = msgspec.structs.replace(it, systems={each: it.systems[each] for each in systems})
    return {option.name: option for option in plans.ask(it, {}).options}


def with_kept_bytes(name: str, runs: pd.DataFrame, varying: list[str]) -> dict[str, plans.Option]:
    """Planned with as many bytes as were kept of the systems whose messages depend on the data.

    The part that says so is found in proportion, as a user would who knows the bytes of a run but not its messages.
    """
    parts = dict.fromkeys(varying, 0.1)
    first = planned(name, varying, parts)
    for each in varying:
        parts[each] = min(parts[each] * float(runs.loc[each, "bytes"]) / first[each].step_bytes, 1.0)
    return planned(name, list(runs.index), parts)


@pytest.mark.parametrize("run", ["cifarnet", "cifarnet-virtual"])
def test_cifarnet_on_weightgrad_ec2_is_ranked_as_it_ran(run: str) -> None:
    runs = kept(run)
    options = with_kept_bytes("cifarnet", runs, ["weightgrad"])
    assert sorted(options, key=lambda each: options[each].step_s) == list(runs.index)
    if run.endswith("virtual"):
        for system, option in options.items():
            assert option.step_s == pytest.approx(runs.loc[system, "mean_step_s"], rel=0.02), system


def test_systems_with_known_sizes_are_ranked_as_they_ran() -> None:
    systems = ["baseline", "fp16", "terngrad", "onebit", "fixed-2", "fixed-4", "fixed-8", "diloco"]
    runs = kept("systems").loc[lambda frame: frame.index.isin(systems)]
    options = planned("systems", systems, {})
    assert sorted(options, key=lambda each: options[each].step_s) == list(runs.index)
    for system, option in options.items():
        assert option.step_s == pytest.approx(runs.loc[system, "mean_step_s"], rel=0.01), system


def test_systems_whose_sizes_depend_on_the_data_are_ranked_as_they_ran_where_they_differ() -> None:
    runs = kept("systems")
    fixed = {"baseline", "fp16", "terngrad", "onebit", "fixed-2", "fixed-4", "fixed-8", "diloco"}
    options = with_kept_bytes("systems", runs, [each for each in runs.index if each not in fixed])
    for fast, slow in combinations(runs.index, 2):
        if runs.loc[slow, "mean_step_s"] > TOLD_APART * runs.loc[fast, "mean_step_s"]:
            assert options[fast].step_s < options[slow].step_s, (fast, slow)
