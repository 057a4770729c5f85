"""The emulated fabric: a Ray actor per role, each on its own Mininet host, every message over emulated links."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from testbed.emulation import sandbox
from testbed.experiment.schema import Experiment
from testbed.fabrics.base import Fabric
from testbed.fabrics.registry import FabricKind, Setting

NEEDED = ("ray", "mininet", "zmq", "pyroute2")


class Emulated(FabricKind):
    """Called "mininet" in experiment files; opened in a sandbox of its own."""

    name = "mininet"
    rank = 1

    def open(self, setting: Setting) -> Fabric:
        from testbed.fabrics.emulated.fabric import EmulatedFabric  # imports Ray and Mininet

        return EmulatedFabric(setting.assembly, setting.device, setting.gate)

    def cannot_play(self, experiment: Experiment) -> str:
        asked = experiment.network.asked
        return f"it has a TCP of its own, and no network.{asked[0]}" if asked else ""

    def cannot_run_here(self) -> str:
        absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if absent:
            return f"Python packages missing: {', '.join(absent)}; install with pip install 'geo-testbed[emulation]'"
        return sandbox.available() or ""

    def one_at_a_time(self, experiment: Experiment) -> str:
        return "emulated systems run one after the other; use --fabric virtual"

    def entered(self) -> bool:
        return sandbox.inside()

    def enter(
        self,
        command: Sequence[str],
        say: Callable[[str], None] | None = None,
        witness: Callable[[str], None] | None = None,
    ) -> int | None:
        return None if sandbox.inside() else sandbox.run(command, say=say, witness=witness)
