"""A worker of several GPUs computes in the time of one's part of its batch, then adds up their gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import experiment, plain, start, toml

from testbed.cli.command_line import main
from testbed.errors import InputError
from testbed.experiment.assembly import Assembly
from testbed.experiment.load import from_dict
from testbed.fabrics.registry import choose
from testbed.harness import plan
from testbed.report.numbers.sentences import conditions
from testbed.report.numbers.summary import read
from testbed.roles.compute import DEVICES, Work
from testbed.roles.gpu_links import GPU_LINKS, GpuLink, gpu_link

FOUR = {"device": "p100", "gpus_per_worker": 4, "gpu_link": "pcie3"}


def test_a_ring_sends_three_quarters_of_the_vector_twice_among_four() -> None:
    link = GpuLink(gbyte_s=10, source="by hand")
    assert link.all_reduce_s(4, 1e9) == pytest.approx(2 * 0.75 * 0.1)
    assert link.all_reduce_s(2, 1e9) == pytest.approx(0.1)


@given(gpus=st.integers(1, 1000), nbytes=st.floats(0, 1e12))
def test_it_takes_less_than_sending_the_vector_twice_and_nothing_for_one(gpus: int, nbytes: float) -> None:
    link = GPU_LINKS["nvlink1"]
    assert link.all_reduce_s(1, nbytes) == 0
    assert link.all_reduce_s(gpus, nbytes) <= link.all_reduce_s(gpus + 1, nbytes) <= 2 * nbytes / link.gbyte_s / 1e9


def test_every_link_has_a_source() -> None:
    assert all(link.source and link.gbyte_s > 0 for link in GPU_LINKS.values())
    with pytest.raises(InputError, match=r"compute\.gpu_link: no link 'pcie'; did you mean 'pcie\d'\?"):
        gpu_link("pcie")


def test_a_gradient_is_one_gpus_part_of_the_batch_and_the_first_reduction() -> None:
    one = Assembly(experiment(compute={"device": "p100"})).task(0)
    four = Assembly(experiment(compute=FOUR)).task(0)
    nbytes = 4 * one.layout.size
    assert four.gradient_work == Work(flops=one.gradient_flops / 4, seconds=1.5 * nbytes / 12.6e9)
    device = DEVICES["p100"]
    assert device.seconds(four.gradient_work) == pytest.approx(
        device.launch_ms / 1e3 + one.gradient_flops / 4 / (device.gflops * 1e9) + 1.5 * nbytes / 12.6e9
    )


@pytest.mark.parametrize("system", ["baseline", "terngrad"])
def test_a_step_takes_that_of_one_gpu_on_a_quarter_of_the_batch_and_the_reduction(system: str) -> None:
    timing: dict[str, Any] = {"systems": {system: {}}, "topology": {"kind": "flat"}}
    one = experiment(**timing, compute={"device": "p100", "math": "none"}, training={"batch_size": 16})
    four = experiment(**timing, compute={**FOUR, "math": "none"}, training={"batch_size": 64})
    reduction_s = Assembly(four).task(0).first_reduction_s
    assert reduction_s > 0
    assert plan.timed(four, system).sync_s == pytest.approx(plan.timed(one, system).sync_s + reduction_s)


@pytest.mark.slow
def test_a_run_that_computes_takes_the_times_of_a_timing_only_run_and_trains_alike(
    small_data: None, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"systems": {"baseline": {}}, "run": {"probe_steps": 0}}
    single = start(experiment(**parts), tmp_path / "single")
    computed = start(experiment(**parts, compute=FOUR), tmp_path / "computed")
    timed = start(experiment(**parts, compute={**FOUR, "math": "none"}), tmp_path / "timed")
    (run, one), (other, four), (_, without) = (read(folder) for folder in (single, computed, timed))
    times = ["time_s", "mean_step_s", "mean_compute_s", "wan_bytes"]
    assert four[times].values.tolist() == pytest.approx(without[times].values)
    assert four["final_loss"].tolist() == one["final_loss"].tolist(), "the same batches, the same mean"
    assert "4 GPUs a worker over pcie3" in conditions(other) and "GPUs" not in conditions(run)


def test_a_record_of_one_gpu_a_worker_is_as_before_there_were_several() -> None:
    assert not {"gpus_per_worker", "gpu_link"} & set(experiment().as_dict()["compute"])


@pytest.mark.parametrize(
    ("compute", "error"),
    [
        ({"gpus_per_worker": 4}, "gpu_link: needed with gpus_per_worker, one of pcie3, "),
        ({"gpu_link": "pcie3"}, "gpus_per_worker: of 2 or more is needed with gpu_link"),
        ({**FOUR, "device": "measured"}, "several GPUs a worker are modelled and not measured"),
        ({**FOUR, "gpus_per_worker": 0}, "gpus_per_worker"),
        ({**FOUR, "gpu_link": "nvlink"}, "compute.gpu_link: no link 'nvlink'; did you mean 'nvlink"),
        ({**FOUR, "gpus_per_worker": 3}, "batch_size is 16; it must be a multiple of the 12 GPUs of 4 workers"),
    ],
)
def test_what_cannot_be_is_one_line(
    compute: dict[str, Any], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(toml(plain(compute=compute)))
    assert main(["run", str(path)]) == 2
    said = capsys.readouterr().err.strip()
    assert error in said and "\n" not in said


def test_factors_of_several_gpus_have_no_sum() -> None:
    with pytest.raises(InputError, match=r"systems\.isgq-mse: what it sends cannot be added up among the GPUs"):
        from_dict(plain(compute=FOUR, systems={"isgq-mse": {}}), "test.toml")


def test_where_time_is_real_the_device_is_to_be_named() -> None:
    with pytest.raises(InputError, match=r"several GPUs a worker are modelled and not measured; set compute\.device"):
        choose("mininet", [experiment(compute={**FOUR, "device": "auto"})])
