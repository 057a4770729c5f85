"""`testbed doctor` tries each need for real, says what to do, and neither hangs nor trips over a broken machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.cli import needs as doctor
from testbed.cli.needs import BOTH, EMULATION, OPTIONAL, Finding
from testbed.emulation import sandbox
from testbed.errors import InputError
from testbed.fabrics.registry import choose
from testbed.workloads.data import cifar


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine without any tool, compiler or compiled delay line."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sandbox.features.cache_clear()
    yield
    sandbox.features.cache_clear()


@pytest.fixture
def broken_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file in the place of Ray, to be filled."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "ray.py"


def test_a_fabric_is_possible_when_all_it_needs_works() -> None:
    works = [Finding("a", True, "", needed_by=BOTH), Finding("b", False, "", needed_by=OPTIONAL)]
    assert doctor.possible(works) == ["virtual", "mininet"]
    assert doctor.possible([*works, Finding("c", False, "", needed_by=EMULATION)]) == ["virtual"]
    assert doctor.possible([*works, Finding("c", False, "", needed_by=BOTH)]) == []


def test_missing_tools_are_named_with_what_brings_them(no_tools: None) -> None:
    found = {each.need: each for each in (doctor._iproute2(), doctor._unshare(), doctor._iperf3())}
    assert not any(each.works for each in found.values())
    assert found["iproute2"].found == "ip, tc not found" and "apt install iproute2" in found["iproute2"].advice
    assert found["iperf3"].needed_by == OPTIONAL and "apt install iperf3" in found["iperf3"].advice
    emulation = doctor._emulation()
    assert [each.need for each in emulation] == ["namespaces", "traffic shaping", "link delay"]
    assert not any(each.works for each in emulation) and "unshare" in emulation[0].found
    assert doctor.possible([*found.values(), *emulation]) == ["virtual"]


def test_a_kernel_without_netem_needs_a_compiler(no_tools: None) -> None:
    assert doctor._delay(netem=True).works
    lacking = doctor._delay(netem=False)
    assert not lacking.works and "C compiler" in lacking.found


def test_a_kernel_without_a_shaper_is_told_its_module() -> None:
    found = doctor._shaping({"veth": True, "htb": False, "u32": True, "netem": True})
    assert not found.works and "sch_htb" in found.advice


def test_a_broken_package_is_missing(broken_ray: Path) -> None:
    broken_ray.write_text("raise ImportError('libray.so: no such file')")
    found = doctor._package("ray")
    assert not found.works and "libray.so" in found.found and "geo-testbed[emulation]" in found.advice


def test_a_package_that_hangs_does_not_hang_the_doctor(broken_ray: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.5)
    broken_ray.write_text("import time; time.sleep(600)")
    found = doctor._package("ray")
    assert not found.works and "no answer within 0.5 s" in found.found


def test_what_took_too_long_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.5)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "torch.py").write_text("import time; time.sleep(600)")
    [found] = doctor._learning()
    assert (found.need, found.works, found.known, found.advice) == ("torch", False, False, "")
    monkeypatch.setattr(doctor, "examine", lambda: [found, Finding("Ray", True, "2.60")])
    assert main(["doctor"]) == 1
    torch, _, verdict = capsys.readouterr().out.splitlines()
    assert torch.split() == ["unknown", "torch", "no", "answer", "within", "0.5", "s"]
    assert verdict.endswith("Not known, because this machine was too busy: torch; ask again.")
    assert "lacks" not in verdict


def test_a_data_set_that_a_run_would_refuse_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path))
    (tmp_path / cifar.BINARY).mkdir()
    for name in cifar.BINARY_FILES:
        with (tmp_path / cifar.BINARY / name).open("wb") as file:
            file.truncate(1000 if name == "data_batch_1.bin" else cifar.RECORDS * cifar.FORMAT.record_bytes)
    doctor.tell_learning()
    told = json.loads(capsys.readouterr().out)
    [found] = [doctor._data_set(told["folder"], *each) for each in told["data"] if each[0] == "CIFAR-10"]
    assert not found.works and "cifar-10-batches-bin/data_batch_1.bin in" in found.found
    assert "data_batch_2" not in found.found and "runs refuse it" in found.advice


def test_each_need_is_one_line_and_none_possible_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [
        Finding("torch", False, "x" * 100, "y" * 100, BOTH),
        Finding("iperf3", False, "not found", "get it", OPTIONAL),
        Finding("Ray", True, "2.60", "unused advice"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: findings)
    assert main(["doctor"]) == 1
    torch, iperf3, ray, verdict = capsys.readouterr().out.splitlines()
    assert torch.split() == ["missing", "torch", "x" * 100 + ";", "y" * 100]
    assert iperf3 == "missing  iperf3  optional; not found; get it"
    assert ray == "works    Ray     2.60"
    assert verdict.startswith("No run is possible here. The virtual fabric lacks: torch.")


@pytest.mark.slow
def test_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mnist").mkdir()
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path))
    monkeypatch.setattr(doctor, "TIMEOUT_S", 300.0)  # the machine may be busy
    code = main(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    needs = {each["need"]: each for each in said["needs"]}
    assert code == 0 and "virtual" in said["fabrics"]
    assert needs["Python"]["works"] and needs["torch"]["works"]
    assert needs["MNIST"]["works"] and not needs["CIFAR-10"]["works"]
    assert all(each["works"] or each["advice"] or each["found"] for each in said["needs"])
    try:
        choose("mininet")
    except InputError:
        assert "mininet" not in said["fabrics"]
    else:
        assert needs["memory"]["works"] == ("mininet" in said["fabrics"])
