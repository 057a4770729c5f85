"""Systems on a device: the CPU's results, and nothing on a step's way that waits for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_runs import EXCHANGING, experiment, start

from testbed.codecs.resident.ternary import TernaryResident
from testbed.gpu.standin import NAME, standin
from testbed.harness.gpu.counts import count
from testbed.systems import SYSTEMS

pytestmark = pytest.mark.slow  # plays every system twice

# Waits of a step of four workers in two regions, where there are any: the least that a system can do with.
# Losses are read in one transfer for all steps, 1 / 4 a step here, with the doubts about vectors in another.
STEPS = 4
READS = 2 / STEPS
WORKERS = 4
MESSAGES = WORKERS + 2 + 1  # of workers, LPSs and the global server
ISGQ = ("isgq-naive", "isgq-mse", "isgq-dithered")
FACTORS = (
    WORKERS * 4 * 4 * (108 + 32 + 32 + 10)
)  # bytes: float32 of 4 images a worker, as many numbers as tiny's layers
SPARSE = ("wgt", "bgt", "qgt", "dgc", "deco", "demo", "ef21")  # whose messages have as many bytes as they have
WAITS = {
    **dict.fromkeys(SPARSE, READS + MESSAGES),
    **dict.fromkeys(("qsgd", "adaptive"), READS + MESSAGES),  # the CPU codes their symbols
    "mqgrad": READS + 2,  # each LPS reads its workers' losses for the agent
    "weightgrad": READS + 2,  # each LPS must know whether its update is significant
    **dict.fromkeys(ISGQ, READS + WORKERS),  # a worker's factors come down to be coded
}
MEETS = {"local_steps": 2}  # every other of so few steps
MEETINGS: list[tuple[str, dict[str, Any]]] = [
    *(("diloco", {"coding": coding, **MEETS}) for coding in ("int8", "int4", "e3m0", "ternary")),
    ("diloco-workers", {"coding": "e3m0", **MEETS}),
    ("streaming-diloco", {"local_steps": 4, "overlap_steps": 1}),
    ("sparseloco", MEETS),
    ("muloco", MEETS),
    ("muloco", {"bits": 4, "rows": True, **MEETS}),
    ("cocod", MEETS),
]


def each_meeting() -> list[Any]:
    """A test's cases, with their names."""
    cases = []
    for system, options in MEETINGS:
        name = "-".join([system, *(str(value) for key, value in options.items() if key in ("coding", "bits"))])
        cases.append(pytest.param(system, options, id=name))
    return cases


LAUNCHES = {  # of a step of four workers, by system whose codecs all have twins; what is captured counts as one
    "baseline": 30,
    "terngrad": 90,
    "weightgrad": 150,
    "fp16": 82,
    "fixed-4": 90,
    "onebit": 105,
    "wgt": 102,
    "bgt": 102,
    "qgt": 102,
    "dgc": 98,
    "deco": 140,
    "demo": 118,
    "ef21": 98,
    "diloco": 30,
    "allreduce": 178,
    **dict.fromkeys(ISGQ, 36),
    "qsgd": 82,
    "adaptive": 135,
    "mqgrad": 92,
    "powersgd": 182,
}
SYMBOLS = ("qsgd", "adaptive")  # which come down, a byte each


def on(device: str, folder: Path, system: str, **options: Any) -> pd.DataFrame:
    it = experiment(systems={system: options}, training={"steps": 8})
    return pd.read_parquet(start(it, folder / device, device=device) / system / "seed-0" / "steps.parquet")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_on_a_device_is_the_cpus(small_data: None, tmp_path: Path, system: str) -> None:
    """Here, where the device computes as the CPU does, scales alone may differ by rounding."""
    options = EXCHANGING if system == "weightgrad" else {}
    here = on("cpu", tmp_path, system, **options)
    with standin():
        there = on(NAME, tmp_path, system, **options)
    assert there["time_s"].tolist() == pytest.approx(here["time_s"].tolist(), rel=0.02)
    assert there["loss"].tolist() == pytest.approx(here["loss"].tolist(), abs=2e-3)


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("qsgd", {"smallest": 0}),
    ("qsgd", {"smallest": 0, "coding": "fixed", "entropy": "on"}),
    ("qsgd", {"smallest": 0, "norm": "euclidean", "answer": "float32"}),
    ("mqgrad", {"feedback": True, "period": 2, "epsilon": 0.5}),
    ("adaptive", {"feedback": False}),
    ("adaptive", {"relative_to": "own", "layers": "dense"}),
    ("fixed-4", {"entropy": "on", "feedback": True}),
    ("terngrad", {"entropy": "auto"}),
]


