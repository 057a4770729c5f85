"""The command line from end to end on the virtual fabric."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from own_parts import forget_after
from small_runs import PLAIN, plain, toml, use_small_data

from testbed.cli import main, options, systems
from testbed.files import replacing
from testbed.interpreter import typed
from testbed.record.info import RunInfo, read_info, write_info
from testbed.systems import SYSTEMS
from testbed.workloads.data.records import Records

Output = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Output:
    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(toml(PLAIN))
    return path


@pytest.fixture(scope="module")
def one_run(small_batches: list[Records], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of all three systems, for `finished` to copy."""
    scratch = tmp_path_factory.mktemp("one-run")
    (scratch / "mine.toml").write_text(toml(PLAIN))
    with pytest.MonkeyPatch.context() as patch:
        use_small_data(patch, small_batches, scratch / "data")
        assert main(["run", str(scratch / "mine.toml"), "--out", str(scratch / "results")]) == 0
    return next((scratch / "results" / "mine").iterdir())


@pytest.fixture
def finished(small_data: None, one_run: Path, tmp_path: Path) -> Path:
    """The folder of a finished run of all three systems, the test's own."""
    return Path(shutil.copytree(one_run, tmp_path / "results" / "mine" / one_run.name))


@pytest.mark.slow
def test_a_run_from_file_to_report(small_data: None, command: Output, file: Path, tmp_path: Path) -> None:
    code, stdout, stderr = command("run", file, "--out", tmp_path / "results")
    assert code == 0
    [folder] = (tmp_path / "results" / "mine").iterdir()
    assert re.fullmatch(r"\d{8}-\d{6}-virtual", folder.name)
    assert f"table: {folder}/summary.md" in stdout
    assert f"plot:  {folder}/comparison.png" in stdout
    assert f"page:  {folder}/report.html  (to open it: {typed()} report --open {folder})" in stdout
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    for system in ("Baseline", "TernGrad", "WeightGrad"):
        assert system in stdout
    assert "baseline, seed 0: step 8/8" in stderr
    assert "\x1b[" not in stdout + stderr, "no colours or progress bars where the output is not a terminal"
    summary = pd.read_csv(folder / "summary.csv")
    assert list(summary.system) == ["baseline", "terngrad", "weightgrad"]
    assert list(summary.steps) == [8, 8, 8]
    assert summary.wan_bytes[0] > summary.wan_bytes[1] > summary.wan_bytes[2] > 0
    model = np.load(folder / "weightgrad" / "seed-0" / "model.npz")
    assert {name: model[name].shape for name in model.files if name.startswith("quantized")} == {
        "quantized/hidden.weight": (32, 108),
        "quantized/hidden.bias": (32,),
        "quantized/output.weight": (10, 32),
        "quantized/output.bias": (10,),
    }


@pytest.mark.slow
def test_options_end_up_in_the_record(small_data: None, command: Output, file: Path, tmp_path: Path) -> None:
    options = ["--systems", "terngrad baseline", "--seeds", "3,4", "--set", "training.steps=2", "--fabric", "virtual"]
    targets = ["--set", "target.loss=1.2", "--set", "target.stand_in_loss=2.2"]
    code, _, _ = command("run", file, "--out", tmp_path / "results", *options, *targets)
    assert code == 0
    [folder] = (tmp_path / "results" / "mine").iterdir()
    facts = read_info(folder, RunInfo)
    assert (facts.systems, facts.seeds, facts.fabric) == (["terngrad", "baseline"], [3, 4], "virtual")
    assert facts.experiment["training"]["steps"] == 2
    assert facts.data.stand_in
    assert facts.experiment["target"] == {"loss": 2.2, "accuracy": None, "window": 10}
    assert facts.compute == "m60"
    assert sorted(str(path.relative_to(folder).parent) for path in folder.glob("*/*/model.npz")) == [
        "baseline/seed-3",
        "baseline/seed-4",
        "terngrad/seed-3",
        "terngrad/seed-4",
    ]


