"""What this machine can run, need by need, and what to do about what it lacks.

Nothing is taken on trust: namespaces are made, qdiscs set, packages imported, the delay line compiled. What may be
slow or hang happens in a process of its own with a time limit, as many at once as there are cores: on a busy machine
an import takes many times what it takes on an idle one. What did not answer in time is not known, and not missing.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from testbed.emulation import sandbox
from testbed.errors import NetworkError
from testbed.fabrics.emulated import NEEDED
from testbed.interpreter import PYTHON

TIMEOUT_S = 60.0  # of a probe in a process of its own; the longest, torch, takes two seconds on an idle machine
OLDEST_PYTHON = (3, 11)
DISK_GB = 1.0  # for the records and the compiled kernels
MEMORY_GB = 3.0  # eleven roles in processes of their own, as in experiments/cifarnet.toml
BOTH, EMULATION, OPTIONAL = ("virtual", "mininet"), ("mininet",), ()
EXTRA = "pip install 'geo-testbed[emulation]'"
TITLES = {"ray": "Ray", "mininet": "Mininet", "zmq": "ZeroMQ"}


class Finding(msgspec.Struct, frozen=True):
    """One need: whether it is met, what was found, and what to do where it is not.

    `needed_by` names the fabrics that cannot run without it; none for what is optional. `known` is false where it could
    not be found out in time.
    """

    need: str
    works: bool
    found: str
    advice: str = ""
    needed_by: tuple[str, ...] = EMULATION
    known: bool = True


def examine() -> list[Finding]:
    """Look at every need; takes a few seconds, each probe never more than its limit."""
    probes: list[Callable[[], Finding | list[Finding]]] = [
        *(_python, _iproute2, _unshare, _emulation, _realtime, _iperf3),
        *(lambda name=name: _package(name) for name in NEEDED),
        *(_learning, _tensorboard, _disk, _memory),
    ]
    with ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0)))) as executor:
        answers = executor.map(lambda probe: probe(), probes)
    return [finding for answer in answers for finding in (answer if isinstance(answer, list) else [answer])]


def possible(findings: Sequence[Finding]) -> list[str]:
    """The fabrics that can run here."""
    return [name for name in BOTH if all(each.works for each in findings if name in each.needed_by)]


def report(as_json: bool) -> int:
    """Print the findings; returns the exit code: 0 where some fabric can run, else 1."""
    findings = examine()
    fabrics = possible(findings)
    if as_json:
        print(json.dumps({"fabrics": fabrics, "needs": msgspec.to_builtins(findings)}, indent=1))
        return 0 if fabrics else 1
    console = Console(soft_wrap=True, highlight=False)
    width = max(len(each.need) for each in findings)
    for each in findings:
        state, style = ("works  ", "green") if each.works else ("missing", "red" if each.needed_by else "yellow")
        state = state if each.known else "unknown"
        optional = "" if each.works or each.needed_by else "optional"
        advice = "" if each.works else each.advice
        about = "; ".join(filter(None, (optional, each.found, advice)))
        console.print(Text.assemble((state, style), f"  {each.need:{width}}  {about}"))
    console.print(_verdict(findings, fabrics), style="bold")
    return 0 if fabrics else 1


def _verdict(findings: Sequence[Finding], fabrics: Sequence[str]) -> str:
    said = f"A run is possible on: {', '.join(fabrics)}." if fabrics else "No run is possible here."
    for fabric in BOTH:
        lacking = [each.need for each in findings if fabric in each.needed_by and not each.works and each.known]
        said += f" The {fabric} fabric lacks: {', '.join(lacking)}." if lacking else ""
    if unknown := [each.need for each in findings if not each.known]:
        said += f" Not known, because this machine was too busy: {', '.join(unknown)}; ask again."
    return said


def _python() -> Finding:
    oldest = ".".join(map(str, OLDEST_PYTHON))
    works = sys.version_info >= OLDEST_PYTHON
    return Finding("Python", works, platform.python_version(), f"install Python {oldest} or newer", BOTH)


def _iproute2() -> Finding:
    return _tools("iproute2", ("ip", "tc"), ["ip", "-V"], "apt install iproute2")


def _unshare() -> Finding:
    return _tools("unshare", ("unshare", "bash"), ["unshare", "--version"], "apt install util-linux bash")


def _tools(need: str, tools: Sequence[str], version: Sequence[str], install: str) -> Finding:
    if missing := [tool for tool in tools if not shutil.which(tool)]:
        return Finding(need, False, f"{', '.join(missing)} not found", f"install it, e.g. {install}")
    try:
        return Finding(need, True, _said(version).splitlines()[0])
    except _TooSlow as error:
        return Finding(need, False, f"{tools[0]}: {error}", known=False)
    except _Failed as error:
        return Finding(need, False, f"{tools[0]}: {error}", f"install it again, e.g. {install}")


def _emulation() -> list[Finding]:
    """What a sandbox can do, found out by making one."""
    try:
        features = sandbox.features()
    except (NetworkError, OSError) as error:
        untried = "not tried: it needs namespaces"
        needs = ("traffic shaping", "link delay")
        return [Finding("namespaces", False, str(error)), *(Finding(need, False, untried) for need in needs)]
    how = "as root" if os.geteuid() == 0 else "as an ordinary user"
    return [Finding("namespaces", True, how), _shaping(features), _delay(features["netem"])]


def _shaping(features: Mapping[str, bool]) -> Finding:
    need, modules = "traffic shaping", {"veth": "veth", "htb": "sch_htb", "u32": "cls_u32"}
    if lacking := [name for name in modules if not features[name]]:
        load = ", ".join(modules[name] for name in lacking)
        return Finding(need, False, f"the kernel has no {', '.join(lacking)}", f"load its module: {load}")
    return Finding(need, True, f"{', '.join(modules)} on Linux {platform.release()}")


def _delay(netem: bool) -> Finding:
    need, without = "link delay", "the kernel has no netem"
    if netem:
        return Finding(need, True, "netem")
    try:
        from testbed.emulation import delay

        delay.build()
    except ImportError as error:
        return Finding(need, False, f"{without}, and the delay line lacks {error.name}", EXTRA)
    except NetworkError as error:
        return Finding(need, False, f"{without}: {error}")
    return Finding(need, True, f"the delay line, a process of our own ({without})")


def _realtime() -> Finding:
    need, ask = "SCHED_FIFO", "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"
    try:
        _python_says("-I", "-S", "-c", ask)
    except _Failed:
        late = "without it the delay line, where there is no netem, is up to 3 ms late under full load"
        advice = f"{late}; run as root, or raise the limit rtprio (ulimit -r)"
        return Finding(need, False, "no real-time priority for this user", advice, OPTIONAL)
    return Finding(need, True, "real-time priority for the delay line", needed_by=OPTIONAL)


def _iperf3() -> Finding:
    found = _tools("iperf3", ("iperf3",), ["iperf3", "--version"], "apt install iperf3")
    without = "`testbed fidelity` measures with a probe of its own without it"
    return msgspec.structs.replace(found, needed_by=OPTIONAL, advice=f"{without}; {found.advice}")


def _package(name: str) -> Finding:
    need = TITLES.get(name, name)
    try:
        version = _python_says("-c", f"import {name}; print(getattr({name}, '__version__', 'installed'))")
    except _TooSlow as error:
        return Finding(need, False, str(error), known=False)
    except _Failed as error:
        return Finding(need, False, str(error), EXTRA)
    return Finding(need, True, version)


def _learning() -> list[Finding]:
    """torch, the GPU and the data sets, which need torch to be asked for."""
    try:
        found = json.loads(_python_says("-c", "from testbed.cli import needs; needs.tell_learning()"))
    except _TooSlow as error:
        return [Finding("torch", False, str(error), needed_by=BOTH, known=False)]
    except _Failed as error:
        return [Finding("torch", False, str(error), "run `make setup`, or pip install torch", BOTH)]
    gpu, where = found["gpu"], found["folder"]
    build = "it sees no GPU" if found["cuda"] else "it is a build for the CPU"
    advice = (
        'for --device cuda: a machine with one, and make setup TORCH="torch==<version> --index-url <of a CUDA build>"'
    )
    return [
        Finding("torch", True, found["torch"], needed_by=BOTH),
        Finding("GPU", bool(gpu), gpu or f"torch {found['torch']}: {build}", advice, OPTIONAL),
        *(_data_set(where, *each) for each in found["data"]),
    ]


def _data_set(
    where: str, title: str, present: bool, folder: str, downloads: bool, damaged: Sequence[str] = ()
) -> Finding:
    if damaged:
        advice = f"runs refuse it: put a whole {folder} there, or take it away"
        return Finding(title, False, f"{', '.join(damaged)} in {where}: missing, or of a wrong size", advice, OPTIONAL)
    get = "downloaded by the first run, or else " if downloads else ""
    advice = f"{get}put {folder} there; until then runs use a generated stand-in, and say so"
    return Finding(title, present, f"in {where}" if present else f"not in {where}", advice, OPTIONAL)


def _damaged(folder: Path) -> list[str]:
    """The files of CIFAR-10's binary folder that a run would refuse for their size; of another folder none."""
    from testbed.workloads.data import cifar

    if folder.name != cifar.BINARY or not folder.is_dir():
        return []
    whole_bytes = cifar.RECORDS * cifar.FORMAT.record_bytes
    paths = [folder / name for name in cifar.BINARY_FILES]
    return [f"{folder.name}/{path.name}" for path in paths if not path.is_file() or path.stat().st_size != whole_bytes]


