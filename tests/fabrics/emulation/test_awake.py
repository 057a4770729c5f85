"""Only a virtual machine's cores are kept awake, and not at the cost of a container's quota."""

from pathlib import Path

import pytest

from testbed.fabrics.emulation import awake

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
