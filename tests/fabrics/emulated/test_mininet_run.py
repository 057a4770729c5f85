"""Real runs on a Mininet network with a Ray actor per role.

What they show holds on a busy machine as well, on which the gate may find that the LAN is not the profile's: they start
without it (`--no-gate`), all but the one whose network any machine can carry.
"""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.fabrics.registry import FABRICS
from testbed.record import lines
from testbed.record.events import StepDone
from testbed.record.reader import load
from testbed.systems import SYSTEMS
from testbed.wan import profile as profiles
from testbed.wan.store import save_profile

pytestmark = [pytest.mark.emulation, pytest.mark.slow]

SETTINGS = [
    "data.dataset=synthetic",
    "training.batch_size=32",
    "run.eval_images=100",
    "run.checkpoint_steps=4",
]
WEIGHTGRAD = ["systems.weightgrad.t_s=0.5", "systems.weightgrad.t_global_s=1.0"]
WIRE_PER_PAYLOAD = 1514 / 1448
RUN_S = 600


@pytest.fixture(autouse=True, scope="module")
def can_emulate():
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)


def command(out: Path, *more: str, systems: str = "baseline", steps: int = 4, gate: bool = False) -> list[str]:
    if not gate:
        more = ("--no-gate", *more)
    keys = [*SETTINGS, *(WEIGHTGRAD if "weightgrad" in systems.split(",") else []), f"training.steps={steps}"]
    settings = [argument for key in keys for argument in ("--set", key)]
    start = [sys.executable, "-m", "testbed", "run", "cifarnet", "--fabric", "mininet", "--out", str(out)]
    return [*start, "--systems", systems, *settings, *more]


def run_folder(out: Path) -> Path:
    return next(out.glob("cifarnet/*"))


