"""The facts of a run: complete, readable by other versions, and never in the way of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.files import replacing, write_whole
from testbed.record import info
from testbed.record.info import Environment, LinkInfo, ResultInfo, RunInfo


def test_facts_come_back_as_written(tmp_path: Path) -> None:
    facts = RunInfo(
        target="cifarnet",
        experiment={"training": {"steps": 400}},
        network={"us-east-1>us-east-2": LinkInfo(goodput_mbit=327.0, rtt_ms=12.0)},
        seeds=[0, 1],
        environment=info.environment(),
    )
    info.write_info(tmp_path / "new" / "run", facts)
    assert info.read_info(tmp_path / "new" / "run", RunInfo) == facts


def test_a_record_of_another_version_reads(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"target": "cifarnet", "unheard_of": 1}')
    assert info.read_info(tmp_path, RunInfo) == RunInfo(target="cifarnet")


DEEP = '{"experiment": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"


@pytest.mark.parametrize(
    "content",
    ["", "{", '{"dilation": "four"}', "[]", DEEP, '{"parameters": ' + "1" * 5000 + "}"],
    ids=lambda text: text[:20],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match=r"run\.json") as caught:
        info.read_info(tmp_path, RunInfo)
    assert "\n" not in str(caught.value)


def test_a_change_of_any_bit_is_told(tmp_path: Path) -> None:
    info.write_info(tmp_path, RunInfo(target="cifarnet", dilation=4.0))
    path = tmp_path / "run.json"
    written = path.read_bytes()
    for bit in range(0, 8 * len(written), 11):
        changed = bytearray(written)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        told: list[str] = []
        try:
            facts = info.read_info(tmp_path, RunInfo, told.append)
        except InputError as error:
            told.append(str(error))
        assert told or facts == RunInfo(target="cifarnet", dilation=4.0)
        assert all("run.json" in line for line in told)


def test_what_was_changed_is_refused_where_nobody_is_told(tmp_path: Path) -> None:
    info.write_info(tmp_path, RunInfo(target="cifarnet"))
    path = tmp_path / "run.json"
    path.write_text(path.read_text().replace("cifarnet", "resnet"))
    with pytest.raises(InputError, match=r"run\.json: not as it was written .* take that line out"):
        info.read_info(tmp_path, RunInfo)
    path.write_text(path.read_text().rpartition(",\n")[0] + "\n}\n")  # as the line says
    assert info.read_info(tmp_path, RunInfo).target == "resnet"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"run\.json: No such file"):
        info.read_info(tmp_path, ResultInfo)


def test_the_hash_depends_on_values_and_not_on_the_order_of_keys() -> None:
    assert info.hash_of({"a": 1, "b": {"c": 2, "d": 3}}) == info.hash_of({"b": {"d": 3, "c": 2}, "a": 1})
    assert info.hash_of({"a": 1}) != info.hash_of({"a": 2})


def test_the_environment_names_machine_and_packages() -> None:
    found = info.environment()
    assert found.kernel and found.python and found.cores
    assert "numpy" in found.packages


def test_the_environment_is_described_where_git_and_proc_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    def refuse(*arguments: object, **options: object) -> str:
        raise PermissionError("not readable")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(info.os, "sysconf", refuse)
    found = info.environment()
    assert isinstance(found, Environment)
    assert found.commit == "" and found.dirty is None and found.memory_bytes is None


def test_the_commit_is_that_of_the_testbeds_checkout_and_not_of_a_repository_around_an_installed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    for command in (["init", "--quiet"], [*identity, "commit", "--quiet", "--allow-empty", "--message", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    monkeypatch.setattr(info, "__file__", str(tmp_path / "testbed" / "record" / "info.py"))
    found = info.environment()
    assert len(found.commit) == 40 and found.dirty is False
    for name, dirty in (("results", False), ("testbed", True)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "new").touch()
        assert info.environment().dirty is dirty
    monkeypatch.setattr(info, "__file__", str(tmp_path / "site-packages" / "testbed" / "record" / "info.py"))
    found = info.environment()
    assert found.commit == "" and found.dirty is None


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "summary.csv"
    write_whole(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ["summary.csv"]
