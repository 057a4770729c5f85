"""What a script or a notebook uses: run experiments, read and compare their records, bring parts of one's own.

`import testbed` hands these names on. An experiment runs as it does from the command line, on the same fabrics, and
leaves the same records; what comes back reads them as pandas frames and draws them.
"""

from __future__ import annotations

import multiprocessing
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from io import BytesIO
from numbers import Integral
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from testbed import plugins as plugin
from testbed.errors import InputError
from testbed.experiment.load import Point, called, find
from testbed.experiment.load import load as load_experiment
from testbed.experiment.schema import Experiment
from testbed.files import typed_path
from testbed.harness.cluster import Cluster
from testbed.harness.launch import Wishes, launch
from testbed.harness.session import RESULTS
from testbed.record import reader, series
from testbed.record.info import FILE_NAME as RUN_FILE
from testbed.report import pictures
from testbed.report.numbers import compare as comparing
from testbed.report.numbers.asked import target_of
from testbed.report.numbers.summary import summarize
from testbed.report.page import write_page

What = str | Path | Mapping[str, Any] | Experiment
GUARD = 'put what runs under `if __name__ == "__main__":`, so that other processes can import what the script defines'


class Run(reader.Run):
    """The records of one run as pandas frames, pictures and pages.

    Attributes
    ----------
    folder : where the records lie
    info : the run's facts (`testbed.record.info.RunInfo`)
    results : one `testbed.record.reader.Result` a system and seed
    missing : what the records lack, one sentence each

    Examples
    --------
    >>> run = testbed.load("results/cifarnet/20260101-120000-virtual")  # doctest: +SKIP
    >>> run.summary[["system", "time_to_target_s"]]  # doctest: +SKIP
    """

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A row a system and seed: losses, accuracies, times, bytes, speedups (docs/results.md has every column)."""
        return summarize(self)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Every step: `system`, `seed`, and the columns of `testbed.record.frames`, times in seconds."""
        return self._all("steps")

    @cached_property
    def links(self) -> pd.DataFrame:
        """Bytes on each directed link, interval by interval."""
        return self._all("links")

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """Test loss and metrics: of the reported model often (`probe`) and at checkpoints, at the end of each model."""
        return self._all("evaluations")

    @cached_property
    def events(self) -> pd.DataFrame:
        """Every other event: exchanges, thresholds, guards, checkpoints."""
        return self._all("events")

    def _all(self, name: str) -> pd.DataFrame:
        parts = []
        for result in self.results:
            part = getattr(result, name).copy()
            part.insert(0, "system", result.system)
            part.insert(1, "seed", result.seed)
            parts.append(part)
        filled = [part for part in parts if len(part)] or parts[:1]
        return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()

    def plot(self, kind: str = "loss") -> Figure:
        """A picture of the run, e.g. "loss", "speedup", "accuracy", "wan" (`testbed plot --help` lists the kinds).

        Raises
        ------
        InputError
            There is no such kind, or the records hold nothing for it.
        """
        return pictures.draw(self, kind, self.summary)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report page, one HTML file with everything in it (`<run>/report.html`); returns where it is."""
        return write_page(self.folder, None if path is None else Path(path))

    def _repr_html_(self) -> str:
        """The run as a notebook shows it: what it was, its table, its losses."""
        return f"<h4>{escape(self.info.target)}, {escape(self.name)}</h4>{_table(self.summary)}{_image(self, 'loss')}"


class Series(Sequence[Run]):
    """The runs of an experiment with a `[sweep]` that have begun, in order.

    Attributes
    ----------
    folder : where the records lie
    labels : what each run differs in, e.g. "batch_size=16"
    missing : what the series lacks, one sentence a run that has not begun

    Raises
    ------
    InputError
        There is no series in that folder, or none of its runs has begun.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        every = list(series.read(self.folder).points)
        self.labels = [label for label in every if (self.folder / label / RUN_FILE).is_file()]
        self.missing = [f"{label} has not begun." for label in every if label not in self.labels]
        if not self.labels:
            raise InputError(
                f"{self.folder}: none of its runs has begun; testbed run --resume {typed_path(self.folder)} plays them"
            )
        self._runs = [_read(self.folder / label) for label in self.labels]

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """The runs' summaries behind `point`, the run's label."""
        parts = [run.summary.assign(point=label) for label, run in zip(self.labels, self._runs, strict=True)]
        frame = pd.concat(parts, ignore_index=True)
        return frame[["point", *(column for column in frame if column != "point")]]

    def _repr_html_(self) -> str:
        lacking = f"<p>{escape(' '.join(self.missing))}</p>" if self.missing else ""
        return f"<h4>{escape(str(self.folder.name))}: {len(self)} runs</h4>{lacking}{_table(self.summary)}"