@pytest.mark.slow
def test_plot_makes_the_report_again_from_the_records_alone(finished: Path, command: Output) -> None:
    before = {name: (finished / name).read_bytes() for name in ("summary.csv", "summary.md")}
    for name in (*before, "comparison.png"):
        (finished / name).unlink()
    code, stdout, _ = command("plot", finished, "--format", "png")
    assert code == 0
    assert "WeightGrad" in stdout
    assert {name: (finished / name).read_bytes() for name in before} == before
    assert (finished / "comparison.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_compare_sets_runs_side_by_side(finished: Path, command: Output) -> None:
    code, stdout, _ = command("compare", finished)
    assert code == 0
    assert all(system in stdout for system in ("Baseline", "TernGrad", "WeightGrad"))


@pytest.mark.parametrize("name", ["plot", "compare"])
def test_a_run_that_is_not_there(command: Output, name: str, tmp_path: Path) -> None:
    code, stdout, stderr = command(name, tmp_path / "nothing")
    assert (code, stdout) == (2, "")
    assert re.fullmatch(r"testbed: error: [^\n]*nothing[^\n]*\n", stderr)


@pytest.mark.slow
def test_clean_deletes_what_killed_runs_left_and_nothing_else(finished: Path, command: Output) -> None:
    results = finished.parents[1]
    left = finished / "baseline" / "seed-0" / "checkpoint-4.tmp"
    left.mkdir()
    (left / "half.npz").touch()
    (results / "other" / "20260101-000000-virtual").mkdir(parents=True)
    (results / "other" / "mine").mkdir()
    files = {path for path in finished.rglob("*") if path.is_file() and left not in path.parents}
    code, stdout, _ = command("clean", "--out", results)
    assert code == 0
    assert not left.exists()
    assert not (results / "other" / "20260101-000000-virtual").exists()
    assert {path for path in finished.rglob("*") if path.is_file()} == files
    assert stdout.count("deleted") == 2 and (results / "other" / "mine").is_dir(), "no run has made that one"


def test_a_file_that_cannot_be_written_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error, replacing(tmp_path / "table") as temporary:
        temporary.write_text("a table")
        temporary.unlink()  # as if the disk had lost it
    assert error.value.filename == str(tmp_path / "table")
    assert not list(tmp_path.iterdir())


def test_make_follows_a_trace_in_both_of_its_targets() -> None:
    root = Path(__file__).parents[2]
    for target in ("experiment", "replay"):
        command = ["make", "--dry-run", target, "TRACE=some/trace.csv"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        assert done.stdout.count('--trace "some/trace.csv"') == 1


def test_resuming_names_what_it_cannot_resume(command: Output, tmp_path: Path) -> None:
    code, _, stderr = command("run", "--resume", tmp_path)
    assert code == 2
    assert stderr.startswith(f"testbed: error: no run in {tmp_path}: it needs a folder results/<target>/<run-id>")


@pytest.mark.slow
def test_resuming_on_other_data_is_refused(
    finished: Path, command: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = read_info(finished, RunInfo)
    facts.data.stand_in = False
    write_info(finished, facts)
    code, _, stderr = command("run", "--resume", finished)
    assert code == 2
    assert "start a new run" in stderr


def test_run_needs_an_experiment_or_a_run_but_not_both(command: Output, file: Path, tmp_path: Path) -> None:
    code, _, stderr = command("run")
    assert (code, "name an experiment, e.g. testbed run cifarnet" in stderr) == (2, True)
    code, _, stderr = command("run", file, "--resume", tmp_path)
    assert (code, "not both" in stderr) == (2, True)


@pytest.mark.slow
def test_training_that_diverges_is_one_line_that_says_where_and_a_report(
    small_data: None, command: Output, tmp_path: Path
) -> None:
    path = tmp_path / "diverges.toml"
    training = {"schedule": {"kind": "constant", "rate": 1e6}, "steps": 60}
    path.write_text(toml(plain(training=training, systems={"terngrad": {}})))
    code, stdout, stderr = command("run", path, "--out", tmp_path / "results")
    assert code == 1
    [error] = stderr[stderr.index("testbed: error: ") :].splitlines()
    what = r"(us-\w+-1/w\d failed: layer \w+\.weight|(training|test) loss of [a-z ]+\d+): NaN or infinity"
    where = rf"training diverged in terngrad/seed-0 \({what}"
    assert re.match(rf"testbed: error: .*: {where}.*; all else was played: begin a new run with a lower ", error)
    [folder] = (tmp_path / "results" / "diverges").iterdir()
    assert "NaN or infinity" in (folder / "terngrad" / "seed-0" / "run.json").read_text()
    assert (folder / "summary.md").exists()
    assert "summary.md" in stdout


@pytest.mark.parametrize("arguments", [[], ["run"], ["plot"], ["compare"], ["clean"], ["systems"]])
def test_help(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    text = capfd.readouterr().out
    assert text.startswith("usage: testbed")
    assert "example" in text


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(finished: Path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "testbed", "plot", str(finished)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 1
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("ends", "line"),
    [
        (SystemExit(0), "code of a plug-in's, or of the testbed's, has left the program: SystemExit: 0"),
        (ValueError("so\nand so"), "an error of a plug-in's, or of the testbed's: ValueError: so and so"),
    ],
)
def test_whatever_a_command_ends_with_is_one_line_below_its_traceback(
    command: Output, monkeypatch: pytest.MonkeyPatch, ends: BaseException, line: str
) -> None:
    def fails(options: argparse.Namespace) -> int:
        raise ends

    monkeypatch.setattr(systems, "_systems", fails)
    code, _, said = command("systems")
    assert code == 1 and said.startswith("Traceback") and said.splitlines()[-1] == f"testbed: error: {line}"


def test_resume_refuses_what_it_would_ignore(tmp_path, capsys):
    assert main(["run", "--resume", str(tmp_path), "--set", "training.steps=5", "--systems", "baseline"]) == 2
    message = capsys.readouterr().err
    assert "--systems, --set" in message and "Traceback" not in message


def test_programs_are_found_where_an_ordinary_users_path_does_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/own/bin:/usr/bin")
    main(["profile", "list"])
    assert os.environ["PATH"] == "/opt/own/bin:/usr/bin:/usr/sbin:/sbin"
    main(["profile", "list"])
    assert os.environ["PATH"].count("/usr/sbin") == 1


def test_what_there_is_has_a_line_each(command: Output, tmp_path: Path) -> None:
    code, stdout, _ = command("experiments")
    assert code == 0 and "CifarNet on CIFAR-10 across three EC2 regions" in stdout
    code, stdout, _ = command("systems")
    listed = dict(line.split(maxsplit=1) for line in stdout.splitlines())
    assert code == 0 and list(listed) == sorted(SYSTEMS) and listed["terngrad"].startswith("TernGrad: ternary")


def test_a_plug_ins_system_is_among_them(command: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_after(monkeypatch)
    path = tmp_path / "mine.py"
    path.write_text(
        'import testbed\n\nclass Mine(testbed.CodecSystem):\n    """Mine: as it comes."""\n\n    name = "mine"\n'
    )
    assert "Mine: as it comes." in command("systems", "--plugin", path)[1]


def test_seeds_of_trials_are_no_second_word_on_those_that_are_reported() -> None:
    given = argparse.Namespace(
        file="cifarnet", systems=(), settings=["run.seeds=[3]"], plugin=(), scale="", seeds=(100,), sizes=None
    )
    assert list(options.one(given).run.seeds) == [3]
