"""Keeping a virtual machine's cores awake while an otherwise idle emulated network is measured.

A core with nothing to do halts, and the hypervisor gives its time to others. When a timer goes off it has to be given
a physical core again, which on a busy host takes up to milliseconds: longer than a LAN shaper's burst, and what the
link could have carried in between is lost. On such a host, with 2 % of the machine's time stolen, an idle LAN of
1,000 Mbit/s carried 670 to 985, and 1,000 with its cores kept awake; one of 100 Mbit/s 57 to 93, and 100.

So a process for each core spins at the lowest priority there is (SCHED_IDLE): whatever else wants the core has it at
once. Only while the network is measured: in a run the roles' math keeps the cores awake, and there the scheduler, for
which a spinning core is not idle, spreads their processes less well (WeightGrad's steps took 9 and 28 % longer in two
trials). A machine of metal needs none of this, and a container that is allowed less time than its cores have would
lose by it what it needs: there nothing spins.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""
# Where a container's own group shows what it may use: cgroup v2 ("max" or microseconds, and the period), and v1.
QUOTAS = {Path("cpu.max"): "max", Path("cpu/cpu.cfs_quota_us"): "-1"}


def needed(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether this is a virtual machine (x86 says so in its flags) and this container has no quota of its time."""
    try:
        lines = (proc / "cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return "hypervisor" in flags and not any(_limits(cgroup / path, free) for path, free in QUOTAS.items())


def _limits(path: Path, free: str) -> bool:
    try:
        return path.read_text().split()[0] != free
    except (OSError, IndexError):
        return False


@contextmanager
def kept() -> Iterator[None]:
    """Keep this process's cores awake meanwhile, where that is needed; also a decorator."""
    cores = sorted(os.sched_getaffinity(0)) if needed() else []
    spin = [sys.executable, "-I", "-S", "-c", SPIN]
    processes = [subprocess.Popen([*spin, str(core)], stdin=subprocess.DEVNULL) for core in cores]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