def strays(out: Path) -> list[str]:
    """Command lines of processes that belong to a run writing to `out`, or to its Ray."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(out) in text or "RoleActor" in text or "raylet" in text:
            found.append(text)
    return found


@pytest.fixture(scope="module")
def three_systems(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    done = subprocess.run(
        command(out, systems="baseline,terngrad,weightgrad", steps=8), capture_output=True, text=True, timeout=RUN_S
    )
    assert done.returncode == 0, done.stderr
    return load(run_folder(out)), done


def test_every_system_runs_all_its_steps(three_systems):
    run, done = three_systems
    assert [(result.system, result.status) for result in run.results] == [
        ("baseline", "finished"),
        ("terngrad", "finished"),
        ("weightgrad", "finished"),
    ]
    for result in run.results:
        assert result.steps["step"].tolist() == list(range(8))
        assert (result.steps["workers"] == 8).all()
        assert result.steps["time_s"].is_monotonic_increasing
    assert run.info.fabric == "mininet"
    assert run.info.gate == {"skipped": True}
    assert "speedup" in done.stdout


def test_every_message_crosses_the_emulated_wan(three_systems):
    """tc's count on each WAN link is what roles sent over it, with TCP/IP's overhead, within 3 %."""
    run, _ = three_systems
    for result in run.results:
        sent = result.events.query("event == 'sent'")
        for region in ("us-west-1", "us-east-1"):
            for src, dst in ((f"{region}/lps", "us-east-2/gs"), ("us-east-2/gs", f"{region}/lps")):
                nbytes = sent.query("node == @src and peer == @dst")["nbytes"].sum()
                link = f"{src.split('/')[0]}>{dst.split('/')[0]}"
                assert result.link_bytes[link] == pytest.approx(nbytes * WIRE_PER_PAYLOAD, rel=0.03), link
        assert "us-west-1>us-east-1" not in result.link_bytes, "LPSs talk through the global server only"


def test_steps_say_where_their_time_went(three_systems):
    """Stamps pass between the actors' processes: workers know how long the others' messages were on the WAN."""
    run, _ = three_systems
    for result in run.results:
        steps = [
            event for event in lines.Follower(result.folder / lines.FILE_NAME).new() if isinstance(event, StepDone)
        ]
        before = {step.node: step.time_s for step in steps if step.step == 0}
        for step in steps:
            assert step.lan_s > 0
            assert step.wan_s == 0 if result.system == "weightgrad" else step.wan_s > 0
            if step.step > 0:
                assert step.compute_s + step.codec_s + step.lan_s + step.wan_s < step.time_s - before[step.node]
            before[step.node] = step.time_s


def test_weights_equal_those_of_the_virtual_fabric(three_systems, tmp_path):
    """The same coroutines, batches and draws: synchronous systems train to the same losses on both fabrics."""
    run, _ = three_systems
    arguments = command(tmp_path, "--fabric", "virtual", systems="baseline,terngrad", steps=8)
    subprocess.run(arguments, check=True, capture_output=True, timeout=RUN_S)
    virtual = load(run_folder(tmp_path))
    for here, there in zip(run.results, virtual.results, strict=False):
        assert here.system == there.system
        assert here.steps["loss"].tolist() == there.steps["loss"].tolist()


@pytest.mark.full
@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_any_system_runs_for_a_few_steps(kind, tmp_path):
    """All the rest at a go, in a run of two regions: the same losses as on the virtual fabric, whatever is async."""
    systems = [name for name in sorted(SYSTEMS) if kind in SYSTEMS[name].topologies]
    more = ["--set", f"topology.kind={kind}", "--set", "model.name=tiny", "--set", "topology.workers_per_region=2"]
    runs = []
    for fabric in ("mininet", "virtual"):
        arguments = command(tmp_path / fabric, *more, "--fabric", fabric, systems=",".join(systems), steps=3)
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=RUN_S)
        assert done.returncode == 0, done.stderr
        runs.append(load(run_folder(tmp_path / fabric)))
    for here, there in zip(runs[0].results, runs[1].results, strict=True):
        assert here.status == "finished", here.system
        if here.system not in ("gaia", "weightgrad", "mqgrad"):  # what they do depends on time
            assert here.steps["loss"].tolist() == there.steps["loss"].tolist(), here.system


@pytest.mark.full
def test_impatience_in_training_does_not_bound_the_start(tmp_path):
    """Eleven processes that import torch take longer than a message that is worth waiting for."""
    arguments = command(tmp_path, *SMALL, "--set", "run.patience_s=1.5", systems="baseline", steps=2)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=RUN_S)
    assert "no answer to 'ready'" not in done.stderr
    [folder] = run_folder(tmp_path).glob("baseline/seed-0")
    assert (folder / "events.jsonl").stat().st_size > 0, "the roles have started"


@pytest.mark.full
def test_the_gate_lets_a_sound_network_pass_and_its_figures_are_recorded(tmp_path):
    ec2 = profiles.load("weightgrad-ec2")
    slow = {pair: replace(link, goodput_mbit=link.goodput_mbit / 20) for pair, link in ec2.pairs.items()}
    lan = replace(ec2.lan, goodput_mbit=20)
    profile = save_profile(replace(ec2, name="slow", lan=lan, pairs=slow), tmp_path)
    arguments = command(tmp_path, *SMALL, "--set", f"topology.profile={profile}", gate=True)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    figures = load(run_folder(tmp_path)).info.gate["figures"]
    assert all(figure["ok"] for figure in figures)
    assert {(figure["name"], figure["asked"]) for figure in figures if figure["section"] == "goodput"} >= {
        ("us-west-1>us-east-2", 5.95),
        ("us-east-2>us-east-1", 16.35),
        ("us-west-1/lps>us-west-1/w0", 20),
    }


SMALL = ("--set", "model.name=tiny", "--set", "topology.workers_per_region=1", "--set", "training.batch_size=2")


@pytest.mark.full
def test_a_role_that_dies_ends_the_run_with_its_name(tmp_path):
    process = subprocess.Popen(
        command(tmp_path, *SMALL, steps=100_000), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        victim = _wait_for_actor(tmp_path, process)
        os.kill(victim, signal.SIGKILL)
        _, errors = process.communicate(timeout=180)
    finally:
        process.kill()
    assert process.returncode == 1
    assert re.search(r"us-\w+-\d/\w+: its process died", errors)
    assert load(run_folder(tmp_path)).results[0].status == "failed"


@pytest.mark.full
def test_sigterm_ends_cleanly_and_resume_goes_on(tmp_path):
    process = subprocess.Popen(
        command(tmp_path, *SMALL, "--set", "run.checkpoint_steps=20", steps=120),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for_checkpoint(tmp_path, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 1, errors
    assert "--resume" in errors
    assert load(run_folder(tmp_path)).results[0].status == "interrupted"
    assert (run_folder(tmp_path) / "summary.csv").is_file()
    assert not strays(tmp_path)

    again = [sys.executable, "-m", "testbed", "run", "--resume", str(run_folder(tmp_path))]
    done = subprocess.run(again, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stderr
    result = load(run_folder(tmp_path)).results[0]
    assert result.status == "finished"
    assert result.steps["step"].tolist() == list(range(120))


@pytest.mark.full
def test_kill_9_leaves_nothing_behind(tmp_path):
    before = set(Path("/sys/class/net").iterdir())
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        command(tmp_path, *SMALL, steps=100_000),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    _wait_for_actor(tmp_path, process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while strays(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert strays(tmp_path) == []
    assert set(Path("/sys/class/net").iterdir()) == before
    # PyTorch's cache is there for all programs and belongs to none.
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []


def _wait_for_actor(out: Path, process: subprocess.Popen[str]) -> int:
    """The process id of an actor of the run, once its first steps are recorded."""
    _wait(process, lambda: any("step" in path.read_text() for path in out.glob("cifarnet/*/*/seed-0/events.jsonl")))
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"RoleActor" in path.read_bytes():
                return int(path.parent.name)
        except OSError:
            continue
    raise AssertionError("no actor found")


def _wait_for_checkpoint(out: Path, process: subprocess.Popen[str]) -> None:
    _wait(process, lambda: any(True for _ in out.glob("cifarnet/*/*/seed-0/checkpoint-20/clock.json")))


def _wait(process: subprocess.Popen[str], condition) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, f"the run ended: {process.communicate()[1]}"
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.1)
