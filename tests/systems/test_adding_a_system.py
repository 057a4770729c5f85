"""docs/add-a-system.md: the files it shows run as they stand, and are as short as it says."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
from small_runs import Played, experiment, network, play, quadratic_task, start

from testbed.record.events import LinkBytes
from testbed.record.info import ResultInfo, read_info
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS
from testbed.systems.baseline import Baseline
from testbed.wan.profile import Link

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-system.md").read_text()
FILES = dict(re.findall(r"```python\n# testbed/systems/(\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))


def wan_bytes(played: Played) -> int:
    return sum(event.wire_bytes for event in played.of(LinkBytes) if "/" not in event.link)


@pytest.mark.parametrize(("name", "lines", "share_of_bytes"), [("sign", 40, 0.2), ("localsgd", 120, 0.15)])
def test_the_page_shows_a_whole_system(
    name: str, lines: int, share_of_bytes: float, small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FILES[name].count("\n") < lines
    monkeypatch.setitem(SYSTEMS._found, name, Baseline)  # to be undone after the test
    path = tmp_path / f"{name}.py"
    path.write_text(FILES[name])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)

    task = quadratic_task(Roles(("a", "b"), 2, "c"), steps=200)
    new, baseline = play(name, task, PROFILE), play("baseline", task, PROFILE)
    distance = torch.linalg.vector_norm(new.models["full"] - baseline.models["full"])
    assert distance < 0.1 * torch.linalg.vector_norm(baseline.models["full"])
    assert wan_bytes(new) < share_of_bytes * wan_bytes(baseline)

    folder = start(experiment(systems={name: {}}), tmp_path)
    assert read_info(folder / name / "seed-0", ResultInfo).status == "finished"
