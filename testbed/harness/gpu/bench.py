"""All there is to check and to time on a GPU, in one go and within a budget of time: `testbed bench gpu`.

Each part writes what it found as soon as it has, so that one that fails, or time that runs out, costs no other part.
"""

from __future__ import annotations

import json
import platform
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import torch

from testbed.errors import InputError, Interrupted, TestbedError
from testbed.experiment.load import load
from testbed.fabrics.registry import virtual
from testbed.gpu import notes
from testbed.harness import session
from testbed.harness.gpu import checks, figures, likeness, steps
from testbed.harness.lock import held
from testbed.record.info import FILE_NAME, environment
from testbed.workloads.devices import device as named

OF_COPY = 0.5  # TernGrad's encoding against a copy on the device
STEP_MS = 4.0  # of cifarnet with eight workers and a batch of 512
SPEEDS_S = 60.0  # for all speeds together; the codecs are timed in the order of what is asked of them
AGAIN_STEPS = 60  # that are trained twice
CPU_S = 180.0  # left, else the CPU does not train what it has no kept losses of
LEAST_S = 20.0  # left for the long run, else it is not begun
LACKING = ("numba", "pyarrow", "rich", "matplotlib", "ray", "mininet")  # and what each is missed for
PAPER = "cifarnet"


@dataclass
class Part:
    """What one part found.

    Attributes
    ----------
    holds : whether it found what it must; None where nothing is asked of it
    lines : for people
    figures : for programs
    """

    name: str
    holds: bool | None = None
    lines: list[str] = field(default_factory=list)
    figures: Any = None


@dataclass(frozen=True)
class Plan:
    """How much of each part; the defaults are for a GPU.

    Parameters
    ----------
    device : "cuda", "cuda:1"
    out : where results go
    budget_s : of all parts together
    parts : names of those to do
    """

    device: str
    out: Path
    budget_s: float = 480.0
    parts: Sequence[str] = ()
    sizes: tuple[int, ...] = checks.SIZES
    speed_sizes: tuple[int, ...] = (1_000_000, 10_000_000, 60_000_000)
    models: Sequence[str] = tuple(steps.CASES)
    systems: Sequence[str] = steps.SYSTEMS
    timed_steps: int = 100
    step_budget_s: float = 8.0
    gradients: tuple[tuple[str, int], ...] = figures.GRADIENTS
    like_steps: int = likeness.STEPS
    scale: str = "paper"
    jobs: int | None = None  # systems that are played at once: a GPU that one leaves half idle is another's
    changes: dict[str, Any] = field(default_factory=dict)  # to the experiments that are timed or played
    began_s: float = field(default_factory=monotonic)

    @property
    def left_s(self) -> float:
        """Seconds of the budget."""
        return self.budget_s - (monotonic() - self.began_s)


def require_gpu(device: str) -> None:
    """Raise InputError, one line, where there is no such GPU or torch cannot use it."""
    if not device.startswith("cuda"):
        raise InputError(f"bench gpu: device '{device}' is no GPU; use cuda or cuda:<number>")
    if torch.version.cuda is None:
        raise InputError(f"bench gpu: torch {torch.__version__} is a build for the CPU; install one with CUDA")
    if not torch.cuda.is_available():
        raise InputError(
            f"bench gpu: torch {torch.__version__} sees no GPU here (`nvidia-smi` shows what the driver sees)"
        )
    named(device)


