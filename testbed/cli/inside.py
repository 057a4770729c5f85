"""The way into a sandbox, for sub-commands that do their work in one."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.errors import RunError


def enter(command: Sequence[str], descriptors: Sequence[int] = ()) -> int:
    """Run a command line of this program in a sandbox; its exit status.

    Raises
    ------
    RunError
        It was killed there, and could not say so.
    """
    from testbed.emulation import sandbox

    killed: list[str] = []
    status = sandbox.run(command, descriptors=descriptors, witness=killed.append)
    for each in killed:  # what else was killed there it has told of itself, or ended by itself
        if each.startswith((sandbox.COMMAND, sandbox.PROCESS_1)):
            raise RunError(f"it was killed, for lack of memory maybe: {each}")
    return status
