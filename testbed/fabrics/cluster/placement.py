"""Which role stands on which node: each on one of its region, dealt out in turn where the region has several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.errors import InputError, listed, nearest
from testbed.roles.roles import Roles
from testbed.wan.plan import region_of

LABELS = ("region", "ray.io/region")  # of a node: what `ray start --labels` was told, or the cloud's


@dataclass(frozen=True)
class Spot:
    """A node of a cluster: Ray's id of it, the address at which others reach it, its region, and its GPUs."""

    node_id: str
    address: str
    region: str
    gpus: float = 0.0


def spots(nodes: Iterable[Mapping[str, Any]], asked: Mapping[str, Sequence[str]], regions: Sequence[str]) -> list[Spot]:
    """The nodes that stand in one of `regions`.

    Parameters
    ----------
    nodes : as `ray.nodes()` gives them
    asked : the experiment's own map from regions to addresses, which goes before the labels

    Raises
    ------
    InputError
        A region has no node, or the map names what is not there.
    """
    alive = {node["NodeManagerAddress"]: node for node in nodes if node["Alive"]}
    for region, addresses in asked.items():
        if region not in regions:
            raise InputError(f"cluster.nodes: no region '{region}' in this run{nearest(region, regions)}")
        if absent := [address for address in addresses if address not in alive]:
            raise InputError(f"cluster.nodes.{region}: no node {absent[0]} in the cluster; it has {listed([*alive])}")
    mapped = {address: region for region, addresses in asked.items() for address in addresses}
    found = []
    for address, node in sorted(alive.items()):
        region = mapped.get(address) or next((node["Labels"][key] for key in LABELS if key in node["Labels"]), "")
        if region in regions:
            found.append(Spot(node["NodeID"], address, region, node["Resources"].get("GPU", 0.0)))
    check(found, regions)
    return found


def check(found: Iterable[Spot], regions: Sequence[str], why: str = "") -> None:
    """Raise InputError where a region has no node; `why` says more."""
    there = {spot.region for spot in found}
    if lacking := [region for region in regions if region not in there]:
        raise InputError(
            f"no node of the cluster stands in {', '.join(lacking)}{why or ' (none is labelled so)'}; start Ray there "
            f"with ray start --labels region={lacking[0]}, or name its address in [cluster.nodes]"
        )


def dealt(roles: Roles, found: Sequence[Spot]) -> dict[str, Spot]:
    """The node of each role: the servers first, so that a region with a node a role has one for each of them."""
    by_region: dict[str, list[Spot]] = {}
    for spot in found:
        by_region.setdefault(spot.region, []).append(spot)
    places, given = {}, dict.fromkeys(by_region, 0)
    for role in roles.all:
        region = region_of(role)
        places[role] = by_region[region][given[region] % len(by_region[region])]
        given[region] += 1
    return places
