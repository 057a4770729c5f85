"""Roles on the nodes of a Ray cluster, over whatever network joins them: the emulation's actors without emulation.

- `joining` joins a cluster that is there, with its `baggage`; `fitness` says whether a node can take part. Plays that
  are spread over a cluster (`harness.cluster`) use these, too;
- `placement` gives each role a node of its region;
- `links` has a `surveyor` on each node measure what joins them;
- `doors` are a role's sockets, `wire` is what passes between them, `clocks` sets the nodes' clocks by each other;
- `actor` is a role, `fabric` plays them all.
"""

from __future__ import annotations

import importlib.util

from testbed.errors import InputError
from testbed.experiment.schema import Experiment
from testbed.fabrics.base import Fabric
from testbed.fabrics.registry import FabricKind, Setting

NEEDED = ("ray", "zmq")
INSTALL = "pip install 'geo-testbed[cluster]'"


class OnCluster(FabricKind):
    """Taken only by its name: it needs nodes, which somebody must have started."""

    name = "cluster"
    on_nodes = True

    def open(self, setting: Setting) -> Fabric:
        from testbed.fabrics.cluster.fabric import ClusterFabric  # imports Ray and ZeroMQ

        if setting.renamed is None:
            raise InputError("the cluster fabric plays on the nodes of a Ray cluster; say which with --ray")
        return ClusterFabric(setting.assembly, setting.device, setting.renamed, setting.gate is not None)

    def cannot_play(self, experiment: Experiment) -> str:
        if experiment.trace is not None:
            return "it cannot change a real network, as topology.trace asks; use --fabric mininet or virtual"
        if (schedule := experiment.schedule) is not None and (schedule.pairs or schedule.broken):
            wan, roles = experiment.plan.wan, experiment.roles.all
            kinds = [each.kind for each in experiment.faults if each.on_links(wan) or each.on_connections(roles)]
            return f"it cannot change a real network, as the fault '{kinds[0]}' asks; use --fabric mininet or virtual"
        if experiment.compute.dilation not in ("auto", 1):
            return "its time is real, so that compute.dilation can only be 1"
        asked = experiment.network.asked
        return f"its TCP is that of the nodes, and no network.{asked[0]}" if asked else ""

    def cannot_run_here(self) -> str:
        absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        return f"Python packages missing: {', '.join(absent)}; {INSTALL}" if absent else ""

    def check_nodes(self, experiment: Experiment) -> None:
        import ray

        from testbed.fabrics.cluster import placement

        placement.spots(ray.nodes(), experiment.cluster.nodes, experiment.plan.regions)

    def one_at_a_time(self, experiment: Experiment) -> str:
        return "systems run one after the other on the network that they share; use --fabric virtual"
