"""The files in `experiments/`: each loads at each of its scales, says what it is, and sweeps what it says."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from small_runs import plain, toml

from testbed import shipped
from testbed.errors import InputError
from testbed.experiment.load import FOLDER, load
from testbed.systems import SYSTEMS

FILES = sorted(shipped.places(FOLDER)[-1].glob("*.toml"))
SCALES = [(path, scale) for path in FILES for scale in ("", *tomllib.loads(path.read_text()).get("scale", {}))]
SWEPT = """
[sweep]
"systems.wgt.threshold" = [1e-3, 5e-6]
"systems.isgq-mse.bits" = [1, 2]

[scale.more.sweep]
"training.batch_size" = [8, 16, 24]

[scale.one]
sweep = {}
"""


@pytest.mark.parametrize(("path", "scale"), SCALES, ids=lambda value: getattr(value, "stem", value) or "default")
def test_every_file_loads_at_every_scale(path: Path, scale: str) -> None:
    points = load(path.stem, scale=scale)
    assert len({point.label for point in points}) == len(points)
    for point in points:
        it = point.experiment
        assert it.training.steps >= it.run.checkpoint_steps
        assert it.target.loss is not None or it.target.accuracy is not None or it.compute.timing_only
        assert {it.kind_of(system) for system in it.systems} <= set(SYSTEMS.values())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_names_the_table_or_figure_it_is(path: Path) -> None:
    head = path.read_text().partition("[topology]")[0]
    said = " ".join(line for line in head.splitlines() if line.startswith("#"))
    if "Not a paper's" not in said and "by `testbed tune`" not in said:
        assert "table" in said or "figure" in said
        timing_only = load(path.stem)[0].experiment.compute.timing_only  # as large as the paper's at once
        assert "paper" in tomllib.loads(path.read_text())["scale"] or timing_only


def test_the_defaults_sweep_the_tables_rows() -> None:
    labels = {name: [point.label for point in load(name)] for name in ("lenet-terngrad", "isgq", "threshold-nin")}
    assert labels["lenet-terngrad"] == [f"workers_per_region={workers}" for workers in (2, 4, 8, 16, 32, 64)]
    assert labels["isgq"] == [f"batch_size={size}" for size in (512, 1024, 2048)]
    assert labels["threshold-nin"][0] == "wgt.threshold=0.0005-bgt.threshold=0.000625-qgt.threshold=5e-06"
    assert len(labels["threshold-nin"]) == 6


@pytest.fixture
def swept(tmp_path: Path) -> str:
    data = plain(systems={"baseline": {}, "wgt": {}, "isgq-mse": {}}, training={"batch_size": 24})
    path = tmp_path / "swept.toml"
    path.write_text(toml(data) + SWEPT)
    return str(path)


def test_a_scale_may_sweep_something_else_or_nothing(swept: str) -> None:
    assert [point.label for point in load(swept, scale="more")] == ["batch_size=8", "batch_size=16", "batch_size=24"]
    assert [point.label for point in load(swept, scale="one")] == [""]


def test_an_option_that_is_swept_is_named_with_its_system(swept: str) -> None:
    points = load(swept)
    labels = ["wgt.threshold=0.001-isgq-mse.bits=1", "wgt.threshold=5e-06-isgq-mse.bits=2"]
    assert [point.label for point in points] == labels
    assert [point.experiment.systems["wgt"].threshold for point in points] == [1e-3, 5e-6]


def test_options_of_systems_that_are_left_out_are_not_swept(swept: str) -> None:
    assert [point.label for point in load(swept, systems=["wgt"])] == ["wgt.threshold=0.001", "wgt.threshold=5e-06"]
    assert [list(point.experiment.systems) for point in load(swept, systems=["baseline"])] == [["baseline"]]


def test_a_wrong_sweep_in_a_scale_names_itself(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(toml(plain()) + '[scale.big.sweep]\n"training.steps" = [1, 2]\n"training.batch_size" = [8]\n')
    with pytest.raises(InputError, match=r"scale\.big\.sweep: its lists .* training\.steps has 2"):
        load(str(path))