def run(plan: Plan, say: Callable[[str], None] = print) -> bool:
    """Do all parts; whether all that was asked of them holds."""
    plan.out.mkdir(parents=True, exist_ok=True)
    found: list[Part] = []
    for name, work in PARTS.items():
        if plan.parts and name not in plan.parts:
            continue
        part = Part(name)
        say(f"== {name}")
        try:
            for line in work(plan, part):
                part.lines.append(line)
                say(line)
        except (TestbedError, RuntimeError, AssertionError) as error:  # the next parts say more of what is wrong
            part.holds = False
            part.lines.append(f"failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
            say(part.lines[-1])
        found.append(part)
        _write(plan, found)
    for part in found:
        say(f"{part.name}: {'-' if part.holds is None else 'holds' if part.holds else 'DOES NOT HOLD'}")
    return all(part.holds is not False for part in found)


def _write(plan: Plan, found: Sequence[Part]) -> None:
    """Write all that is known of this device at this commit: what was found now, and before."""
    facts = environment()
    kept = _kept(plan, facts.commit)
    parts = {**kept, **{part.name: part for part in found}}
    found = [parts[name] for name in PARTS if name in parts]
    content = {
        "device": _device_name(plan.device),
        "packages": facts.packages,
        "commit": facts.commit,
        "notes": notes.said(),
        "parts": [asdict(part) for part in found],
    }
    (plan.out / "gpu.json").write_text(json.dumps(content, indent=1, default=str) + "\n")
    lines = [f"# {content['device']}", "", f"commit {facts.commit[:10]}, torch {torch.__version__}", ""]
    for part in found:
        lines += [f"## {part.name}", "", *(f"    {line}" for line in part.lines), ""]
    (plan.out / "gpu.md").write_text("\n".join(lines))


def _kept(plan: Plan, commit: str) -> dict[str, Part]:
    """The parts that were done before, on the same device and at the same commit, by name."""
    try:
        before = json.loads((plan.out / "gpu.json").read_text())
        if (before["device"], before["commit"]) != (_device_name(plan.device), commit):
            return {}
        return {part["name"]: Part(**part) for part in before["parts"]}
    except (OSError, ValueError, KeyError, TypeError):  # there are none, or not of this program
        return {}


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


# --- the parts ----------------------------------------------------------------------------------------------------


def _doctor(plan: Plan, part: Part) -> Iterator[str]:
    facts = environment()
    yield f"{_device_name(plan.device)}; torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {_cudnn()}"
    if plan.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(plan.device)
        yield f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free; {torch.cuda.device_count()} GPU(s)"
    yield f"{facts.cpu}, {facts.cores} cores; Python {platform.python_version()}, commit {facts.commit[:10] or 'none'}"
    missing = [name for name in LACKING if not _is_there(name)]
    yield f"not installed: {', '.join(missing)} (none is needed here)" if missing else "all packages are installed"
    part.figures = {"missing": missing, "cpu": facts.cpu}


def _is_there(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ImportError:
        return False


def _cudnn() -> Any:
    return torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else "none"


def _figures(plan: Plan, part: Part) -> Iterator[str]:
    part.figures = []
    one_by_one = figures.device(named(plan.device), plan.speed_sizes[-1])
    for each in chain(one_by_one, figures.gradients(plan.device, plan.gradients)):
        part.figures.append(asdict(each))
        yield f"{each.name}: {each.value:.4g} {each.unit}"


def _codecs(plan: Plan, part: Part) -> Iterator[str]:
    compared = list(checks.compare(named(plan.device), plan.sizes))
    wrong = [each for each in compared if each.difference]
    part.holds, part.figures = not wrong, [asdict(each) for each in compared]
    yield f"{len(compared)} codecs and sizes against {checks.reference()}: {len(wrong)} differ"
    for each in wrong:
        yield f"{each.codec}, {each.size}: {each.difference}"


def _speeds(plan: Plan, part: Part) -> Iterator[str]:
    part.figures, encoding, until_s = [], 0.0, monotonic() + SPEEDS_S
    for each in checks.speeds(named(plan.device), plan.speed_sizes):
        part.figures.append(asdict(each))
        encoding = each.encode_of_copy if each.codec == checks.ASKED else encoding
        yield (
            f"{each.elements / 1e6:g}M {each.codec}: encode {each.encode_gbyte_s:.1f} GB/s "
            f"({each.encode_of_copy:.2f} of a copy), decode {each.decode_gbyte_s:.1f} GB/s ({each.decode_of_copy:.2f})"
        )
        if monotonic() > until_s:
            yield f"the others were not timed: {SPEEDS_S:g} s are over"
            break
    part.holds = encoding >= OF_COPY
    yield f"ternary's encoding of the largest: {encoding:.2f} of a copy (asked: {OF_COPY:g})"


def _steps(plan: Plan, part: Part) -> Iterator[str]:
    part.figures, held = [], []
    for model in plan.models:
        experiment = steps.case(model, plan.changes)
        for system in (*plan.systems, *steps.ALSO.get(model, ())):
            time = steps.time_of(experiment, model, system, plan.device, plan.timed_steps, plan.step_budget_s)
            part.figures.append(asdict(time))
            busy = "" if time.busy is None else f", of which the device works {time.busy:.2f} ms"
            yield f"{model}, {system}: {time.wall:.2f} ms a step over {time.steps}{busy}"
            for name, taken in (time.kernels | time.functions).items():
                yield f"    {taken:.3f} ms {name}"
            if model == PAPER and system in plan.systems:
                held.append(time.wall <= STEP_MS)
    part.holds = all(held) if held else None
    yield f"asked of cifarnet: {STEP_MS:g} ms"


def _likeness(plan: Plan, part: Part) -> Iterator[str]:
    kept = likeness.read()
    for system in [each for each in plan.systems if each not in kept and not checks.is_absent()]:
        if plan.left_s > CPU_S:
            kept[system] = steps.losses(likeness.experiment(), system, "cpu", plan.like_steps)
            yield f"{system}: the CPU's losses are of this machine, since none are kept"
    found = [likeness.compared(system, plan.device, kept, plan.like_steps) for system in plan.systems if system in kept]
    part.holds, part.figures = (all(each.holds for each in found) if found else None), [asdict(each) for each in found]
    if not found:
        yield f"nothing to compare with: {likeness.KEPT} has no losses of {', '.join(plan.systems)}"
    for each in found:
        yield (
            f"{each.system}, {each.steps} steps: the first {likeness.FIRST} differ by {each.first:.2g} (asked: "
            f"{likeness.FIRST_TOLERANCE:g}), the mean of the last {likeness.LAST} by {each.last:.2g} (asked: "
            f"{likeness.LAST_TOLERANCE:g})"
        )
    for system in plan.systems:
        twice = [
            steps.losses(likeness.experiment(), system, plan.device, min(AGAIN_STEPS, plan.like_steps)) for _ in "12"
        ]
        part.holds = part.holds is not False and twice[0] == twice[1]
        yield f"{system}, the same seed again: {'the same bits' if twice[0] == twice[1] else 'OTHER BITS'}"


def _paper(plan: Plan, part: Part) -> Iterator[str]:
    if plan.left_s < LEAST_S:
        yield f"not begun: {max(plan.left_s, 0):.0f} s of the budget are left, of {LEAST_S:g} that it takes to begin"
        return
    folder = plan.out / "paper"
    if not (folder / FILE_NAME).is_file():
        (point,) = load(PAPER, plan.changes, scale=plan.scale)
        command = ("bench", "gpu", "--part", "paper")
        asked = session.Request(PAPER, virtual(), plan.device, plan.out, folder=folder, command=command)
        folder = session.prepare(point.experiment, asked)
        yield f"begun in {folder.name}"
    else:
        yield f"goes on in {folder.name}"
    with held(folder), _bounded(plan.left_s) as over:
        try:
            session.ready(folder, plan.jobs)()
            yield "finished"
        except (Interrupted, KeyboardInterrupt) as stopped:
            if not over.is_set():
                raise
            said = str(stopped).replace(str(folder.resolve()), folder.name)  # what is kept names no machine's folders
            yield f"{said or 'stopped before it played'}; or the same command again"


@contextmanager
def _bounded(seconds: float) -> Iterator[Event]:
    """Interrupt this process when so many seconds have passed, as Ctrl-C would; whether they have."""
    over = Event()

    def interrupt(number: int, frame: object) -> None:
        over.set()
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield over
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


PARTS: dict[str, Callable[[Plan, Part], Iterator[str]]] = {
    "doctor": _doctor,
    "figures": _figures,
    "codecs": _codecs,
    "speeds": _speeds,
    "steps": _steps,
    "likeness": _likeness,
    "paper": _paper,
}
"""In the order in which they are done."""
