"""The virtual fabric: the whole run in one process on a virtual clock, with a fluid model of the network."""

from __future__ import annotations

from testbed.experiment.schema import Experiment
from testbed.fabrics.base import Fabric
from testbed.fabrics.registry import FabricKind, Setting
from testbed.fabrics.virtual.fabric import VirtualFabric
from testbed.roles.compute import MODELLED, compute_model

__all__ = ["Virtual", "VirtualFabric"]


class Virtual(FabricKind):
    """Repeats to the last bit, with compute of a modelled device."""

    name = "virtual"
    virtual_time = True
    one_process = True
    device = MODELLED
    rank = 2

    def open(self, setting: Setting) -> Fabric:
        experiment = setting.assembly.experiment
        timing_only = experiment.compute.timing_only
        setting.assembly.home = setting.assembly.device  # all roles are in this process
        return VirtualFabric(
            experiment.network_plan,
            compute_model(experiment.compute.device),
            setting.assembly.system,
            experiment.run.link_interval_s,
            experiment.schedule,
            experiment.network,
            experiment.run.patience_s,
            experiment.run.timeline_steps,
            None if timing_only else setting.assembly.workload.launches,
        )

    def cannot_play(self, experiment: Experiment) -> str:
        impaired = [f"{src} to {dst}" for (src, dst), link in experiment.plan.wan.items() if link.impaired]
        return f"it knows no packets, and the profile asks for loss or jitter on {impaired[0]}" if impaired else ""

    def one_at_a_time(self, experiment: Experiment) -> str:
        if compute_model(experiment.compute.device).device is None:
            return "measured compute times would count each other; set compute.device, e.g. m60"
        return ""
