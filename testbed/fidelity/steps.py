"""Step times of whole systems on both fabrics: the same short run on the virtual and on the emulated one.

The emulated run is slowed down until this machine's own work in a step - eight workers' math on its cores, coding,
the servers - is small beside the step: the comparison is of the networks, not of this machine with the device that
stands in the experiment. So a step of every system takes as long here, `STEP_S`, whatever it takes on the run's clock.
The gate, which would take that many times longer as well, is left out: what it checks is measured by `measure`.
"""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Callable, Iterable
from functools import partial

from testbed import interpreter
from testbed.emulation import sandbox
from testbed.errors import RunError
from testbed.fidelity.values import Bound, Value, settled

EXPERIMENT, SYSTEMS, DEVICE = "cifarnet", ("baseline", "terngrad", "weightgrad"), "m60"
STEPS, STEP_S = 8, 6.0
STEP = Bound(relative=0.05)
LIMIT_S = 600.0
ERROR = "testbed: error: "  # how the command line begins the one line of its errors


def compare(profile: str, regions: tuple[str, ...], say: Callable[[str], None]) -> list[Value]:
    """Mean step time of each system, virtual against emulated, on the first two regions with the server in the last.

    Parameters
    ----------
    profile : its name or TOML file, as `testbed run` takes it

    Raises
    ------
    RunError
        A run failed; the message is its own.
    """
    say(f"steps of {', '.join(SYSTEMS)} ...")
    topology = [
        f"topology.profile={profile}",
        f"topology.regions={json.dumps(regions[:2])}",
        f"topology.server_region={regions[-1]}",
    ]
    modelled_s = mean_step_s("virtual", SYSTEMS, topology)
    return [figure for system in SYSTEMS for figure in settled(partial(_compare, system, modelled_s[system], topology))]


def _compare(system: str, modelled_s: float, topology: list[str]) -> list[Value]:
    dilation = round(max(1.0, STEP_S / modelled_s), 1)
    emulated_s = mean_step_s("mininet", [system], [*topology, f"compute.dilation={dilation}"])[system]
    detail = {"experiment": EXPERIMENT, "device": DEVICE, "steps": STEPS, "dilation": dilation}
    section = "mean step, virtual and emulated"
    return [Value(section, system, "ms", 1e3 * modelled_s, 1e3 * emulated_s, STEP, detail)]


def mean_step_s(fabric: str, systems: Iterable[str], settings: Iterable[str]) -> dict[str, float]:
    """Run the experiment with `settings` ("key=value") on a fabric, in this sandbox; each system's mean step (s)."""
    settings = [*settings, f"compute.device={DEVICE}", f"training.steps={STEPS}", "run.eval_images=100"]
    options = [option for setting in settings for option in ("--set", setting)]
    with sandbox.scratch() as folder:
        command = ["run", EXPERIMENT, "--fabric", fabric, "--no-gate", "--systems", ",".join(systems)]
        command += ["--out", str(folder), *options]
        done = _testbed(command)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith(ERROR)]
            raise RunError(f"testbed {' '.join(command)}: {said[0] if said else f'exit status {done.returncode}'}")
        (summary,) = folder.rglob("summary.csv")
        with summary.open(newline="") as rows:
            return {row["system"]: float(row["mean_step_s"]) for row in csv.DictReader(rows)}


def _testbed(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            interpreter.testbed(*arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"testbed {' '.join(arguments)}: no end after {LIMIT_S:g} s") from None
