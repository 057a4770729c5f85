"""Where roles stand, how their nodes' clocks are set by each other, and who measures at once."""

from __future__ import annotations

from typing import Any

import pytest
from small_runs import experiment

from testbed.errors import InputError, RunError
from testbed.experiment.load import from_dict
from testbed.fabrics.cluster import placement
from testbed.fabrics.registry import FABRICS, choose
from testbed.roles.roles import Roles
from testbed.wan.plan import region_of

pytest.importorskip("ray", reason="ray is of the extra `cluster`")
pytest.importorskip("zmq", reason="pyzmq is of the extra `cluster`")

from testbed.fabrics.cluster import clocks, links
from testbed.fabrics.cluster.wire import Difference

REGIONS = ("a", "b", "c")


def node(address: str, region: str = "", key: str = "region", alive: bool = True, gpus: float = 0) -> dict[str, Any]:
    """As `ray.nodes()` has it."""
    return {
        "NodeID": f"id-{address}",
        "NodeManagerAddress": address,
        "Alive": alive,
        "Labels": {key: region} if region else {},
        "Resources": {"GPU": gpus} if gpus else {},
    }


NODES = [node("10.0.0.1", "a"), node("10.0.0.2", "b"), node("10.0.0.3", "c", "ray.io/region"), node("10.0.0.4", "b")]


def test_nodes_stand_where_their_labels_or_the_experiment_say() -> None:
    found = placement.spots([*NODES, node("10.0.0.9"), node("10.0.0.8", "elsewhere")], {}, REGIONS)
    assert {spot.address: spot.region for spot in found} == {
        "10.0.0.1": "a",
        "10.0.0.2": "b",
        "10.0.0.3": "c",
        "10.0.0.4": "b",
    }
    moved = placement.spots([*NODES, node("10.0.0.9")], {"a": ["10.0.0.9", "10.0.0.4"]}, REGIONS)
    assert [spot.address for spot in moved if spot.region == "a"] == ["10.0.0.1", "10.0.0.4", "10.0.0.9"]


def test_each_role_stands_in_its_region_and_a_region_deals_them_out() -> None:
    roles = Roles(("a", "b"), 2, "c")
    places = placement.dealt(roles, placement.spots(NODES, {}, REGIONS))
    assert {role: spot.region for role, spot in places.items()} == {role: region_of(role) for role in roles.all}
    assert [places[role].address for role in ("b/lps", "b/w0", "b/w1")] == ["10.0.0.2", "10.0.0.4", "10.0.0.2"]


@pytest.mark.parametrize(
    ("nodes", "asked", "line"),
    [
        (NODES[:2], {}, "no node of the cluster stands in c"),
        ([*NODES[:2], node("10.0.0.3", "c", alive=False)], {}, "ray start --labels region=c"),
        (NODES, {"a": ["10.9.9.9"]}, "cluster.nodes.a: no node 10.9.9.9 in the cluster; it has 10.0.0.1, 10.0.0.2"),
        (NODES, {"aa": ["10.0.0.1"]}, "cluster.nodes: no region 'aa' in this run; did you mean 'a'?"),
    ],
)
def test_what_cannot_be_placed_is_one_line(nodes: list[Any], asked: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        placement.spots(nodes, asked, REGIONS)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"faults": ["partition us-west-1 at 1s"]}, "cannot change a real network, as the fault 'partition' asks"),
        ({"faults": ["delay us-west-1 ms=200 at 1s"]}, "cannot change a real network, as the fault 'delay' asks"),
        ({"faults": ["reset us-west-1/w0=us-west-1/lps at 1s"]}, "as the fault 'reset' asks"),
        ({"network": {"slow_start": True}}, "no network.slow_start"),
        ({"compute": {"dilation": 2}}, "compute.dilation can only be 1"),
        ({"compute": {"math": "none"}}, "its clock cannot be real"),
    ],
)
def test_what_a_real_network_cannot_be_is_refused_in_a_line(parts: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as error:
        choose("cluster", [experiment(**parts)])
    assert line in str(error.value) and "\n" not in str(error.value)


def test_faults_of_roles_are_played_there() -> None:
    assert choose("cluster", [experiment(faults=["pause us-west-1/w0 at 1s for 1s"])])[0] is FABRICS["cluster"]


def test_an_experiment_without_a_cluster_is_what_it_was() -> None:
    assert "cluster" not in experiment().as_dict()
    it = experiment(cluster={"nodes": {"us-west-1": ["10.0.0.1"]}, "encrypt": False, "ports": [5000, 5100]})
    assert from_dict(it.as_dict(), "again") == it and it.cluster.port_range == (5000, 5100)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ({"ports": [5100, 5000]}, "ports: 5100 is above 5000"),
        ({"nodes": {"us-west-1": ["10.0.0.1"], "us-east-1": ["10.0.0.1"]}}, "10.0.0.1 stands there twice"),
        ({"port": 1}, "unknown key"),
    ],
)
def test_a_table_that_cannot_be_is_refused(table: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError, match=line):
        experiment(cluster=table)


def test_clocks_are_set_by_the_chain_that_is_known_best() -> None:
    far = Difference(5.0, 0.050)
    edges = [("a", "b", far), ("b", "c", Difference(2.0, 0.003)), ("c", "a", Difference(-7.001, 0.004))]
    found = clocks.against("a", ["a", "b", "c"], edges)
    assert found["a"] == Difference(0.0, 0.0)
    assert (found["c"].ahead_s, found["c"].error_s) == pytest.approx((7.001, 0.004))
    assert (found["b"].ahead_s, found["b"].error_s) == pytest.approx((5.001, 0.007)), "not by the far edge of 50 ms"


def test_a_clock_that_nobody_can_tell_is_said() -> None:
    with pytest.raises(RunError, match="the clock of node d cannot be told"):
        clocks.against("a", ["a", "d"], [])


def test_no_node_measures_with_two_others_at_once() -> None:
    ways = [(a, b) for a in "abcde" for b in "abcde" if a != b]
    groups = links.rounds(ways)
    assert sorted(way for group in groups for way in group) == ways
    for group in groups:
        nodes = [node for way in group for node in way]
        assert len(nodes) == len(set(nodes))
    assert len(groups) < len(ways)
