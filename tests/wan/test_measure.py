"""`testbed profile measure`: the list of hosts, and a real measurement between namespaces."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from math import inf
from pathlib import Path

import pytest
from wan_files import DATA

from testbed.emulation import sandbox
from testbed.errors import InputError, RunError
from testbed.wan import measure, profile
from testbed.wan.measure import Host, Hosts, read_hosts

ATTEMPTS = 4
EAST, WEST = '[[hosts]]\nregion = "east"\naddress = "10.0.0.1"\n', '[[hosts]]\nregion = "west"\naddress = "10.0.0.2"\n'


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_hosts_are_reached_over_ssh_unless_a_command_is_given(tmp_path):
    text = EAST + 'command = ["ssh", "-p", "22", "me@east"]\n' + WEST
    east, west = read_hosts(write(tmp_path / "hosts.toml", text)).hosts
    assert east.prefix == ["ssh", "-p", "22", "me@east"]
    assert west.prefix == ["ssh", "-o", "BatchMode=yes", "10.0.0.2"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (EAST, r"hosts\.toml: Expected `array` of length >= 2"),
        (EAST + EAST, "region east has two hosts"),
        (EAST + WEST.replace("10.0.0.2", "$(reboot)"), r"west: address '\$\(reboot\)' is neither"),
        (EAST + WEST.replace("10.0.0.2", "-oProxyCommand=x"), "address '-oProxyCommand=x' is neither"),
        (EAST + WEST.replace('"west"', '"we st"'), "region is 'we st'"),
        ("port = 0\n" + EAST + WEST, r"port"),
        ("ports = 1\n" + EAST + WEST, "unknown field `ports`"),
        ("[[hosts]", "hosts.toml: "),
    ],
)
def test_a_list_that_cannot_be_is_refused(tmp_path, text, line):
    with pytest.raises(InputError, match=line):
        read_hosts(write(tmp_path / "hosts.toml", text))


def machine(folder: Path, name: str, iperf3: str, ping: str) -> Host:
    """A host whose programs are shell scripts; the `command` finds them first."""
    bin_folder = folder / name
    bin_folder.mkdir()
    for program, script in (("iperf3", iperf3), ("ping", ping)):
        write(bin_folder / program, f"#!/bin/sh\n{script}\n").chmod(0o755)
    return Host(name, name, ["env", f"PATH={bin_folder}:/usr/bin:/bin"])


LISTENS = 'case "$*" in *-s*) echo "Server listening on 5201"; exec sleep 5;; esac\n'
PING = "echo 'rtt min/avg/max/mdev = 11.1/12.25/13.3/0.1 ms'"


def test_the_round_trip_is_pings_mean(tmp_path):
    log = f"cat {DATA / 'iperf3-3.12-three-streams.json'}"
    hosts = Hosts([machine(tmp_path, name, LISTENS + log, PING) for name in ("east", "west")])
    told: list[str] = []
    rates, method = measure.measure(hosts, told.append, tmp_path / "logs")
    assert rates.rtt_ms == {("east", "west"): 12.25}
    assert method == "ping, mean of 10"
    assert set(rates.goodput_mbit) == {("east", "west"), ("west", "east")}
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["east__west.json", "west__east.json"]
    assert len(told) == 3


def test_where_ping_is_not_answered_the_round_trip_is_that_of_a_trickle(tmp_path):
    log = f"cat {DATA / 'iperf3-3.12-three-streams.json'}"
    hosts = Hosts([machine(tmp_path, name, LISTENS + log, "exit 1") for name in ("east", "west")])
    rates, method = measure.measure(hosts, lambda _: None)
    assert rates.rtt_ms["east", "west"] > 0
    assert method == "lowest smoothed RTT of iperf3 at 0.2 Mbit/s"


def test_a_test_that_fails_twice_ends_the_measurement(tmp_path):
    log = f"cat {DATA / 'iperf3-3.12-failed.json'}; exit 1"
    hosts = Hosts([machine(tmp_path, name, LISTENS + log, PING) for name in ("east", "west")])
    with pytest.raises(RunError, match=r"east to west \(west:5201\): iperf3: unable to connect to server"):
        measure.measure(hosts, lambda _: None)


def test_what_fails_is_told_where_the_first_tries_server_still_holds_the_port(tmp_path):
    """Only the way to a host is ended between two tries, not what runs there."""
    said = 'echo "iperf3: error - Address already in use"; echo "iperf3: exiting"'
    held = f"if [ -e {tmp_path}/held ]; then {said}; exit 1; fi"
    server = f'case "$*" in *-s*) {held}; touch {tmp_path}/held; echo "Server listening on 5201"; exec sleep 5;; esac\n'
    log = f"cat {DATA / 'iperf3-3.12-failed.json'}; exit 1"
    hosts = Hosts([machine(tmp_path, name, server + log, PING) for name in ("east", "west")])
    with pytest.raises(RunError, match=r"east to west \(west:5201\): iperf3: unable to connect to server"):
        measure.measure(hosts, lambda _: None)
    with pytest.raises(RunError, match="iperf3 did not start there: iperf3: error - Address already in use"):
        measure.measure(hosts, lambda _: None)


def test_a_server_that_does_not_start_is_an_error(tmp_path):
    hosts = Hosts([machine(tmp_path, name, "echo 'Address already in use' >&2; exit 1", PING) for name in "ab"])
    with pytest.raises(RunError, match="b: iperf3 did not start there: Address already in use"):
        measure.measure(hosts, lambda _: None)


def test_a_command_that_does_not_exist_is_an_error():
    hosts = Hosts([Host(name, name, ["/nowhere/ssh"]) for name in "ab"])
    with pytest.raises(InputError, match=r"/nowhere/ssh: .*; check `command`"):
        measure.measure(hosts, lambda _: None)


@pytest.mark.full
@pytest.mark.emulation
def test_between_namespaces_every_uplink_is_measured_at_its_shaped_rate(tmp_path):
    if (why := sandbox.available()) or not shutil.which("iperf3"):
        pytest.skip(why or "iperf3 is not installed")
    script = Path(__file__).with_name("measure_in_sandbox.py")
    uplinks = {"east": 5, "west": 10, "north": 20}
    best: dict[tuple[str, str], float] = defaultdict(float)  # a machine busy for a moment makes a link look slow
    least_ms: dict[tuple[str, str], float] = defaultdict(lambda: inf)
    for attempt in range(ATTEMPTS):
        name = f"measured-{attempt}"
        arguments = ["profile", "measure", str(tmp_path / "hosts.toml"), "--name", name, "--out", str(tmp_path)]
        assert sandbox.run([sys.executable, str(script), str(tmp_path / "hosts.toml"), *arguments]) == 0
        found = profile.load(str(tmp_path / f"{name}.toml"))
        assert set(found.regions) == set(uplinks)
        assert not found.assumed
        assert "at the receiver" in found.sources["rate"]
        for (src, dst), link in found.pairs.items():
            assert link.goodput_mbit < 1.05 * uplinks[src], (src, dst)
            best[src, dst] = max(best[src, dst], link.goodput_mbit)
            least_ms[src, dst] = min(least_ms[src, dst], link.rtt_ms)
        if all(rate > 0.95 * uplinks[src] for (src, _), rate in best.items()) and max(least_ms.values()) < 5:
            return
    assert max(least_ms.values()) < 5
    assert best == {(src, dst): pytest.approx(uplinks[src], rel=0.05) for src, dst in best}
