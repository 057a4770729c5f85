"""What travels to the nodes with Ray's `runtime_env`: the testbed itself, plug-ins, and files that experiments name.

Data sets do not: they are large, and each node has its own. What an experiment names by a path on this machine is
copied into the folder that becomes the nodes' working directory, and named by its path there.
"""

from __future__ import annotations

import shutil
import site
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import testbed
from testbed import shipped
from testbed.experiment.schema import Experiment
from testbed.record import lines
from testbed.record.info import FILE_NAME
from testbed.wan import profile as profiles
from testbed.wan import trace as traces

FILES = "files"  # below the nodes' working directory
UNWANTED = shutil.ignore_patterns("*.pyc", "*.lock", ".git", ".venv")  # not the compiled kernels, of use where alike


class Baggage:
    """What `experiments` need, copied into `folder`.

    Attributes
    ----------
    runtime_env : as Ray takes it
    """

    def __init__(self, experiments: Sequence[Experiment], folder: Path) -> None:
        self._place = folder / "work"
        self._carried: dict[str, str] = {}
        (self._place / FILES).mkdir(parents=True)
        code = folder / "code" / "testbed"
        shutil.copytree(Path(testbed.__file__).parent, code, ignore=UNWANTED)
        for experiment in experiments:
            self._pack(experiment)
        self.runtime_env: dict[str, Any] = {"working_dir": str(self._place), "py_modules": [str(code)]}

    def renamed(self, experiment: dict[str, Any]) -> dict[str, Any]:
        """An experiment (plain data) that names files as nodes find them."""

        def new(table: str, key: str) -> dict[str, Any]:
            value = experiment[table].get(key)
            return {key: self._carried[value]} if isinstance(value, str) and value in self._carried else {}

        there = {
            **experiment,
            "topology": {**experiment["topology"], **new("topology", "profile"), **new("topology", "trace")},
            "compute": {**experiment["compute"], **new("compute", "sizes")},
        }
        if names := experiment.get("plugins"):
            there["plugins"] = [self._carried.get(name, name) for name in names]
        return there

    def _pack(self, experiment: Experiment) -> None:
        self._profile(experiment.topology.profile)
        if name := experiment.topology.trace:
            path = traces.find(name)
            self._carry(name, path, (path,))
        if isinstance(sizes := experiment.compute.sizes, str):
            self._records(sizes)
        for name in experiment.plugins:
            self._plugin(name)

    def _profile(self, name: str) -> None:
        path = Path(name) if name.endswith(".toml") else shipped.find(profiles.FOLDER, f"{name}.toml")
        if name not in profiles.PROFILES and path is not None:  # else a plug-in has it
            self._carry(name, path, (path, path.with_suffix(".csv")))

    def _records(self, name: str) -> None:
        """Of a recorded run what says how large its messages were."""
        source = Path(name)
        found = [source / FILE_NAME, *source.glob(f"*/*/{FILE_NAME}"), *source.glob(f"*/*/{lines.FILE_NAME}")]
        self._carry(name, source, found)

    def _plugin(self, name: str) -> None:
        if name.endswith(".py"):
            path = Path(name)
            whole = path.parent if path.name == "__init__.py" else path
            self._carry(name, whole, (whole,))
            return
        top = sys.modules[name.partition(":")[0].partition(".")[0]]
        path = Path(getattr(top, "__file__", None) or "")
        installed = [*site.getsitepackages(), site.getusersitepackages()]
        if path.name and not any(path.is_relative_to(each) for each in installed):
            _copy(path.parent if path.name == "__init__.py" else path, self._place)

    def _carry(self, name: str, source: Path, files: Sequence[Path]) -> None:
        """Copy `files`, which are `source`, beside it or below it, and note where nodes find `source`."""
        if name in self._carried:
            return
        folder = Path(FILES, str(len(self._carried)))
        for file in files:
            inside = file.parent.relative_to(source.parent)
            _copy(file, self._place / folder / inside)
        self._carried[name] = str(folder / source.name)


def _copy(source: Path, folder: Path) -> None:
    """Copy a file or a whole folder into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, folder / source.name, ignore=UNWANTED, dirs_exist_ok=True)
    else:
        shutil.copy(source, folder)
