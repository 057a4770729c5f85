"""Only a virtual machine's cores are kept awake, and not at the cost of a container's quota."""

import os
import time
from pathlib import Path

import pytest

from testbed.emulation import awake

METAL, VIRTUAL = "flags\t\t: fpu vme sse\n", "flags\t\t: fpu vme hypervisor sse\n"


@pytest.mark.parametrize(
    ("flags", "group", "says", "needed"),
    [
        (METAL, "cpu.max", "max 100000", False),
        (VIRTUAL, "cpu.max", "max 100000", True),
        (VIRTUAL, "cpu.max", "150000 100000", False),
        (VIRTUAL, "cpu/cpu.cfs_quota_us", "-1", True),
        (VIRTUAL, "cpu/cpu.cfs_quota_us", "50000", False),
        (VIRTUAL, "elsewhere", "", True),
        ("model name\t: hypervisor\n", "cpu.max", "max 100000", False),
        (None, "cpu.max", "max 100000", False),
    ],
)
def test_when_it_is_needed(tmp_path: Path, flags: str | None, group: str, says: str, needed: bool) -> None:
    if flags is not None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}")
    (tmp_path / group).parent.mkdir(exist_ok=True)
    (tmp_path / group).write_text(f"{says}\n")
    assert awake.needed(tmp_path, tmp_path) is needed


def spinning() -> list[int]:
    """The cores on which a child of this process spins."""
    found = []
    for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        if os.sched_getscheduler(int(pid)) == os.SCHED_IDLE:
            found += os.sched_getaffinity(int(pid))
    return sorted(found)


@pytest.mark.parametrize("needed", [True, False])
def test_a_process_of_the_lowest_priority_spins_on_each_core(needed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "needed", lambda: needed)
    expected = sorted(os.sched_getaffinity(0)) if needed else []
    with awake.kept():
        deadline = time.monotonic() + 10
        while spinning() != expected and time.monotonic() < deadline:
            time.sleep(0.02)
        assert spinning() == expected
    assert spinning() == []