def run(
    experiment: What,
    systems: str | Sequence[str] = (),
    seeds: int | Sequence[int] = (),
    set: Mapping[str, Any] | None = None,
    *,
    scale: str = "",
    fabric: str = "",
    trace: str = "",
    faults: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = (),
    plugins: str | Path | Sequence[str | Path] = (),
    device: str = "cpu",
    jobs: int | None = None,
    ray: str = "",
    storage: str | Path | None = None,
    out: str | Path = RESULTS,
    name: str = "",
    gate: bool = True,
    tensorboard: bool = False,
    say: Callable[[str], None] = print,
) -> Run | Series:
    """Run an experiment and return its records.

    Parameters
    ----------
    experiment : a name in `experiments/`, the path of a TOML file, its content as a dict, or an `Experiment`
    systems, seeds : run only these, or this one; a system that the experiment does not name runs with its default
        options
    set : changed keys, e.g. {"training.steps": 50}
    scale : a `[scale]` of the file to lay over it
    fabric : "mininet" emulates the network, "virtual" simulates it, "auto" emulates where this machine can, "cluster"
        has the roles on the nodes of `ray`'s cluster and the network that joins them; default: the experiment's
    trace : a bandwidth trace for the WAN to follow, by its name or path
    faults : what goes wrong on purpose, besides the experiment's own: sentences such as "partition us-west-1 at 20s for
        30s", or tables of `[[faults]]`
    plugins : files or modules with systems, models, data sets or others of your own
    device : where the math runs: "cpu" or "cuda"
    jobs : systems and seeds at once, on the virtual fabric with a modelled device; default: one a core
    ray, storage : play on the nodes of the Ray cluster at this address ("auto": this machine's), with checkpoints in a
        folder that all of them see
    out, name : records go to <out>/<name>/<run>; the name is the file's by default
    gate : whether the emulated links are probed before the run
    tensorboard : whether scalars for TensorBoard are written, too
    say : takes what a run in the sandbox prints, and notices

    Returns
    -------
    A `Run`; a `Series` where the experiment has a `[sweep]`.

    Raises
    ------
    InputError
        Something asked for cannot be; nothing was written.
    RunError
        The run failed or was stopped; its records stay in `out` and `testbed run --resume` goes on with them.

    Examples
    --------
    >>> run = testbed.run("cifarnet", systems=["baseline", "weightgrad"], set={"training.steps": 50})  # doctest: +SKIP
    >>> run.plot("loss").savefig("loss.png")  # doctest: +SKIP
    """
    own = _own_definitions()
    by_argument: dict[str, Mapping[str, Any]] = {
        "set": set or {},
        "fabric": {"run.fabric": fabric} if fabric else {},
        "trace": {"topology.trace": trace} if trace else {},
        "gate": {} if gate else {"run.gate": False},
        "seeds": {"run.seeds": drawn} if (drawn := _seeds(seeds)) else {},
    }
    changes = {key: value for given in by_argument.values() for key, value in given.items()}
    by = {key: argument for argument, given in by_argument.items() for key in given}
    asked = [*map(str, _several(plugins, str, Path)), *([own.file] if own.names and own.file else [])]
    named, failing = _several(systems, str), called(_several(faults, str, Mapping), "")
    points = load_experiment(experiment, changes, scale, named, plugins=asked, faults=failing, options=by)
    wishes = Wishes(
        target=name or _name_of(experiment, points),
        device=device,
        out=Path(out),
        jobs=1 if own.names and not own.file else jobs,
        cluster=_cluster(ray, storage, jobs),
        tensorboard=tensorboard,
        command=tuple(sys.argv) if own.file else (),
        quiet=True,
        say=say,
        alone=", ".join(own.names) if not own.file else "",
    )
    folder = launch(points, wishes)
    return Series(folder) if len(points) > 1 else _read(folder)


