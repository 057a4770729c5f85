"""The package that others install: its wheel has all files of a clone, and runs in any folder, with no clone near."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

import testbed
from testbed import codecs

pytestmark = [pytest.mark.slow, pytest.mark.full]

ROOT = Path(__file__).resolve().parents[1]
BUILT_FROM = ("testbed", "experiments", "topologies", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
LIMIT_S = 600
LEFT_OUT = ("testbed", "geo_testbed", "__", "mininet", "pyroute2", "ray", "zmq")  # itself, and what [emulation] adds
LITTLE = ["data.dataset=synthetic", "training.steps=4", "training.batch_size=8", "run.eval_images=50"]


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel in it, and an empty folder to work in."""

    folder: Path
    environment: Path

    def __call__(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the empty folder, without a way to the repository."""
        given = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        given |= {"TESTBED_DATA": str(self.folder / "data"), "PYTHONNOUSERSITE": "1"}
        command = [str(self.environment / "bin" / program), *arguments]
        return subprocess.run(command, cwd=self.folder, env=given, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a wheel is built from, so that the build leaves nothing in the repository, nor finds anything."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            no_caches = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=no_caches)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own; its other packages are those of the environment that runs the tests."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(environment, symlinks=True)
    into = ["--python", str(environment / "bin" / "python")]
    pip(*into, "install", "--quiet", "--no-index", "--no-deps", str(wheel))
    [packages] = environment.glob("lib/python*/site-packages")
    for other in {Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("platlib"))}:
        for package in other.iterdir():
            if not package.name.startswith(LEFT_OUT) and package.suffix != ".pth":
                (packages / package.name).symlink_to(package)
    take_along_kernels(packages)
    return Installed(tmp_path_factory.mktemp("elsewhere"), environment)


@pytest.fixture(scope="module")
def run(installed: Installed) -> Path:
    """The records of the default run, its first steps with little of everything, under a trace that is shipped."""
    settings = [part for setting in LITTLE for part in ("--set", setting)]
    done = installed("testbed", "run", "cifarnet", "--fabric", "virtual", *settings, "--trace", "outage")
    assert done.returncode == 0, done.stdout + done.stderr
    [folder] = (installed.folder / "results" / "cifarnet").iterdir()
    return folder


def pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def build(source: Path, target: Path) -> Path:
    """Build the wheel of a source folder with the setuptools that is here, as no network is needed for that."""
    tools = ["--no-index", "--no-deps", "--no-build-isolation"]
    pip("wheel", "--quiet", *tools, "--wheel-dir", str(target), str(source.resolve()))
    [built] = target.glob("geo_testbed-*.whl")
    return built


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.startswith("testbed/")}


def take_along_kernels(packages: Path) -> None:
    """Take the kernels that are compiled here along: compiling them takes a minute and is tested with the codecs.

    Numba's cache beside a source file is valid while the source has the size and the time of change that it had.
    """
    codecs.warm_up()
    here = Path(codecs.__file__).parent
    for source in here.rglob("*.py"):
        shutil.copystat(source, packages / "testbed" / "codecs" / source.relative_to(here))
    for cache in here.rglob("__pycache__"):
        others = shutil.ignore_patterns("*.pyc", "*.lock")
        to = packages / "testbed" / "codecs" / cache.relative_to(here)
        shutil.copytree(cache, to, ignore=others, dirs_exist_ok=True)


def test_the_wheel_has_every_file_of_the_package_and_the_files_behind_its_links(source: Path, wheel: Path) -> None:
    """The folders of experiments, profiles and traces are links in a clone; a wheel has no links."""
    expected = {
        str(Path(folder, file).relative_to(source))
        for folder, _, files in os.walk(source / "testbed", followlinks=True)
        for file in files
        if not (folder.endswith("topologies") and file.endswith(".py"))  # for Mininet's own command line, in a clone
    }
    assert contents(wheel) == expected
    shipped = "testbed/shipped"
    for name in ("experiments/cifarnet.toml", "topologies/prices.csv", "topologies/traces/outage.csv"):
        assert f"{shipped}/{name}" in expected


def test_an_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    make = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", make, str(tmp_path)], cwd=source, capture_output=True, timeout=LIMIT_S, check=True
    )
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    again = build(tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    assert contents(again) == contents(wheel)


def test_the_wheel_says_version_author_and_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(archive.read(name))
    assert said["Version"] == testbed.__version__
    assert said["Author"] == "The geo-testbed authors"
    assert said["License-Expression"] == "Apache-2.0"
    assert said["License-File"] == "LICENSE"


def test_the_command_is_there_and_is_the_wheels(installed: Installed) -> None:
    assert installed("testbed", "--version").stdout.strip() == testbed.__version__
    found = installed("python", "-c", "import testbed; print(testbed.__file__)").stdout
    assert Path(found.strip()).is_relative_to(installed.environment)


def test_profiles_are_listed_and_shown_in_an_empty_folder(installed: Installed) -> None:
    listed = installed("testbed", "profile", "list")
    for profile in (ROOT / "topologies" / "profiles").glob("*.toml"):
        assert profile.stem in listed.stdout
    shown = installed("testbed", "profile", "show", "weightgrad-ec2")
    assert shown.returncode == 0 and "us-east-2" in shown.stdout


def test_an_unknown_experiment_is_told_those_that_came_with_the_wheel(installed: Installed) -> None:
    refused = installed("testbed", "run", "cifarnett", "--fabric", "virtual")
    assert refused.returncode == 2
    assert "cifarnet" in refused.stderr and "vggnet" in refused.stderr


def test_an_experiment_runs_in_an_empty_folder_and_its_record_names_no_repository(run: Path) -> None:
    facts = json.loads((run / "run.json").read_text())
    assert facts["environment"]["packages"]["geo-testbed"] == testbed.__version__
    assert facts["environment"]["commit"] == "", "run from the wheel, not from this checkout"
    assert facts["data"]["stand_in"]
    summary = (run / "summary.csv").read_text()
    assert all(system in summary for system in ("baseline", "terngrad", "weightgrad"))
    assert (run / "comparison.png").is_file()


def test_the_emulated_fabric_is_refused_in_one_line_that_says_what_is_missing(installed: Installed) -> None:
    refused = installed("testbed", "run", "cifarnet", "--fabric", "mininet")
    assert refused.returncode == 2
    assert re.fullmatch(r"testbed: error: [^\n]*(mininet|ray|zmq|pyroute2)[^\n]*\n", refused.stderr), refused.stderr


def test_a_run_is_reported_compared_and_priced(installed: Installed, run: Path) -> None:
    reported = installed("testbed", "report", str(run))
    assert reported.returncode == 0, reported.stderr
    assert (run / "report.html").stat().st_size > 100_000
    compared = installed("testbed", "compare", str(run))
    assert compared.returncode == 0, compared.stderr
    assert "Egress prices:" in compared.stdout, "they come with the wheel"
