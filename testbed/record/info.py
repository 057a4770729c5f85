"""The facts of a run: what was asked for, on which network, with which data, on which machine.

`<run>/run.json` holds a `RunInfo`, `<run>/<system>/seed-<n>/run.json` a `ResultInfo`. Every field has a default,
so that a record of another version, or one that lost a key, still reads. Its last line is the CRC-32 of what stands
above it, by which damage shows; older records have none.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from testbed.errors import InputError, NotFinite
from testbed.files import crc32, write_whole

FILE_NAME = "run.json"
MODELLED_NETWORK = "modelled"  # the delay mechanism of a network that is a model
PACKAGES = (
    *("geo-testbed", "torch", "numpy", "pandas", "pyarrow", "numba", "msgspec", "matplotlib"),
    *("ray", "mininet", "pyzmq", "pyroute2"),
)
GIT_TIMEOUT_S = 5.0
CRC = b',\n  "crc": "'  # begins the last line of a file of facts
NOT_FINITE = str(NotFinite.of(""))  # ends the line of every such error, whoever raised it
DONE = ("finished", "ended")  # the statuses of a system and seed that has nothing left to do
DIVERGED = "diverged"  # a reader's word for one that failed because training did, and would again
OVER = (*DONE, DIVERGED)  # of one that has nothing left to do: what diverged has missed its target


class Environment(msgspec.Struct, kw_only=True):
    """The machine and the software; what could not be found out is empty or None."""

    python: str = ""
    packages: dict[str, str] = {}  # distribution -> version, those of PACKAGES that are installed
    platform: str = ""
    kernel: str = ""
    cpu: str = ""  # model name
    cores: int | None = None  # that this process may use
    memory_bytes: int | None = None
    commit: str = ""  # of the testbed's own checkout
    dirty: bool | None = None  # whether that checkout had changes; None where there is no checkout


class DataInfo(msgspec.Struct, kw_only=True):
    """The data set a run trained on; a stand-in is generated data of the same shape."""

    dataset: str = ""
    stand_in: bool = False
    note: str = ""  # e.g. why the stand-in was taken
    fingerprint: str = ""  # see `workloads.fingerprint`; "" where nothing is trained, and in older records


class MetricInfo(msgspec.Struct, kw_only=True):
    """A metric of what was trained: a column of the frame `evaluations`, and how it is shown."""

    name: str = "accuracy"
    label: str = "accuracy"
    unit: str = "fraction"  # shown in percent; any other unit stands behind the value
    better: Literal["higher", "lower"] = "higher"


class LinkInfo(msgspec.Struct, kw_only=True):
    """One directed link as the profile states it, dilation not applied."""

    goodput_mbit: float
    rtt_ms: float


class ProbeInfo(msgspec.Struct, kw_only=True):
    """What the gate measured of a link (`testbed.fidelity.gate`), in `unit`; None where nothing came.

    `play` says for which system and seed, where each had a network of its own.
    """

    section: str = ""
    name: str = ""
    play: str = ""
    unit: str = ""
    asked: float | None = None
    measured: float | None = None
    bound: str = ""
    ok: bool = False


class FidelityInfo(msgspec.Struct, kw_only=True):
    """The fidelity record of a network: `missed` of its `figures` lie beyond their bounds."""

    path: str = ""
    date: str = ""
    figures: int = 0
    missed: int = 0


class PluginInfo(msgspec.Struct, kw_only=True):
    """A plug-in that was loaded, with the SHA-256 (hex) of its file; "" where it is more than one file."""

    name: str
    sha256: str = ""


class RunInfo(msgspec.Struct, kw_only=True):
    """The facts of a whole run (all its systems and seeds).

    `experiment` is the experiment as a plain dict with the overrides of the command line applied, and
    `experiment_hash` is `hash_of` it. `dilation` has been divided out of every time in the records.
    """

    format: int = 1
    run_id: str = ""
    target: str = ""
    experiment: dict[str, Any] = {}
    experiment_hash: str = ""
    plugins: list[PluginInfo] = []
    profile: str = ""
    network: dict[str, LinkInfo] = {}  # "us-east-1>us-east-2" -> figures, and "lan"
    topology: dict[str, Any] = {}
    trace: str = ""  # SHA-256 (hex) of the file that changes the links; "" for none, and in older records
    fabric: str = ""  # its name in an experiment file
    delay_mechanism: str = ""  # "netem", "delay line", MODELLED_NETWORK
    gate: dict[
        str, Any
    ] = {}  # what was measured of the emulated links before the run; {"skipped": true} with --no-gate
    fidelity: dict[str, Any] = {}  # the newest fidelity record for this profile and kernel: path, date, figures, missed
    delay_report: dict[str, Any] = {}  # of the delay stage: frames lost, how late they left; of a trace's changes, too
    nodes: dict[
        str, Any
    ] = {}  # of a cluster, where the roles stood on such: addresses by role, clocks, encrypted or not
    dilation: float = 1.0
    compute: str = ""  # "measured", or the modelled device: "m60"
    device: str = ""  # where the math ran: "cpu", "cuda:0 (NVIDIA H100)"
    systems: list[str] = []
    seeds: list[int] = []
    data: DataInfo = msgspec.field(default_factory=DataInfo)
    metric: MetricInfo = msgspec.field(default_factory=MetricInfo)
    target_metric: MetricInfo | None = None  # that the target names; None where it names none, and in older records
    parameters: int = 0  # of the model; 0 in records that do not say
    started_at: str = ""  # ISO 8601 with offset
    tensorboard: bool = False  # whether scalars for TensorBoard are written beside the records
    command: list[str] = []
    environment: Environment = msgspec.field(default_factory=Environment)
    notes: list[str] = []  # anything a reader of the results must know, one sentence each


class ResultInfo(msgspec.Struct, kw_only=True):
    """The facts of one system and seed.

    `status` is "running", "finished", "ended" (where its trace does), "interrupted" or "failed" (then `error` is the
    error's line). `checksums` are of the tables beside it (`testbed.files.crc32_of`) by file name, once the run ended.
    """

    system: str = ""
    seed: int = 0
    options: dict[str, Any] = {}
    steps: int | None = None  # planned
    status: str = "running"
    error: str = ""
    checksums: dict[str, str] = {}

    @property
    def diverged(self) -> bool:
        """Whether training has, until a role had NaN or infinity to send."""
        return self.status == "failed" and self.error.endswith(NOT_FINITE)

    @property
    def nothing_left(self) -> bool:
        """Whether playing on would add nothing: it is done, or would diverge again."""
        return self.status in DONE or self.diverged


Info = TypeVar("Info", RunInfo, ResultInfo)
Facts = TypeVar("Facts", bound=msgspec.Struct)
OnDamage = Callable[[str], None]


def hash_of(experiment: dict[str, Any]) -> str:
    """SHA-256 (hex) of the experiment as JSON with sorted keys: equal experiments, equal hash."""
    return hashlib.sha256(msgspec.json.encode(experiment, order="sorted")).hexdigest()


def write_info(folder: Path, info: RunInfo | ResultInfo) -> None:
    """Write `info` to `folder/run.json`, whole or not at all."""
    write_facts(folder / FILE_NAME, info)


def read_info(folder: Path, kind: type[Info], on_damage: OnDamage | None = None) -> Info:
    """Read `folder/run.json` as `read_facts` reads it."""
    return read_facts(folder / FILE_NAME, kind, on_damage)


def write_facts(path: Path, facts: msgspec.Struct) -> None:
    """Write a struct as JSON, whole or not at all."""
    body = msgspec.json.format(msgspec.json.encode(facts), indent=2).removesuffix(b"\n}")
    write_whole(path, body + CRC + _last_line(body))


def _last_line(body: bytes) -> bytes:
    return f'{crc32(body)}"\n}}\n'.encode()


def read_facts(path: Path, kind: type[Facts], on_damage: OnDamage | None = None) -> Facts:
    """Read a struct; fields that are not there keep their defaults.

    Parameters
    ----------
    on_damage : told in a sentence where the file is not as it was written, and what it says is taken all the same

    Raises
    ------
    InputError
        The file is missing, is not JSON, or holds a value of the wrong type; without `on_damage` also where it is not
        as it was written.
    """
    try:
        content = path.read_bytes()
        facts = msgspec.json.decode(content, type=kind)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: {error}") from None
    except (ValueError, RecursionError):  # not UTF-8, or a number or a nesting without end
        raise InputError(f"{path}: no facts of a run can be read there; the file is damaged") from None
    body, mark, rest = content.rpartition(CRC)
    if mark and rest != _last_line(body):
        damage = f"{path}: not as it was written (its last line, the CRC-32 of the others, says so)"
        if on_damage is None:
            raise InputError(f"{damage}; put the file back, or take that line out if you changed it on purpose")
        on_damage(damage)
    return facts


def probes_of(gate: Mapping[str, Any]) -> list[ProbeInfo]:
    """What the gate measured, as far as it is understood here."""
    figures = gate.get("figures")
    found = (converted(each, ProbeInfo) for each in figures) if isinstance(figures, list) else ()
    return [each for each in found if each is not None]


def converted(plain: Any, kind: type[Facts]) -> Facts | None:
    """Plain data as a struct; None where it is none."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError:
        return None


def environment() -> Environment:
    """Describe this machine and its software. Never fails: what cannot be found out stays empty."""
    commit, dirty = _checkout()
    return Environment(
        python=platform.python_version(),
        packages=dict(_packages()),
        platform=platform.platform(),
        kernel=platform.release(),
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=_memory_bytes(),
        commit=commit,
        dirty=dirty,
    )


@cache  # what is installed stays for as long as the process does
def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cpu_model() -> str:
    with suppress(OSError, UnicodeDecodeError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory_bytes() -> int | None:
    with suppress(OSError, ValueError, AttributeError):  # no sysconf, or not these names
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _checkout() -> tuple[str, bool | None]:
    """Commit of the checkout this package lies in, and whether what a run may depend on has changes since then.

    An installed package lies in none. No run depends on `results`, where one writes while the next is played.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # a repository further up, around a virtual environment, is not the testbed's
        return "", None
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", ".", ":!results") if commit else None
    return commit or "", None if changes is None else bool(changes)


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]  # somebody may be committing
    with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
        return done.stdout.strip()
    return None
