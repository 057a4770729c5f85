"""Mininet's own command line in a sandbox, where it needs no root and can harm nothing.

    python topologies/mn.py --custom topologies/weightgrad_ec2.py --topo weightgrad --test none
    python topologies/mn.py --custom topologies/weightgrad_ec2.py --topo weightgrad,workers=2,server=us-east-1

When `mn` fails, it cleans the whole machine: it kills programs by their names, `ping` and `controller` among them,
deletes interfaces called *-eth* and all of /tmp/*.log and /tmp/*.out. Here it finds namespaces of its own, and no files
of others in /tmp, only folders.
"""

import os
import subprocess
import sys
from pathlib import Path

from testbed.emulation import mnexec, sandbox
from testbed.emulation.network import TOOLS
from testbed.interpreter import PYTHON


def hide_files(folder: Path) -> None:
    """Leave only the folders in it, one of which may hold this program; what is written beside them is lost."""
    here, whole = Path.cwd(), Path("/run/whole")
    whole.mkdir()
    mount("--rbind", folder, whole)
    mount("-t", "tmpfs", "none", folder)
    for each in whole.iterdir():
        if each.is_dir() and not each.is_symlink():
            (folder / each.name).mkdir()
            mount("--rbind", each, folder / each.name)
    os.chdir(here)


def mount(*arguments: str | Path) -> None:
    """`mount` with these arguments."""
    subprocess.run(["mount", *arguments], check=True)


def main(arguments: list[str]) -> int:
    """Enter a sandbox, and there become `mn` with these arguments; its exit status."""
    if not sandbox.inside():
        if reason := sandbox.available():
            sys.exit(f"mn.py: {reason}")
        return sandbox.run([*PYTHON, __file__, *arguments])
    mnexec.install(TOOLS)
    hide_files(Path("/tmp"))
    mn = str(Path(sys.executable).with_name("mn"))
    os.execv(sys.executable, [*PYTHON, mn, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
