"""A timing-only run takes the times and the bytes that the same run takes when it computes, and invents nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import EXCHANGING, each_system, experiment, start

from testbed.cli.command_line import main
from testbed.errors import InputError, RoleDied
from testbed.experiment.sizes import SIGNIFICANT, Recorded, Stated
from testbed.record.reader import load
from testbed.report.numbers.summary import read
from testbed.report.page.html import write_page
from testbed.report.write import write_report
from testbed.systems import SYSTEMS

OPTIONS: dict[str, dict[str, Any]] = {
    "weightgrad": EXCHANGING,
    "gaia": {"threshold": 0.1},
    "diloco": {"local_steps": 3, "fragments": 2, "coding": "int8"},
    "cocod": {"local_steps": 3},
    "concord": {"outer_momentum": 0.6, "lan": "apart"},
    "deco": {"every": 3},
    "diloco-workers": {"local_steps": 3, "fragments": 2, "coding": "int8"},
    "muloco": {"local_steps": 3},
    "sparseloco": {"local_steps": 3},
    "streaming-diloco": {"local_steps": 4, "overlap_steps": 1},
    "dgc": {"epoch_steps": 1, "warmup_epochs": 2, "sparsity": 0.9},
}
KEPT = ["steps", "time_s", "mean_step_s", "mean_compute_s", "mean_codec_s", "wan_bytes", "lan_bytes"]


def both(folder: Path, system: str, options: dict[str, Any], **topology: Any) -> tuple[Path, Path]:
    """The same experiment computed, and timing-only with the sizes that were recorded."""
    parts: dict[str, Any] = {
        "systems": {system: options},
        "topology": topology,
        "training": {"batch_size": 192},
        "run": {"probe_steps": 0},
    }
    computed = start(experiment(**parts), folder / "computed")
    sized = {"device": "m60", "math": "none", "sizes": str(computed)}
    return computed, start(experiment(**parts, compute=sized), folder / "timed")


def assert_same_times_and_bytes(computed: Path, timed: Path) -> None:
    (was,), (found,) = (read(folder)[1].to_dict("records") for folder in (computed, timed))
    assert {key: found[key] for key in KEPT} == pytest.approx({key: was[key] for key in KEPT}, rel=1e-9)


@pytest.mark.parametrize("system", each_system(SYSTEMS, "dgc"))
def test_times_and_bytes_are_those_of_a_run_that_computes(small_data: None, system: str, tmp_path: Path) -> None:
    assert_same_times_and_bytes(*both(tmp_path, system, OPTIONS.get(system, {})))


@pytest.mark.slow
@pytest.mark.parametrize("system", sorted(name for name, kind in SYSTEMS.items() if "flat" in kind.topologies))
def test_so_they_are_where_all_workers_talk_to_one_server(small_data: None, system: str, tmp_path: Path) -> None:
    assert_same_times_and_bytes(*both(tmp_path, system, OPTIONS.get(system, {}), kind="flat", workers_per_region=3))


@pytest.mark.slow
@pytest.mark.parametrize(("system", "entropy"), [("terngrad", "on"), ("fixed-4", "on"), ("fixed-4", "auto")])
def test_so_they_are_with_entropy_coding(small_data: None, system: str, entropy: str, tmp_path: Path) -> None:
    assert_same_times_and_bytes(*both(tmp_path, system, {"entropy": entropy}, lan_mbit=1.0, wan_factor=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [8, pytest.param(32, marks=pytest.mark.full)])
@pytest.mark.parametrize("system", ["baseline", "terngrad", "dgc", "qsgd", "weightgrad", "gaia"])
def test_so_they_are_with_64_workers(small_data: None, system: str, workers: int, tmp_path: Path) -> None:
    options = {**OPTIONS.get(system, {})}
    assert_same_times_and_bytes(*both(tmp_path, system, options, workers_per_region=workers))


@pytest.mark.slow
def test_nothing_that_was_not_computed_is_reported(small_data: None, tmp_path: Path) -> None:
    _, timed = both(tmp_path, "baseline", {})
    write_report(timed)
    text = (timed / "summary.md").read_text()
    assert "timing only: nothing was computed" in text
    for absent in ("loss", "accuracy", "target", "speedup |"):
        assert absent not in text.partition("## How it was made")[0].replace("step speedup |", "")
    assert not list(timed.glob("*/*/model.npz")) and not list(timed.glob("*/*/checkpoint*"))
    page = write_page(timed).read_text().partition("<h2>How to repeat it")[0]
    assert "Loss" not in page and "A step takes Baseline the least time" in page


def test_what_depends_on_the_data_is_refused_without_sizes(small_data: None, tmp_path: Path) -> None:
    sized = {"device": "m60", "math": "none"}
    for system in ("dgc", "qsgd", "gaia", "weightgrad", "mqgrad", "bgt"):
        with pytest.raises(InputError, match=rf"^{system}: how large .* --sizes {system}=0.01$"):
            start(experiment(systems={system: {}}, compute=sized), tmp_path)
    assert not list(tmp_path.glob("results*/*"))


@pytest.mark.parametrize("system", ["concord", "deco", "mqgrad"])
def test_sizes_that_go_by_the_network_are_not_taken_from_another(small_data: None, system: str, tmp_path: Path) -> None:
    """Their messages answer how long others took: elsewhere other rounds would be coded, of other lengths."""
    parts: dict[str, Any] = {"systems": {system: OPTIONS.get(system, {})}, "run": {"probe_steps": 0}}
    computed = start(experiment(**parts), tmp_path / "computed")
    sized = {"device": "m60", "math": "none", "sizes": str(computed)}
    for changed, key in (
        ({"topology": {"wan_factor": 0.5}}, "topology"),
        ({"compute": {**sized, "device": "v100"}}, "compute.device"),
        ({"training": {"batch_size": 384}}, "training.batch_size"),
    ):
        with pytest.raises(InputError, match=rf"^{system}: .* was recorded with another {key}; record a run with this"):
            start(experiment(**{**parts, "compute": sized, **changed}), tmp_path / "timed")


def test_a_message_that_was_not_recorded_at_its_step_is_refused(small_data: None, tmp_path: Path) -> None:
    """As with another period: nothing tells its size."""
    computed, _ = both(tmp_path, "sparseloco", OPTIONS["sparseloco"])
    sized = {"device": "m60", "math": "none", "sizes": str(computed)}
    sooner = experiment(systems={"sparseloco": {"local_steps": 2}}, training={"batch_size": 192}, compute=sized)
    with pytest.raises(RoleDied, match=r"no 'outer' of \S+/lps was recorded at step 1, .*--sizes SYSTEM=0.01$"):
        start(sooner, tmp_path / "sooner")


def test_a_stated_part_of_float32_is_what_is_sent(small_data: None, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"systems": {"baseline": {}, "dgc": {}}, "run": {"probe_steps": 0}}
    sized = {"device": "m60", "math": "none", "sizes": {"dgc": 0.25}}
    _, frame = read(start(experiment(**parts, compute=sized), tmp_path))
    bytes_ = frame.set_index("system")["wan_bytes"]
    assert bytes_["dgc"] == pytest.approx(0.25 * bytes_["baseline"], rel=0.02)  # headers are not a quarter


def test_updates_are_significant_as_often_as_stated() -> None:
    assert sum(Stated(0.1).significant("a/lps", step) for step in range(100)) == 10


def test_after_the_end_of_a_record_updates_are_significant_when_they_were_in_it() -> None:
    """Not never: a longer run would send nothing from there on."""
    known = Recorded(Path(), 4, sizes={("a/lps", SIGNIFICANT): {1: (), 2: (), 5: ()}})
    assert [step for step in range(12) if known.significant("a/lps", step)] == [1, 2, 5, 6, 9, 10]


@pytest.mark.slow
def test_a_role_that_was_not_there_sends_what_one_of_its_kind_did(small_data: None, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"systems": {"qsgd": {}}, "run": {"probe_steps": 0}}
    recorded = Recorded.read(start(experiment(**parts), tmp_path), "qsgd", seed=7, parameters=0)
    assert recorded is not None
    known = Recorded.read(recorded.path.parents[2], "qsgd", seed=0, parameters=3818)
    assert known is not None
    assert known.buffers("us-west-1/w2", 3, "gradient", 0) == known.buffers("us-west-1/w0", 3, "gradient", 0)
    assert known.buffers("mars/lps", 3, "sum", 0) == known.buffers("us-west-1/lps", 3, "sum", 0)
    assert known.buffers("us-west-1/w0", 99, "gradient", 0) == known.buffers("us-west-1/w0", 7, "gradient", 0)
    assert not known.significant("us-west-1/lps", 0)
    assert Recorded.read(recorded.path.parents[2], "dgc", seed=0, parameters=1) is None
    recorded.path.unlink()
    assert Recorded.read(recorded.path.parents[2], "qsgd", seed=0, parameters=1) is None, "its events were not kept"


@pytest.mark.slow
def test_after_the_end_of_a_run_that_ended_early_messages_are_as_its_last(small_data: None, tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "systems": {"sparseloco": {"local_steps": 3}},
        "run": {"probe_steps": 4, "stop_after_s": 1e-6},
    }
    known = Recorded.read(start(experiment(**parts), tmp_path), "sparseloco", seed=0, parameters=3818)
    assert known is not None and known.steps < 8
    sent = known.buffers("us-west-1/lps", 2, "outer", 0)
    assert sum(sent) > 0 and known.buffers("us-west-1/lps", 8, "outer", 0) == sent


@pytest.mark.slow
@pytest.mark.parametrize("system", ["dgc", "sparseloco"])
def test_a_run_that_stops_at_its_target_tells_all_its_sizes(small_data: None, system: str, tmp_path: Path) -> None:
    """Or when it can no more be reached, as here; before a checkpoint, and before a line of sizes is full."""
    parts: dict[str, Any] = {
        "systems": {system: OPTIONS[system]},
        "target": {"loss": 0.01, "window": 2},
        "training": {"steps": 40},
    }
    ends = {"probe_steps": 2, "stop_at_target": True, "stop_after_s": 0.5, "checkpoint_steps": 40}
    computed = start(experiment(**parts, run=ends), tmp_path / "computed")
    known = Recorded.read(computed, system, seed=0, parameters=1)
    assert known is not None and 3 < known.steps < 40
    sized = {"device": "m60", "math": "none", "sizes": str(computed)}
    rests = {"probe_steps": 0, "checkpoint_steps": 40}
    timed = start(experiment(**parts, run=rests, compute=sized), tmp_path / "timed")
    was, found = (load(folder).results[0].steps["time_s"].to_numpy() for folder in (computed, timed))
    assert found[: known.steps] == pytest.approx(was[: known.steps], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--sizes", "dgc=0.1"], "compute.sizes: a run that computes has its own"),
        (["--timing-only", "--sizes", "dgc=much"], "--sizes: 'dgc=much' is neither a run's folder nor like dgc=0.002"),
        (["--timing-only", "--sizes", "nowhere"], "nowhere"),
        (["--timing-only", "--fabric", "mininet"], "a timing-only run computes nothing, so its clock cannot be real"),
        (["--timing-only", "--set", "compute.device=measured"], "a timing-only run computes nothing that could be mea"),
    ],
)
def test_what_cannot_be_is_one_line(
    small_data: None,
    arguments: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--set", "data.dataset=synthetic", "--set", "model.name=tiny", "--systems", "dgc"]
    assert main(["run", "systems", *small, *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said and "\n" not in said