def tell_learning() -> None:
    """Print what `_learning` asks for, as JSON; for a process of its own."""
    import torch

    from testbed.workloads.data.base import DATASETS, root

    sources = [spec.source for spec in DATASETS.values() if spec.source.title]
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "folder": str(root()),
        "data": [
            (
                source.title,
                any((root() / name).is_dir() for name in source.folders),
                source.folder,
                bool(source.download),
                [file for name in source.folders for file in _damaged(root() / name)],
            )
            for source in sources
        ],
    }
    print(json.dumps(facts))


def _tensorboard() -> Finding:
    try:
        version = _python_says("-c", "from importlib.metadata import version; print(version('tensorboard'))")
    except _Failed:
        advice = "for `testbed run --tensorboard`: pip install 'geo-testbed[tensorboard]'"
        return Finding("TensorBoard", False, "not installed", advice, OPTIONAL)
    return Finding("TensorBoard", True, version, needed_by=OPTIONAL)


def _disk() -> Finding:
    free_gb = shutil.disk_usage(Path.cwd()).free / 1e9
    advice = f"make {DISK_GB:g} GB free, or name another folder with --out"
    return Finding("disk", free_gb >= DISK_GB, f"{free_gb:.1f} GB free in {Path.cwd()}", advice, BOTH)


def _memory() -> Finding:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free_gb = int(lines["MemAvailable"].split()[0]) * 1024e-9
    advice = f"an emulated cifarnet takes about {MEMORY_GB:g} GB; end other programs, or take --fabric virtual"
    found = f"{free_gb:.1f} GB available, {len(os.sched_getaffinity(0))} cores"
    return Finding("memory", free_gb >= MEMORY_GB, found, advice)


class _Failed(Exception):
    """A probe in a process of its own failed; the message is the last line it said."""


class _TooSlow(_Failed):
    """It did not end in time."""


def _python_says(*arguments: str) -> str:
    return _said([*PYTHON, *arguments])


def _said(command: Sequence[str]) -> str:
    """What a command prints, on either stream."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise _TooSlow(f"no answer within {TIMEOUT_S:g} s") from None
    if done.returncode:
        raise _Failed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return (done.stdout or done.stderr).strip()
