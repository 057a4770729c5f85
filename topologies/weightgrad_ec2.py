"""WeightGrad's three EC2 regions for Mininet's own command line.

    python -m testbed.emulation.sandbox mn --custom topologies/weightgrad_ec2.py --topo weightgrad --test none
    python -m testbed.emulation.sandbox mn --custom topologies/weightgrad_ec2.py --topo weightgrad,workers=2

`mn` needs root, and where it fails cleans the whole machine: it kills processes by their names and deletes logs in
/tmp. In the sandbox it is root without being it, and what it can reach is its own.

Nodes are named after region and role: with the defaults r1 is us-west-1 and r2 is us-east-1, each with r1lps, r1w0
... r1w3, and r0 is us-east-2 with the global server, r0gs. The links are shaped and delayed exactly as in an
emulated run.
"""

from testbed.emulation.topo import PlanTopo
from testbed.roles.roles import Roles
from testbed.wan import profile
from testbed.wan.plan import NetworkPlan


class WeightGradTopo(PlanTopo):
    """Two regions with an LPS and workers each, and the global server in a third.

    Parameters
    ----------
    workers : workers in each of the two regions
    server : region of the global server
    """

    def __init__(self, workers: int = 4, server: str = "us-east-2") -> None:
        roles = Roles(("us-west-1", "us-east-1"), workers, server)
        super().__init__(NetworkPlan(roles.all, profile.load("weightgrad-ec2")))


topos = {"weightgrad": WeightGradTopo}