@pytest.mark.parametrize(("system", "options"), OPTIONS)
def test_so_it_is_with_options(small_data: None, tmp_path: Path, system: str, options: dict[str, Any]) -> None:
    here = on("cpu", tmp_path, system, **options)
    with standin():
        there = on(NAME, tmp_path, system, **options)
    assert there["time_s"].tolist() == pytest.approx(here["time_s"].tolist(), rel=0.02)
    assert there["loss"].tolist() == pytest.approx(here["loss"].tolist(), abs=2e-3)


@pytest.mark.parametrize(("system", "options"), each_meeting())
def test_copies_that_meet_on_a_device_learn_what_they_do_on_the_cpu(
    small_data: None, tmp_path: Path, system: str, options: dict[str, Any]
) -> None:
    here = on("cpu", tmp_path, system, **options)
    with standin():
        there = on(NAME, tmp_path, system, **options)
    assert there["loss"].tolist() == pytest.approx(here["loss"].tolist(), abs=1e-4)


@pytest.mark.parametrize(("system", "options"), each_meeting())
def test_a_meeting_waits_for_the_sizes_of_sparse_messages_alone(
    small_data: None, system: str, options: dict[str, Any]
) -> None:
    apart = (2, 4, 6, 10)  # by then regions have computed each by itself, which is checked once
    found = count(experiment(systems={system: options}, training={"steps": 14}), system, STEPS, apart)
    sparse = 2 / 2 if system == "sparseloco" else 0  # a message of each region every other step
    assert found.waits <= READS + sparse, found.waits_at


@pytest.mark.parametrize("answer", ["factors", "float32", "ternary"])
def test_factors_and_convolutions_go_together_on_a_device(small_data: None, tmp_path: Path, answer: str) -> None:
    """Factors are coded on the CPU, convolutions' gradients stay on the device, and so does the mean of both."""
    it = experiment(systems={"isgq-dithered": {"answer": answer}}, training={"steps": 2}, model={"name": "cifarnet"})
    here = pd.read_parquet(start(it, tmp_path / "cpu") / "isgq-dithered" / "seed-0" / "steps.parquet")
    with standin():
        there = pd.read_parquet(start(it, tmp_path / NAME, device=NAME) / "isgq-dithered" / "seed-0" / "steps.parquet")
    assert there["loss"].tolist() == pytest.approx(here["loss"].tolist(), abs=2e-3)


@pytest.mark.parametrize("system", LAUNCHES)
def test_a_step_waits_for_nothing(small_data: None, system: str) -> None:
    options = {"weightgrad": EXCHANGING, "qsgd": {"smallest": 0}}.get(system, {})
    found = count(experiment(systems={system: options}, training={"steps": 12}), system, STEPS)
    assert found.waits <= WAITS.get(system, READS), found.waits_at
    if system not in SYMBOLS:
        more = FACTORS if system in ISGQ else 0
        assert found.down - more <= 48 * found.waits + 200  # bytes: losses, a few norms, and the sizes of messages
    assert found.launches <= LAUNCHES[system]
    assert found.graphs >= 1


@pytest.mark.parametrize(("system", "at_once"), [("terngrad", WORKERS // 2), ("weightgrad", WORKERS)])
def test_workers_of_one_instant_code_in_one_go(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, at_once: int
) -> None:
    """TernGrad's wait for the scales of all, which reach one region before the other."""
    done, encode_all = [], TernaryResident.encode_all

    def noted(twin: TernaryResident, asked: Any) -> Any:
        done.append(len(asked))
        return encode_all(twin, asked)

    monkeypatch.setattr(TernaryResident, "encode_all", noted)
    with standin():
        start(experiment(systems={system: {}}, training={"steps": 3}), tmp_path, device=NAME)
    assert set(done) == {at_once}
