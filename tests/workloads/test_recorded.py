"""A run of a language model: its metrics are in the events, the frames and the facts; it repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import experiment, start

from testbed.errors import InputError
from testbed.record.info import MetricInfo
from testbed.record.reader import Run, load
from testbed.workloads.models import base as models
from testbed.workloads.models.base import parameter_count

pytestmark = pytest.mark.usefixtures("data_root")
GPT: dict[str, Any] = {
    "model": {"name": "gpt", "layers": 1, "heads": 2, "width": 16, "context": 16},
    "data": {"dataset": "text"},
    "training": {
        "steps": 4,
        "optimizer": {"kind": "adamw", "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "rate": 0.01, "warmup_steps": 2},
    },
    "run": {"eval_images": 30, "probe_images": 30},
}


def played(folder: Path, **parts: Any) -> Run:
    return load(start(experiment(**{**GPT, **parts}), folder))


@pytest.mark.slow
def test_every_kind_of_system_trains_it(tmp_path: Path) -> None:
    """Gradients, coded gradients, local steps, weights quantized by second moments, momentum at the worker."""
    systems = {name: {} for name in ("baseline", "terngrad", "diloco", "weightgrad", "dgc")}
    systems["diloco"] = {"local_steps": 2}
    done = played(tmp_path, systems=systems, target={"metric": "bits_per_character", "value": 4.0})
    assert done.info.metric == MetricInfo(
        name="bits_per_character", label="bits per character", unit="", better="lower"
    )
    assert done.info.parameters == parameter_count(models.of(**GPT["model"]), outputs=23)
    assert done.info.data.stand_in
    for result in done.results:
        tests = result.evaluations
        assert result.status == "finished"
        assert tests["bits_per_character"].between(3.0, 5.5).all()
        assert (tests["images"] == 30).all()
        assert tests["accuracy"].between(0, 1).all()


@pytest.mark.slow
def test_it_repeats(tmp_path: Path) -> None:
    first, second = (played(tmp_path / name, systems={"weightgrad": {}}).results[0] for name in "ab")
    assert (first.folder / "events.jsonl").read_bytes() == (second.folder / "events.jsonl").read_bytes()
    assert len(first.evaluations)


def test_a_target_that_the_data_does_not_measure_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no metric 'bits'; known: accuracy, bits_per_character, loss"):
        played(tmp_path, target={"metric": "bits", "value": 1.0})
    assert not list(tmp_path.glob("test/*"))


def test_skewed_labels_are_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="data set 'text' has no labels"):
        played(tmp_path, data={"dataset": "text", "split": "dirichlet", "alpha": 1.0})
