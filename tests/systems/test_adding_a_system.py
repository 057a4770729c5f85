"""docs/add-a-system.md: the files it shows work from a folder of the reader's own, and are as short as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from own_parts import forget_after
from small_runs import Played, experiment, network, play, quadratic_task, start

from testbed import plugins
from testbed.record import reader
from testbed.record.events import LinkBytes
from testbed.record.info import ResultInfo, read_info
from testbed.roles.roles import Roles
from testbed.wan.profile import Link

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-system.md").read_text()
FILES = dict(re.findall(r"```(?:python|toml)\n# (\w+\.\w+)\n(.*?)```", PAGE, re.DOTALL))
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files."""
    forget_after(monkeypatch)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def wan_bytes(played: Played) -> int:
    return sum(event.wan_bytes for event in played.of(LinkBytes))


@pytest.mark.parametrize(("name", "lines", "share_of_bytes"), [("sign", 40, 0.2), ("localsgd", 120, 0.15)])
def test_the_page_shows_a_whole_system(
    name: str, lines: int, share_of_bytes: float, small_data: None, folder: Path
) -> None:
    assert FILES[f"{name}.py"].count("\n") < lines
    plugins.load([f"./{name}.py"], folder)

    task = quadratic_task(Roles(("a", "b"), 2, "c"), steps=200)
    new, baseline = play(name, task, PROFILE), play("baseline", task, PROFILE)
    distance = torch.linalg.vector_norm(new.models["full"] - baseline.models["full"])
    assert distance < 0.1 * torch.linalg.vector_norm(baseline.models["full"])
    assert wan_bytes(new) < share_of_bytes * wan_bytes(baseline)

    records = start(experiment(systems={name: {}}), folder)
    assert read_info(records / name / "seed-0", ResultInfo).status == "finished"


def test_the_pages_own_rules_are_timed_without_training(small_data: None, folder: Path) -> None:
    plugins.load(["./localsgd.py"], folder)
    records = start(experiment(systems={"localsgd": {}}, compute={"math": "none"}), folder)
    assert read_info(records / "localsgd" / "seed-0", ResultInfo).status == "finished"


@pytest.mark.emulation
@pytest.mark.full
def test_the_same_files_run_on_the_emulated_fabric(folder: Path) -> None:
    """In a process of its own, as a reader types it; the experiment file names its plug-ins."""
    small = {
        "model.name": "tiny",
        "data.dataset": "synthetic",
        "training.steps": 3,
        "topology.workers_per_region": 1,
        "run.eval_images": 20,
        "systems.localsgd.period": 2,
    }
    command = [sys.executable, "-m", "testbed", "run", "mine.toml", "--fabric", "mininet", "--no-gate"]
    command += [
        "--systems",
        "sign,localsgd",
        *(word for key, value in small.items() for word in ("--set", f"{key}={value}")),
    ]
    environment = {**os.environ, "TESTBED_DATA": str(folder / "data")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    [records] = (folder / "results" / "mine").iterdir()
    run = reader.load(records)
    assert [(result.system, result.status) for result in run.results] == [
        ("sign", "finished"),
        ("localsgd", "finished"),
    ]
    assert run.info.fabric == "mininet"
