"""Process 1 of a user-mode-linux kernel that runs on this machine's own file system, read-only.

    uml_guest.py SCENARIO...

It loads the kernel modules that the emulation needs, runs scenarios of `emulation_scenarios.py` in sandboxes and
prints one line for each, "uml: " and its JSON, or "uml failed: " and what was said instead; then it turns
the machine off.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from emulation_runner import scenario

POWER_OFF = 0x4321FEDC  # linux/reboot.h
FINIT_MODULE = 313  # x86-64
MODULES = ("veth", "sch_htb", "sch_netem", "sch_ingress", "cls_u32", "act_mirred")


def prepare() -> None:
    """The file systems that every Linux has, and a kernel with netem."""
    Path("/dev/pts").mkdir(exist_ok=True)
    for kind, folder in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run"), ("devpts", "/dev/pts")):
        subprocess.run(["mount", "-t", kind, kind, folder], check=True)
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", HOME="/run", PYTHONDONTWRITEBYTECODE="1")
    libc = ctypes.CDLL(None, use_errno=True)
    root = Path("/usr/lib/uml/modules") / os.uname().release
    for name in MODULES:  # none needs another; modprobe may not be installed
        with next(root.rglob(f"{name}.ko")).open("rb") as module:
            if libc.syscall(FINIT_MODULE, module.fileno(), b"", 0):
                print(f"uml failed: module {name}: {os.strerror(ctypes.get_errno())}", flush=True)


def run(name: str) -> None:
    """Run one scenario and print its answer on a line of its own."""
    done = subprocess.run(scenario(name), capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    print(f"uml: {lines[-1]}" if done.returncode == 0 and lines else f"uml failed: {done.stderr[-2000:]!r}", flush=True)


if __name__ == "__main__":
    try:
        prepare()
        for argument in sys.argv[1:]:
            run(argument)
    finally:
        os.sync()
        ctypes.CDLL(None).reboot(POWER_OFF)
