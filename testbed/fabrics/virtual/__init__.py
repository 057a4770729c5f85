"""The virtual fabric: the whole run in one process on a virtual clock, with a fluid model of the network."""

from testbed.fabrics.virtual.fabric import VirtualFabric

__all__ = ["VirtualFabric"]
