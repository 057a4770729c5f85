"""The cluster fabric tried for real: Ray nodes on the hosts of an emulated WAN, beside the emulated fabric on the same.

Computing is modelled, by a device that is slower than any machine these run on: what is compared is what the network
and the messages take, and not how many cores are left beside five Ray nodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.fabrics.registry import FABRICS
from testbed.record.reader import Run, load
from testbed.wan import profile as profiles

pytest.importorskip("ray", reason="ray is of the extra `emulation`")
pytestmark = [pytest.mark.emulation, pytest.mark.slow, pytest.mark.full]

SCRIPT = Path(__file__).with_name("emulated_cluster.py")
SETTINGS = [
    "topology.workers_per_region=1",
    "data.dataset=synthetic",
    "training.batch_size=32",
    "training.steps=8",
    "run.checkpoint_steps=4",
    "run.eval_images=100",
    "run.probe_steps=0",
    "compute.device=slow",
    "compute.dilation=1",
    "cluster.ports=[20000, 20100]",
]
SLOW = """
from testbed.roles.compute import DEVICES, Device
DEVICES.add("slow", Device(gflops=5.0, memory_gbyte_s=1.0, launch_ms=0.5, source="made up, slow"), __name__)
"""
WITHIN = 0.05


@dataclass
class Tried:
    """What the script said, and the runs: the whole one and the killed one on the cluster, those on other fabrics."""

    said: dict[str, Any]
    whole: Run
    resumed: Run
    others: dict[str, Run]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "slow.py").write_text(SLOW)
    others = {}
    for fabric in ("virtual", "mininet"):
        command = [
            sys.executable,
            "-P",
            "-m",
            "testbed",
            "run",
            "cifarnet",
            "--systems",
            "baseline,terngrad",
            "--quiet",
        ]
        command += ["--fabric", fabric, "--no-gate", "--plugin", str(folder / "slow.py"), "--out", str(folder / fabric)]
        command += [word for setting in SETTINGS for word in ("--set", setting)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        others[fabric] = load(next((folder / fabric).glob("*/*")))
    inside = [sys.executable, "-P", str(SCRIPT), str(folder), *SETTINGS]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "testbed.emulation.sandbox", *inside], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    whole, resumed = sorted((folder / "out").glob("*/*"))
    return Tried(json.loads(done.stdout.splitlines()[-1]), load(whole), load(resumed), others)


def test_losses_are_those_of_the_virtual_fabric(tried: Tried) -> None:
    assert tried.said["whole"]["status"] == 0, tried.said["whole"]["errors"]
    for here, there in zip(tried.whole.results, tried.others["virtual"].results, strict=True):
        assert here.status == "finished"
        assert here.steps["loss"].tolist() == there.steps["loss"].tolist()


def test_step_times_and_bytes_are_those_of_the_emulated_fabric(tried: Tried) -> None:
    for here, there in zip(tried.whole.results, tried.others["mininet"].results, strict=True):
        took_s, takes_s = (float(each.steps["time_s"].diff().median()) for each in (here, there))
        assert took_s == pytest.approx(takes_s, rel=WITHIN), here.system
        assert here.link_bytes == pytest.approx(there.link_bytes, rel=WITHIN), here.system


def test_what_was_measured_before_is_the_profile_of_the_wan(tried: Tried) -> None:
    """It reads as any profile does, so that the run can be repeated by emulation.

    Of the two runs, minutes apart, the shorter round trip counts: what five Ray nodes on a few cores are busy with can
    only add to one, for as long as a whole run's measurement takes.
    """
    first, second = (profiles.load(str(run.folder / "measured-network.toml")) for run in (tried.whole, tried.resumed))
    asked = profiles.load("weightgrad-ec2")
    for pair, link in first.pairs.items():
        assert link.goodput_mbit == pytest.approx(asked.pairs[pair].goodput_mbit, rel=WITHIN), pair
        rtt_ms = min(link.rtt_ms, second.pairs[pair].rtt_ms)
        assert rtt_ms == pytest.approx(asked.pairs[pair].rtt_ms, rel=WITHIN, abs=1.0), pair
    assert first.lan.goodput_mbit == pytest.approx(asked.lan.goodput_mbit, rel=0.1) and not first.lan_assumed


def test_clocks_are_found_to_be_one(tried: Tried) -> None:
    """All hosts are of this machine: whatever the estimate differs by, it must admit."""
    clocks = tried.whole.info.nodes["clocks"]
    assert len(clocks) == 5
    for clock in clocks.values():
        assert abs(clock["ahead_ms"]) <= clock["error_ms"] + 0.001
        assert clock["error_ms"] < 40, "half of the round trip, and what this machine takes"


def test_a_stranger_gets_nothing_and_does_no_harm(tried: Tried) -> None:
    assert tried.said["stranger"] == {"ports": 1, "tcp": 0, "plain": 0, "own key": 0}
    assert tried.whole.results[0].status == "finished"


def test_a_killed_node_ends_the_run_with_its_name_and_it_is_resumed(tried: Tried) -> None:
    killed = tried.said["killed"]
    assert killed["status"] == 1
    assert "us-west-1/w0: node 10." in killed["errors"] and "is gone" in killed["errors"]
    assert "--resume" in killed["errors"] + killed["output"]
    assert tried.said["resumed"]["status"] == 0, tried.said["resumed"]["errors"]
    assert tried.resumed.results[0].status == "finished"
    losses = tried.others["virtual"].results[0].steps["loss"].tolist()
    assert tried.resumed.results[0].steps["loss"].tolist() == losses
