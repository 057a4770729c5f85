"""Bytes a step, hop by hop (`testbed.report.numbers.traffic`), of real runs on the virtual fabric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_runs import experiment, start

from testbed import load
from testbed.cli import main
from testbed.message import Message
from testbed.report.numbers.traffic import traffic
from testbed.workloads.models.base import Model, parameter_count


def played(tmp_path: Path, kind: str) -> Path:
    it = experiment(systems={"baseline": {}, "terngrad": {}}, topology={"kind": kind}, training={"steps": 12})
    return start(it, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_the_bytes_are_the_messages(small_data: None, tmp_path: Path, kind: str) -> None:
    frame = traffic(load(played(tmp_path, kind)))
    gradient = Message("gradient", 9, [np.zeros(parameter_count(Model(name="tiny"), outputs=10), np.float32)]).nbytes
    for hop in frame.columns:
        assert frame.loc["baseline", hop] == pytest.approx(gradient, rel=0.002)  # "sum", "mean"; markers
    assert frame.loc["terngrad", "worker up"] < gradient / 4  # the float last layer is a large part of so small a model
    assert (frame.loc["terngrad", "WAN up"] == frame.loc["terngrad", "worker up"]) == (kind == "flat")


@pytest.mark.slow
def test_the_command_prints_the_table(small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = played(tmp_path, "tree")
    assert main(["bytes", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| system | worker up | of float32 | of baseline | worker down |")
    assert lines[2].split(" | ")[2:4] == ["1.00×", "1.00×"]
