"""What the command line does in a hostile place: one line that says what is wrong, and a record that ends properly."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import plain, toml

import testbed
from testbed.cli import main
from testbed.interpreter import testbed as command

ROOT = Path(testbed.__file__).parents[1]
LONG = "x" * 300


def run(
    arguments: list[str | bytes], folder: Path, *, stdout: str | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own, in `folder`."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TESTBED_DATA": str(folder / "data"), **environment}
    out = os.open(stdout, os.O_WRONLY) if stdout else subprocess.PIPE
    try:
        line: list[str | bytes] = [*command(), *arguments]
        return subprocess.run(line, cwd=folder, env=given, stdout=out, stderr=subprocess.PIPE, timeout=300, check=False)
    finally:
        if stdout:
            os.close(out)


def test_a_full_output_is_named(tmp_path: Path) -> None:
    for arguments in (["profile", "list"], ["--help"]):
        done = run([*arguments], tmp_path, stdout="/dev/full")
        said = done.stderr.decode()
        assert "Traceback" not in said and "Exception ignored" not in said
        if arguments != ["--help"]:
            assert (done.returncode, said) == (1, "testbed: error: standard output: No space left on device\n")


@pytest.mark.slow
@pytest.mark.parametrize("nobody", ["2>/dev/full", "2>&-"])
def test_nobody_to_tell_is_no_reason_to_crash(tmp_path: Path, nobody: str) -> None:
    line = f"exec {sys.executable} -P -m testbed profile check nothing {nobody}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 2


@pytest.mark.parametrize("arguments", [["systems"], ["--help"]])
def test_a_closed_output_is_no_reason_to_crash(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it with >&-
    try:
        assert main(arguments) == 0
    except SystemExit as end:
        assert not end.code


@pytest.mark.slow
def test_what_the_terminal_cannot_show_appears_in_escapes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "topologies", tmp_path / "topologies")
    header = tmp_path / "topologies" / "profiles" / "weightgrad-ec2.toml"
    header.write_text(header.read_text().replace('title = "', 'title = "\N{SNOWMAN} ', 1))
    done = run(["profile", "list"], tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert b"\\u2603 " in done.stdout


@pytest.mark.parametrize("name", [b"\xff.toml", pytest.param(b"a\xc3.toml", marks=pytest.mark.slow)])
def test_a_name_that_is_no_text_is_refused(tmp_path: Path, name: bytes) -> None:
    done = run(["run", name, "--out", "out"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(b"testbed: error: b'") and done.stderr.count(b"\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", f"{LONG}.toml"],
        ["run", LONG],
        ["plot", LONG],
        ["run", "--resume", LONG],
        ["profile", "show", LONG],
        ["profile", "check", f"{LONG}.toml"],
        ["run", "cifarnet", "--trace", LONG],
        ["run", "cifarnet", "--fabric", "virtual", "--out", LONG],
    ],
    ids=lambda words: words[0],
)
def test_a_name_too_long_is_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert error.startswith("testbed: error: ") and error.count("\n") == 1 and "x" * 40 in error


@pytest.mark.parametrize("dangling", ["results", "results/mine"])
def test_a_link_to_nowhere_as_the_place_of_results_is_named(
    small_data: None, dangling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(toml(plain(systems={"baseline": {}})))
    Path(dangling).parent.mkdir(exist_ok=True)
    Path(dangling).symlink_to(tmp_path / "gone")
    assert main(["run", "mine.toml"]) == 2
    assert f"testbed: error: {dangling}: a link to nowhere; name another folder with --out\n" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["...toml", "..toml"])
def test_an_experiment_whose_name_leads_out_of_its_folder_is_refused(
    small_data: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(toml(plain(systems={"baseline": {}})))
    assert main(["run", name, "--out", "deep/results"]) == 2
    assert "no plain name" in capfd.readouterr().err
    assert not Path("deep").exists()


IN_SMALL = """
import sys, subprocess
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + sys.argv[1], "small", "small"], check=True)
done = subprocess.run(sys.argv[2:], check=False)
subprocess.run(["cp", "-r", "small", "kept"], check=True)
sys.exit(done.returncode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", ["40k", "150k", pytest.param("250k", marks=pytest.mark.full)])
def test_a_full_disk_ends_the_record_properly(tmp_path: Path, size: str) -> None:
    """Wherever the disk is full: in the events, in a checkpoint, in the model, in the report."""
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces here to mount a small disk in")
    (tmp_path / "small").mkdir()
    training = {"steps": 40}
    (tmp_path / "mine.toml").write_text(toml(plain(systems={"baseline": {}}, training=training)))
    line = [*command(), "run", "mine.toml", "--out", "small", "--jobs", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TESTBED_DATA": os.environ.get("TESTBED_DATA", "")}
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, "-c", IN_SMALL, size, *line],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert [
        line for line in done.stderr.splitlines() if line.startswith("testbed: error: ") and "No space left" in line
    ]
    [folder] = tmp_path.glob("kept/mine/*")
    [result] = testbed.load(folder).results
    assert result.status == "failed" and result.steps is not None
    assert not [*folder.rglob(".reserved"), *folder.rglob("*.tmp")]
