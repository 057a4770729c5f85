"""The profiles and traces that come with the testbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.wan import profile, trace

ALL = (
    "cluster-100gbit",
    "cluster-1gbit",
    "cluster-80mbit",
    "lan",
    "residential",
    "skyplane-22",
    "wanify-8",
    "weightgrad-ec2",
)


def test_these_profiles_are_shipped():
    assert profile.available() == sorted(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_figure_has_a_source_with_a_date_or_says_that_it_is_assumed(name):
    shipped = profile.load(name)
    for pair in shipped.pairs:
        keys = set(shipped.origins[pair].source.split("+"))
        measured = keys - {"assumed"}
        assert ("assumed" in keys) == bool(shipped.origins[pair].assumed), pair
        assert all("20" in shipped.sources[key] for key in measured), pair
    assert shipped.lan_assumed == ("assumed" in shipped.lan_source.split("+"))
    assert shipped.notes


@pytest.mark.parametrize("name", ALL)
def test_each_says_how_it_was_measured_and_what_it_is_for(name):
    shipped = profile.load(name)
    assert shipped.measured and shipped.use
    assert shipped.measured.startswith("no; ") == all("assumed" in each.source for each in shipped.origins.values())


def test_the_documentation_states_how_far_two_profiles_of_the_same_regions_are_apart():
    many, one = profile.load("skyplane-22"), profile.load("wanify-8")
    ratios = sorted(many.link(*pair).goodput_mbit / link.goodput_mbit for pair, link in one.pairs.items())
    assert [round(ratio) for ratio in (ratios[0], ratios[len(ratios) // 2], ratios[-1])] == [38, 63, 89]


def test_wanify_has_medians_between_their_percentiles():
    shipped = profile.load("wanify-8")
    assert len(shipped.regions) == 8
    assert set(shipped.spread) == set(shipped.pairs)
    for pair, spread in shipped.spread.items():
        assert spread.p10_mbit <= shipped.link(*pair).goodput_mbit <= spread.p90_mbit
    # Two figures of the table as WANify publishes it.
    assert shipped.link("ap-northeast-1", "ap-south-1").goodput_mbit == 69.2
    assert shipped.link("us-west-1", "us-east-1").goodput_mbit == 88.1


def test_skyplane_takes_the_round_trips_it_lacks_from_another_table_and_says_so():
    shipped = profile.load("skyplane-22")
    assert len(shipped.regions) == 22
    other = {pair for pair, origin in shipped.origins.items() if "cloudping" in origin.source}
    assert other == {pair for pair in shipped.pairs if "eu-west-3" in pair}
    assert not shipped.assumed
    assert "eu-west-3" in shipped.notes


def test_in_mqgrads_cluster_a_nodes_own_link_is_the_bottleneck():
    shipped = profile.load("cluster-80mbit")
    assert shipped.lan.goodput_mbit == 80
    hosts = 5 + 2  # workers, LPS and global server of one rack
    assert all(link.goodput_mbit >= hosts * 80 and link.rtt_ms == 0 for link in shipped.pairs.values())
    assert len(shipped.regions) * 3 == 18  # its larger cluster: 6 racks of 3 workers


def test_the_lan_stands_in_for_every_profile_of_aws_regions():
    lan = profile.load("lan")
    assert {(link.goodput_mbit, link.rtt_ms) for link in lan.pairs.values()} == {(lan.lan.goodput_mbit, lan.lan.rtt_ms)}
    for name in ("weightgrad-ec2", "wanify-8", "skyplane-22"):
        assert set(profile.load(name).regions) <= set(lan.regions)


@pytest.mark.parametrize(
    ("name", "of"), [("diurnal", "weightgrad-ec2"), ("outage", "weightgrad-ec2"), ("wanify-resampled", "wanify-8")]
)
def test_every_trace_fits_its_profile(name, of):
    shipped = trace.load(Path(trace.FOLDER) / f"{name}.csv", profile.load(of).regions)
    assert {(change.src, change.dst) for change in shipped.changes} <= set(profile.load(of).pairs)


def test_the_resampled_trace_covers_every_pair_and_calls_itself_a_resampling():
    path = Path(trace.FOLDER) / "wanify-resampled.csv"
    wanify = profile.load("wanify-8")
    shipped = trace.load(path, wanify.regions)
    assert "resampling" in path.read_text().splitlines()[0]
    assert shipped.profile == "wanify-8"
    assert shipped.period_s == 86 * 20
    assert set(shipped.at(0.0)) == set(wanify.pairs)
    assert len(trace.load(path, ("us-east-1", "us-west-1", "eu-west-1")).at(0.0)) == 6
