"""A series of runs (`[sweep]`), and systems played in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from small_runs import experiment, plain, start, toml

from testbed.cli import main
from testbed.errors import InputError, RunError
from testbed.experiment import sweeps
from testbed.experiment.load import load
from testbed.fabrics.registry import FABRICS
from testbed.harness import session, sweep
from testbed.harness import session as run
from testbed.harness.play import Play
from testbed.harness.pool import Elsewhere, Errand
from testbed.record import series
from testbed.record.info import RunInfo, read_info
from testbed.record.reader import load as read_run
from testbed.report.pictures import draw

SWEEP = {"topology.workers_per_region": [1, 2], "training.batch_size": [8, 16]}


def write(folder: Path, **parts: Any) -> Path:
    data = plain(systems={"baseline": {}, "terngrad": {}}, **parts)
    path = folder / "mine.toml"
    path.write_text(toml(data) + "\n[sweep]\n" + "".join(f'"{key}" = {value}\n' for key, value in SWEEP.items()))
    return path


def test_values_are_taken_together(tmp_path: Path) -> None:
    points = load(str(write(tmp_path)))
    assert [point.label for point in points] == [
        "workers_per_region=1-batch_size=8",
        "workers_per_region=2-batch_size=16",
    ]
    assert [len(point.experiment.roles.workers) for point in points] == [2, 4]
    assert [point.experiment.training.batch_size for point in points] == [8, 16]


def test_setting_a_swept_key_makes_it_a_single_run(tmp_path: Path) -> None:
    [point] = load(str(write(tmp_path)), {"training.batch_size": 32})
    assert point.label == "" and point.experiment.training.batch_size == 32


def test_seeds_that_are_asked_for_are_played_instead_of_swept_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(plain()) + '[sweep]\n"run.seeds" = [[0], [1]]\n')
    [point] = load(str(path), seeds=[7])
    assert point.experiment.run.seeds == [7]


@pytest.mark.parametrize(
    ("sweep", "line"),
    [
        ('"training.steps" = 4', "sweep.training.steps is 4: it must be a list of values"),
        ('"training.steps" = []', "sweep.training.steps is []: it must be a list of values"),
        (
            '"training.steps" = [4, 5]\n"training.batch_size" = [8]',
            "must be equally long; training.steps has 2, training.batch_size has 1",
        ),
        ('"training.stepz" = [4]', "unknown key 'training.stepz'; did you mean 'training.steps'?"),
        ('"training.steps" = [4, -1]', "training.steps is -1: expected int >= 1"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, sweep: str, line: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(plain()) + f"\n[sweep]\n{sweep}\n")
    with pytest.raises(InputError) as error:
        load(str(path))
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_a_series_ends_with_one_table_and_one_picture(
    small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, training={"steps": 4})
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    [folder] = (tmp_path / "out" / "mine").iterdir()
    frame = pd.read_csv(folder / "summary.csv")
    assert list(frame["system"]) == ["baseline", "terngrad"] * 2
    assert (frame["status"] == "finished").all()
    assert frame["point"].nunique() == 2
    own = pd.read_csv(folder / "workers_per_region=2-batch_size=16" / "summary.csv")
    pd.testing.assert_series_equal(own["final_loss"], frame["final_loss"][2:].reset_index(drop=True))
    picture = (folder / "series.png").read_bytes()
    assert main(["plot", str(folder)]) == 0
    assert (folder / "series.png").read_bytes() == picture
    assert main(["run", "--resume", str(folder)]) == 0  # nothing is left to do
    assert "series.png" in capsys.readouterr().out
    other = folder / "workers_per_region=1-batch_size=8"
    assert main(["plot", str(folder), str(other)]) == 2, "what stands beside a series is not passed over"
    assert "the same run is given twice" in capsys.readouterr().err


@pytest.mark.slow
def test_a_series_is_played_whole_though_nobody_reads_its_tables(tmp_path: Path) -> None:
    """`testbed run ... | head`: what takes hours does not end with who reads."""
    command = [sys.executable, "-P", "-m", "testbed", "run", str(write(tmp_path)), "--fabric", "virtual", "--jobs", "1"]
    out = ["--out", str(tmp_path / "out")]
    process = subprocess.Popen([*command, *out], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(timeout=300)
    assert len(list((tmp_path / "out").glob("mine/*/*/summary.md"))) == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "target.value=0.5", "--sweep", "target.metric=accuracy,acuracy"], "target.metric: data set 'synth"),
        (["--timing-only", "--systems", "dgc", "--sweep", "training.batch_size=8,16"], "dgc: how large its messages"),
    ],
)
def test_a_run_of_a_series_that_cannot_be_is_found_before_the_first(
    small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(plain()))
    assert main(["run", str(path), "--out", str(tmp_path / "out"), *arguments]) == 2
    assert line in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.slow
def test_a_system_that_nothing_swept_concerns_is_played_once(small_data: None, tmp_path: Path) -> None:
    data = plain(systems={"baseline": {}, "terngrad": {}}, training={"steps": 4}, run={"seeds": [0, 1]})
    path = tmp_path / "mine.toml"
    path.write_text(toml(data) + '\n[sweep]\n"systems.terngrad.clip" = [1.0, 2.0]\n')
    alone = ["--set", "systems.terngrad.clip=2.0"]
    for out, options in (("series", []), ("alone", alone)):
        assert main(["run", str(path), "--out", str(tmp_path / out), "--jobs", "1", *options]) == 0
    one, two = sorted((tmp_path / "series").rglob("terngrad.clip=*"))
    [single] = (tmp_path / "alone" / "mine").iterdir()
    for seed in ("seed-0", "seed-1"):
        first, copy, other = (folder / "baseline" / seed / "events.jsonl" for folder in (one, two, single))
        assert copy.stat().st_mtime_ns == first.stat().st_mtime_ns, "a copy"
        assert copy.read_bytes() == other.read_bytes(), "of what would have been recorded"
        assert (two / "terngrad" / seed / "events.jsonl").read_bytes() != (
            one / "terngrad" / seed / "events.jsonl"
        ).read_bytes()
    notes = [note for note in read_info(two, RunInfo).notes if note not in read_info(one, RunInfo).notes]
    assert notes == ["baseline was played once, for terngrad.clip=1.0: nothing that was swept concerns it."]


@pytest.mark.slow
def test_elsewhere_all_runs_are_played_at_once_and_then_reported(small_data: None, tmp_path: Path) -> None:
    """What is shared is played once there, too; where something fails, the runs before it have their reports."""
    data = plain(systems={"baseline": {}, "terngrad": {}}, training={"steps": 4})
    path = tmp_path / "mine.toml"
    path.write_text(toml(data) + '\n[sweep]\n"systems.terngrad.clip" = [1.0, 2.0]\n')
    folder = sweep.begin(load(str(path)), run.Request("mine", "virtual"), tmp_path / "out")
    played: list[str] = []
    reported: list[str] = []

    def elsewhere(errands: Sequence[Errand]) -> None:
        for errand in errands:
            if len(played) == 2:
                raise RunError("its node died")
            played.append(errand.label)
            errand.work(errand.folder, errand.experiment, *errand.arguments)

    def report(place: Path, play: Callable[[], None]) -> None:
        play()
        reported.append(place.name)

    with pytest.raises(RunError, match="its node died"):
        sweep.play(folder, None, report, Elsewhere(elsewhere))
    first = ["terngrad.clip=1.0: baseline, seed 0", "terngrad.clip=1.0: terngrad, seed 0"]
    assert played == first and reported == ["terngrad.clip=1.0"]
    played.clear()
    sweep.play(folder, None, report, Elsewhere(elsewhere))
    assert played == ["terngrad.clip=2.0: terngrad, seed 0"]
    assert reported[1:] == ["terngrad.clip=1.0", "terngrad.clip=2.0"]
    one, two = (folder / f"terngrad.clip={clip}" / "baseline" / "seed-0" / "events.jsonl" for clip in ("1.0", "2.0"))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_processes_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path / "data"))  # the whole stand-in: other processes read it, too
    it = experiment(systems={"baseline": {}, "terngrad": {}})
    folders = [start(it, tmp_path, jobs) for jobs in (1, 2)]
    one, two = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("events.jsonl")} for folder in folders
    )
    assert one == two and len(one) == 2


@pytest.mark.parametrize(("settings", "line"), [({"fabric": "mininet"}, "--jobs 2"), ({}, "--jobs 2")])
def test_jobs_that_would_disturb_the_measurement_are_refused(settings: dict[str, str], line: str) -> None:
    fabric = settings.get("fabric", "virtual")
    it = experiment(compute={"device": "m60" if settings else "measured"})
    with pytest.raises(InputError, match=line):
        run.choose_jobs(it, FABRICS[fabric], 2)
    assert run.choose_jobs(it, FABRICS[fabric], None) == 1


@pytest.mark.full
@pytest.mark.slow
def test_stopping_stops_all_processes_and_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path / "data"))
    path = write(tmp_path, training={"steps": 2000})
    command = [sys.executable, "-m", "testbed", "run", str(path), "--out", str(tmp_path / "out"), "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").rglob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    [folder] = (tmp_path / "out" / "mine").iterdir()
    assert f"testbed: error: stopped: 0 of 4 over; resume with testbed run --resume {folder}" in output
    assert "Traceback" not in output
    assert pd.read_csv(folder / "summary.csv")["status"].eq("interrupted").all()


def test_the_command_lines_axes_are_multiplied(tmp_path: Path) -> None:
    axes = sweeps.parse(["topology.profile=weightgrad-ec2,skyplane-22", "training.batch_size=8,16,32"])
    points = load(plain(), axes=axes)
    assert [point.label for point in points][:2] == [
        "profile=weightgrad-ec2-batch_size=8",
        "profile=weightgrad-ec2-batch_size=16",
    ]
    asked = [(point.experiment.topology.profile, point.experiment.training.batch_size) for point in points]
    assert asked == list(product(["weightgrad-ec2", "skyplane-22"], [8, 16, 32]))


def test_an_axis_of_the_file_is_multiplied_with_those_of_the_command_line(tmp_path: Path) -> None:
    path = str(write(tmp_path))
    assert len(load(path, axes=sweeps.parse(["training.steps=4,5,6"]))) == 6
    assert len(load(path, axes=sweeps.parse(["training.batch_size=8,16,32"]))) == 3, "a key that is swept in both"


def test_several_tables_are_several_axes(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    table = '\n[[sweep]]\n"training.steps" = [4, 5]\n\n[[sweep]]\n"training.batch_size" = [8, 16]\n'
    path.write_text(toml(plain()) + table)
    assert [point.label for point in load(str(path))] == [
        f"steps={steps}-batch_size={batch}" for steps in (4, 5) for batch in (8, 16)
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("training.steps=4,5", [4, 5]),
        ("training.steps=[4, 5]", [4, 5]),
        ("topology.profile = lan, residential", ["lan", "residential"]),
        ('topology.regions=["us-west-1"],["us-west-1","us-east-1"]', [["us-west-1"], ["us-west-1", "us-east-1"]]),
        ("run.gate=true,false", [True, False]),
    ],
)
def test_values_are_written_with_commas(text: str, values: list[Any]) -> None:
    [axis] = sweeps.parse([text])
    assert list(axis.values()) == [values]


def test_a_series_says_where_each_run_lies_on_its_axes(small_data: None, tmp_path: Path) -> None:
    axes = sweeps.parse(["topology.profile=weightgrad-ec2,skyplane-22", "training.batch_size=8,16"])
    folder = sweep.begin(load(plain(), axes=axes), session.Request("mine", "virtual"), tmp_path / "series")
    labels = list(series.read(folder).points)
    over = series.grid([folder / label for label in labels])
    assert [axis.name for axis in over.axes] == ["profile", "batch size"]
    assert [axis.numbers for axis in over.axes] == [None, [8.0, 16.0]]
    assert [over.values(label) for label in labels] == [
        list(each) for each in product(["weightgrad-ec2", "skyplane-22"], ["8", "16"])
    ], "though a label alone, profile=weightgrad-ec2-batch_size=8, could be read in two ways"
    half = series.grid([folder / label for label in labels[:2]])
    assert [axis.name for axis in half.axes] == ["batch size"], "they are all on one profile"


@pytest.mark.full
@pytest.mark.slow
def test_a_series_over_two_axes_is_stopped_resumed_compared_and_drawn(
    small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(plain(systems={"baseline": {}, "terngrad": {}}, training={"steps": 4}, run={"seeds": [0, 1]})))
    swept = ["--sweep", "topology.profile=weightgrad-ec2,skyplane-22", "--sweep", "training.batch_size=8,16"]
    whole, begun = Play.run, []

    def stopped(play: Any) -> None:
        begun.append(play)
        if len(begun) == 6:
            raise KeyboardInterrupt
        whole(play)

    monkeypatch.setattr(Play, "run", stopped)
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--jobs", "1", *swept]) == 1
    [folder] = (tmp_path / "out" / "mine").iterdir()
    said = f"5 of 16 over; resume with testbed run --resume {folder}"
    out, error = capsys.readouterr()
    assert error.splitlines()[-1] == f"testbed: error: stopped: {said}" and said in out
    assert said in (folder / "summary.md").read_text() and "not started" not in out
    assert main(["run", "--resume", str(folder), "--jobs", "1"]) == 0
    assert "resume with" not in (folder / "summary.md").read_text()
    frame = pd.read_csv(folder / "summary.csv")
    assert len(frame) == 16 and (frame["status"] == "finished").all()
    heads = next(line for line in (folder / "summary.md").read_text().splitlines() if line.startswith("| profile"))
    assert heads.startswith("| profile | batch size | system |")
    assert main(["compare", str(folder), "--plot", str(tmp_path / "side.pdf")]) == 0, "what it sweeps needs no --force"
    assert (tmp_path / "side.pdf").read_bytes().startswith(b"%PDF") and "LIKE WITH LIKE" not in capsys.readouterr().out
    runs = [read_run(folder / label) for label in series.read(folder).points]
    panels = draw(runs, "series").axes
    assert [axes.get_title("left") for axes in panels[:2]] == ["profile weightgrad-ec2", "profile skyplane-22"]
    assert [tick.get_text() for tick in panels[-1].get_xticklabels()] == ["8", "16"]