def load(path: str | Path) -> Run | Series:
    """Read the records in the folder `path` (results/<target>/<run>), also of a run that goes on or was killed.

    Raises
    ------
    InputError
        There is no run in that folder, or a series none of whose runs has begun.
    """
    return Series(path) if series.is_series(Path(path)) else _read(path)


def compare(
    runs: str | Path | Run | Series | Sequence[str | Path | Run | Series],
    over: str | Sequence[str] = (),
    loss: float | None = None,
    accuracy: float | None = None,
    force: bool = False,
) -> comparing.Comparison:
    """Set the systems of several runs side by side; `.frame` of the answer is a pandas frame.

    Parameters
    ----------
    runs : folders, or what `run` and `load` return, several or one; of a series, all of its runs that have begun
    over : systems beside the baseline that speedups are taken over, or one
    loss, accuracy : time to these instead of to the experiment's target
    force : also compare runs that differ in model, data, profile, dilation, target or compute; the answer says so

    Raises
    ------
    InputError
        The runs do not answer the same question, one is given twice, or there is none.
    """
    given = _several(runs, str, Path, Run, Series)
    folders = [each.folder if isinstance(each, Run | Series) else each for each in given]
    return comparing.compare(comparing.load_all(folders), force, _several(over, str), target_of(loss, accuracy))


def _several(given: Any, *kinds: type) -> Sequence[Any]:
    """What was given, as several: one of `kinds` stands for itself alone."""
    return [given] if isinstance(given, kinds) else given


def _seeds(given: Any) -> list[int]:
    """The seeds that are asked for; InputError for what `int` would cut or read letter by letter."""
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for seed in several:
        if not _is_whole(seed):
            raise InputError(f"seeds has {seed!r}: a seed is a whole number, e.g. seeds=[0, 1]")
    return [int(seed) for seed in several]


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _cluster(ray: str, storage: str | Path | None, jobs: int | None) -> Cluster | None:
    """The cluster that is asked for; InputError where the arguments contradict each other."""
    if jobs is not None and not (_is_whole(jobs) and jobs >= 1):
        raise InputError(f"jobs is {jobs!r}: it must be a whole number from 1, or left out")
    if not ray:
        if storage is not None:
            raise InputError("storage is for a cluster's nodes: it goes with ray")
        return None
    if jobs is not None:
        raise InputError("give either jobs or ray: how much a cluster does at once is up to its nodes")
    return Cluster(ray, None if storage is None else Path(storage))


def _read(path: str | Path) -> Run:
    found = reader.load(path)
    return Run(found.folder, found.info, found.results, found.lacks)


def _own_definitions() -> plugin.Interactive:
    """What the script or notebook has registered, after making sure that this is its own process."""
    starting = getattr(multiprocessing.current_process(), "_inheriting", False)  # a job, which imports the script first
    if plugin.importing() or starting:
        raise InputError(f"testbed.run() is called while the script is being imported: {GUARD}")
    return plugin.interactive()


def _name_of(experiment: What, points: Sequence[Point]) -> str:
    """The file's name; of plain data its title's first word, e.g. "resnet"."""
    if isinstance(experiment, str | Path):
        return find(str(experiment)).stem
    words = "".join(c if c.isalnum() else " " for c in points[0].experiment.title.lower()).split()
    return words[0] if words else "experiment"


def _table(frame: pd.DataFrame) -> str:
    shown = frame.dropna(axis="columns", how="all")
    return str(shown.to_html(index=False, float_format=lambda value: f"{value:.4g}", border=0))


def _image(run: Run, kind: str) -> str:
    try:
        figure = run.plot(kind)
    except InputError:  # nothing was recorded that it could show
        return ""
    png = BytesIO()
    figure.savefig(png, format="png", dpi=150)
    return f'<img alt="{kind}" src="data:image/png;base64,{b64encode(png.getvalue()).decode()}">'
