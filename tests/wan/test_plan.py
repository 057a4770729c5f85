"""Who takes part and who talks to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small_runs import network

from testbed.roles.roles import Roles, kind_of
from testbed.wan.plan import NetworkPlan, region_of
from testbed.wan.profile import Cap, Link

ROLES = Roles(("east", "west"), 2, "middle")


def test_names_say_region_and_kind() -> None:
    assert ROLES.workers == ("east/w0", "east/w1", "west/w0", "west/w1")
    assert ROLES.lpss == ("east/lps", "west/lps")
    assert ROLES.all == ("middle/gs", *ROLES.lpss, *ROLES.workers)
    assert [(region_of(name), kind_of(name)) for name in ROLES.all[:4]] == [
        ("middle", "gs"),
        ("east", "lps"),
        ("west", "lps"),
        ("east", "worker"),
    ]


def test_neighbours_form_a_tree_and_know_each_other() -> None:
    assert ROLES.neighbours("middle/gs") == ROLES.lpss
    assert ROLES.neighbours("east/lps") == ("middle/gs", "east/w0", "east/w1")
    assert ROLES.neighbours("west/w1") == ("west/lps",)
    for name in ROLES.all:
        assert all(name in ROLES.neighbours(peer) for peer in ROLES.neighbours(name))


@pytest.mark.parametrize("server_region", ["middle", "east"])
def test_a_plan_has_one_link_for_each_directed_pair_of_its_own_regions(server_region: str) -> None:
    profile = network(("east", "west", "middle", "unused"), Link(1000, 0.2), Link(50, 30))
    plan = NetworkPlan(Roles(("east", "west"), 2, server_region).all, profile)
    regions = dict.fromkeys((server_region, "east", "west"))
    assert plan.regions == tuple(regions)
    assert set(plan.wan) == {(a, b) for a in regions for b in regions if a != b}
    assert plan.hosts_of("east") == tuple(name for name in plan.hosts if name.startswith("east/"))


def test_a_links_round_trip_is_one_way_of_it_and_one_of_the_other() -> None:
    special = {("east", "west"): Link(50, 4), ("west", "east"): Link(20, 400)}
    plan = NetworkPlan(("east/w0", "west/w0"), network(("east", "west"), Link(1000, 0.2), Link(50, 30), special))
    assert plan.widest == {("east", "west"): Link(50, 202), ("west", "east"): Link(20, 202)}


def test_the_wan_pairs_are_those_between_lpss_and_the_server() -> None:
    assert ROLES.wan_pairs == {("east", "middle"), ("middle", "east"), ("west", "middle"), ("middle", "west")}
    assert Roles(("east", "west"), 2, "east").wan_pairs == {("west", "east"), ("east", "west")}


def test_the_rate_between_hosts_is_that_of_the_slowest_link_between_them() -> None:
    special = {("east", "middle"): Link(50, 30), ("middle", "east"): Link(5000, 30)}
    profile = network(("east", "west", "middle"), Link(1000, 0.2), Link(200, 30), special)
    plan = NetworkPlan(ROLES.all, replace(profile, caps={"west": Cap(egress_mbit=150), "middle": Cap(None, 120)}))
    assert plan.rate_mbit("east/w0", "east/lps") == 1000
    assert plan.rate_mbit("east/lps", "middle/gs") == 50
    assert plan.rate_mbit("middle/gs", "east/lps") == 1000
    assert plan.rate_mbit("west/lps", "middle/gs") == 120
    assert plan.rate_mbit("west/lps", "east/lps") == 150
    assert plan.rate_mbit("middle/gs", "west/lps") == 200
