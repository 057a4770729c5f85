"""A run on the nodes of a Ray cluster: the bits of home, whatever node dies or lacks something.

The cluster is one of three nodes on this machine, each with an address of its own below 127: the head, which plays
nothing, and two with a core each.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from small_runs import plain, toml

from testbed.cli import main
from testbed.fabrics.registry import FABRICS
from testbed.record.reader import load
from testbed.wan import profile as profiles

ray_cluster = pytest.importorskip("ray.cluster_utils", reason="ray is of the extra `emulation`")
PLUGIN = """
import numpy as np, time, testbed, torch

@testbed.dataset("spots")
def spots(folder):
    path = folder.path / "spots.npy"
    if not path.is_file():
        raise testbed.InputError(f"data set 'spots': {path} is missing")
    x = np.load(path)
    y = (x.sum((1, 2, 3)) > 0).astype(np.int64)
    return testbed.Arrays(x[:600], y[:600], x[600:], y[600:])

@testbed.model("spot")
def spot(classes, wait_s: float = 0.0):
    return Slow(wait_s, classes)

class Slow(torch.nn.Module):
    def __init__(self, wait_s, classes):
        super().__init__()
        self.wait_s, self.output = wait_s, torch.nn.Linear(12, classes)

    def forward(self, x):
        time.sleep(self.wait_s)
        return self.output(x.flatten(1))
"""
PROFILE = """
title = "two"
[lan]
goodput_mbit = 1000
rtt_ms = 0.2
[sources]
here = "made up"
"""
PAIRS = "src_region,dst_region,goodput_mbit,rtt_ms,source,assumed\na,b,100,20,here,\nb,a,80,20,here,\n"
SWEEP = '\n[sweep]\n"training.batch_size" = [8, 16]\n'


def examples(folder: Path, seed: int = 1) -> Path:
    """A folder of data sets."""
    folder.mkdir()
    np.save(folder / "spots.npy", np.random.default_rng(seed).normal(size=(700, 3, 2, 2)).astype(np.float32))
    return folder


def node(number: int, data: Path) -> dict[str, Any]:
    return {
        "num_cpus": 1,
        "node_ip_address": f"127.0.0.{number}",
        "object_store_memory": 80 << 20,
        "env_vars": {"TESTBED_DATA": str(data)},
    }


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster; its nodes have the data set."""
    data = examples(tmp_path_factory.mktemp("nodes") / "data")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_AUTH_MODE", "disabled")
    patch.setenv("PYTHONSAFEPATH", "1")
    head = {**node(2, data), "num_cpus": 0, "include_dashboard": False}
    cluster = ray_cluster.Cluster(initialize_head=True, head_node_args=head)
    cluster.own_data = data
    cluster.others = [cluster.add_node(**node(number, data)) for number in (3, 4)]
    yield cluster
    cluster.shutdown()
    patch.undo()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TESTBED_DATA", str(tmp_path / "data"))
    fill(tmp_path)
    return tmp_path


def fill(folder: Path) -> None:
    """An experiment, a plug-in and a profile of one's own, and the data set."""
    examples(folder / "data")
    (folder / "own.py").write_text(PLUGIN)
    (folder / "two.toml").write_text(PROFILE)
    (folder / "two.csv").write_text(PAIRS)
    write(folder / "mine.toml", 0.0)


def write(path: Path, wait_s: float, more: str = SWEEP) -> None:
    """The experiment; a forward pass takes `wait_s` longer than it must."""
    regions = {"profile": "two.toml", "regions": ["a", "b"], "workers_per_region": 1, "server_region": "b"}
    data = plain(
        topology=regions,
        model={"name": "spot", "wait_s": wait_s},
        data={"dataset": "spots"},
        systems={"baseline": {}, "allreduce": {}},
        run={"seeds": [0, 1]},
    )
    path.write_text('plugins = ["./own.py"]\n' + toml(data) + more)


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TESTBED, *words], capture_output=True, text=True, timeout=300, **options)


TESTBED = [sys.executable, "-P", "-m", "testbed", "run"]


def until_one_is_done(output: IO[str]) -> str:
    """What the driver says up to then."""
    said = ""
    while "(1 of 8)" not in said:
        line = output.readline()
        assert line, said
        said += line
    return said


def only(out: Path) -> Path:
    (folder,) = (out / "mine").iterdir()
    return folder


def recorded(folder: Path) -> dict[str, bytes]:
    """What must not depend on where it was played: records, models, tables."""
    kinds = ("events.jsonl", "*.parquet", "model.npz", "summary.csv")
    found = {str(path.relative_to(folder)): path.read_bytes() for kind in kinds for path in folder.rglob(kind)}
    assert sum(name.endswith("model.npz") for name in found) == 8
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What the experiment records on this machine alone."""
    folder = tmp_path_factory.mktemp("home")
    fill(folder)
    words = ["mine.toml", "--jobs", "1", "--quiet", "--out", "out"]
    done = run(*words, cwd=folder, env={**os.environ, "TESTBED_DATA": str(folder / "data")})
    assert done.returncode == 0, done.stderr
    return recorded(only(folder / "out"))


@pytest.mark.full
@pytest.mark.slow
def test_a_sweep_gives_the_bits_of_home(folder: Path, home: dict[str, bytes], ray: Any) -> None:
    """Plug-in and profile travel with it; no file of a node is left in the records."""
    done = run("mine.toml", "--ray", ray.address, "--quiet", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert "(8 of 8)" in done.stdout and "done on 127.0.0.3" in done.stdout and "done on 127.0.0.4" in done.stdout
    assert recorded(only(folder / "out")) == home


@pytest.mark.full
@pytest.mark.slow
def test_a_killed_node_costs_only_what_it_was_playing(folder: Path, home: dict[str, bytes], ray: Any) -> None:
    """With a storage that all see, that goes on from its checkpoint on another node."""
    write(folder / "mine.toml", 0.03)
    (folder / "storage").mkdir()
    doomed = ray.add_node(**node(5, ray.own_data))
    command = [*TESTBED, "mine.toml", "--ray", ray.address, "--quiet", "--out", "out", "--storage", "storage"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
        assert driver.stdout is not None
        said = until_one_is_done(driver.stdout)
        ray.remove_node(doomed, allow_graceful=False)
        said += driver.stdout.read()
    assert driver.returncode == 0, said
    assert "(8 of 8)" in said  # that the node is gone is said when Ray has noticed, which may be after the last play
    assert recorded(only(folder / "out")) == home


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.full)])
def test_a_stopped_driver_is_resumed(folder: Path, home: dict[str, bytes], ray: Any, number: int) -> None:
    write(folder / "mine.toml", 0.03)
    command = [*TESTBED, "mine.toml", "--ray", ray.address, "--quiet", "--out", "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None and driver.stderr is not None
        until_one_is_done(driver.stdout)
        driver.send_signal(number)
        said = driver.stderr.read()
    stopped = only(folder / "out")
    if number == signal.SIGINT:
        assert driver.returncode == 1
        assert re.search(rf"stopped: \d of 8 over; resume with testbed run --resume .*{stopped.name}$", said.strip())
    began = list(stopped.glob("*/*/seed-[0-9]/model.npz"))  # not one that was being unpacked
    assert 0 < len(began) < 8
    kept = {path: path.stat().st_mtime_ns for path in began}
    done = run("--resume", str(stopped), "--ray", ray.address, "--quiet")
    assert done.returncode == 0, done.stderr
    assert recorded(stopped) == home
    assert {path: path.stat().st_mtime_ns for path in began} == kept, "what was done is not done again"


@pytest.mark.full
@pytest.mark.slow
def test_a_node_that_lacks_something_is_passed_over_and_says_why(
    folder: Path, home: dict[str, bytes], ray: Any, tmp_path: Path
) -> None:
    lacking = ray.add_node(**node(6, tmp_path / "nothing"))
    other = ray.add_node(**node(7, examples(tmp_path / "others", seed=2)))
    try:
        done = run("mine.toml", "--ray", ray.address, "--quiet", "--out", "out")
    finally:
        ray.remove_node(lacking), ray.remove_node(other)
    assert done.returncode == 0, done.stderr
    assert recorded(only(folder / "out")) == home
    said = [line for line in done.stdout.splitlines() if "passed over" in line]
    missing = f"node 127.0.0.6 is passed over: data set 'spots': {tmp_path / 'nothing' / 'spots.npy'} is missing"
    differs = "node 127.0.0.7 is passed over: its data set 'spots' is not the driver's"
    assert all(line == missing or line.startswith(differs) for line in said)
    assert len(said) == len(set(said)) > 0


@pytest.mark.full
@pytest.mark.slow
def test_where_no_node_can_play_it_is_one_line(folder: Path, ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "data" / "spots.npy", np.ones((700, 3, 2, 2), np.float32))
    done = run("mine.toml", "--ray", ray.address, "--quiet", "--out", "out")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "no node of the cluster can play this" in last and "node 127.0.0.3: its data set 'spots' is not" in last


@pytest.mark.full
@pytest.mark.slow
def test_settings_are_searched_there_as_at_home(folder: Path, ray: Any) -> None:
    write(folder / "mine.toml", 0.0, more="\n[target]\nloss = 0.6\n")
    for where in (["--jobs", "1"], ["--ray", ray.address]):
        words = ["mine.toml", "--trials", "2", "--out", where[0].strip("-"), "--to", f"{where[0].strip('-')}.toml"]
        done = subprocess.run([*TESTBED[:-1], "tune", *words, *where], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert (folder / "ray.toml").read_text() == (folder / "jobs.toml").read_text()
    for trial in (folder / "jobs").rglob("trials.jsonl"):
        assert (folder / "ray" / trial.relative_to(folder / "jobs")).read_bytes() == trial.read_bytes()


ROLES = [
    *("--fabric", "cluster", "--systems", "baseline"),
    *("--set", 'cluster.nodes={a = ["127.0.0.3"], b = ["127.0.0.4"]}'),
]


@pytest.mark.slow
def test_the_roles_of_a_run_stand_on_nodes(folder: Path, ray: Any) -> None:
    """The losses of the virtual fabric; what joined the nodes is a profile; the record says who stood where."""
    write(folder / "mine.toml", 0.0, more="")
    once = ["--seeds", "0", "--quiet"]
    done = run("mine.toml", "--ray", ray.address, *ROLES, *once, "--out", "out")
    assert done.returncode == 0, done.stderr
    done = run("mine.toml", "--fabric", "virtual", "--systems", "baseline", *once, "--out", "home", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    here, there = load(only(folder / "out")), load(only(folder / "home"))
    for one, other in zip(here.results, there.results, strict=True):
        assert one.status == "finished"
        assert one.steps["loss"].tolist() == other.steps["loss"].tolist()
        assert one.link_bytes == other.link_bytes
    measured = profiles.load(str(here.folder / "measured-network.toml"))
    assert set(measured.pairs) == {("a", "b"), ("b", "a")} and measured.lan_assumed
    assert here.info.nodes["roles"]["a/w0"] == "127.0.0.3" and here.info.nodes["roles"]["b/gs"] == "127.0.0.4"
    assert any("stood on 2 nodes" in note for note in here.info.notes)


@pytest.mark.full
@pytest.mark.slow
def test_a_role_whose_process_dies_ends_the_run_with_its_name(folder: Path, ray: Any) -> None:
    """Its record ends properly, and it is resumed to the losses of a run that nothing befell."""
    write(folder / "mine.toml", 0.05, more="")
    command = [*TESTBED, "mine.toml", "--ray", ray.address, *ROLES, "--seeds", "0", "--quiet", "--out", "out"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        until_s = time.monotonic() + 200
        while not any(True for _ in folder.glob("out/*/*/baseline/seed-0/checkpoint-4/clock.json")):
            assert driver.poll() is None and time.monotonic() < until_s
            time.sleep(0.02)
        victims = [path.parent for path in Path("/proc").glob("[0-9]*/comm") if "ray::DistantRol" in path.read_text()]
        os.kill(int(victims[0].name), signal.SIGKILL)
        assert driver.stderr is not None
        said = driver.stderr.read()
    assert driver.returncode == 1
    assert re.search(r"[ab]/(w0|lps|gs): its process on node 127\.0\.0\.[34] died", said), said
    assert load(only(folder / "out")).results[0].status == "failed"
    done = run("--resume", str(only(folder / "out")), "--ray", ray.address, "--quiet")
    assert done.returncode == 0, done.stderr
    result = load(only(folder / "out")).results[0]
    assert result.status == "finished" and result.steps["step"].tolist() == list(range(8))


@pytest.mark.full
@pytest.mark.slow
def test_a_submitted_job_gives_the_bits_of_home(folder: Path, home: dict[str, bytes], ray: Any) -> None:
    """`ray job submit`: the driver runs on the head, in a copy of the working folder; its results lie outside."""
    pytest.importorskip("aiohttp", reason="the dashboard, which takes jobs, is of ray[default]")
    head = {**node(6, ray.own_data), "num_cpus": 0, "include_dashboard": True, "dashboard_agent_listen_port": 0}
    own = ray_cluster.Cluster(initialize_head=True, head_node_args=head)
    try:
        own.add_node(**node(7, ray.own_data))
        out = folder / "out"
        submit = [sys.executable, "-P", "-m", "ray.scripts.scripts", "job", "submit", "--working-dir", "."]
        job = [*TESTBED, "mine.toml", "--ray", "auto", "--quiet", "--out", str(out)]
        address = f"http://{own.head_node.address_info['webui_url']}"
        until_s = time.monotonic() + 120
        while True:
            done = subprocess.run(
                [*submit, "--address", address, "--", *job], capture_output=True, text=True, timeout=300, check=False
            )
            if "No available agent" not in done.stderr or time.monotonic() > until_s:
                break
            time.sleep(2.0)  # the cluster is not up yet
        assert done.returncode == 0, done.stdout + done.stderr
        assert "(8 of 8)" in done.stdout
        assert recorded(only(out)) == home
    finally:
        own.shutdown()


@pytest.mark.full
@pytest.mark.emulation
def test_emulated_plays_go_one_to_a_node(folder: Path, ray: Any) -> None:
    """Each in a sandbox of its own, on a network that its own gate has checked; what is learned is that of home."""
    if why := FABRICS["mininet"].cannot_run_here():
        pytest.skip(why)
    write(folder / "mine.toml", 0.0, more="")
    large = ray.add_node(**{**node(5, ray.own_data), "num_cpus": 4})  # has the cores for all of them
    words = ["mine.toml", "--ray", ray.address, "--fabric", "mininet", "--set", "compute.device=m60", "--quiet"]
    done = run(*words, "--out", "there")
    ray.remove_node(large)
    assert done.returncode == 0, done.stderr
    assert "(4 of 4)" in done.stdout
    nodes = re.findall(r"done on 127\.0\.0\.(\d)", done.stdout)
    assert len(nodes) == 4 and len(set(nodes)) >= 2 and nodes.count("5") <= 2, "a node has one at a time"
    there = load(only(folder / "there"))
    gates = [json.loads(path.read_text())["gate"]["figures"] for path in there.folder.glob("*/*/node.json")]
    assert len(gates) == 4 and all(figure["ok"] for gate in gates for figure in gate)
    assert len(there.info.gate["figures"]) == sum(map(len, gates))
    page = (there.folder / "report.html").read_text()
    assert all(f"({each.system}, seed {each.seed})" in page for each in there.results), "it shows all gates"
    assert there.info.delay_mechanism in ("netem", "delay-line", "delay line")
    assert any("on a network of its own, on 1 machine." in note for note in there.info.notes)
    assert run(*words[:1], "--fabric", "virtual", *words[5:], "--out", "here").returncode == 0
    here = {(each.system, each.seed): each for each in load(only(folder / "here")).results}
    for result in there.results:
        twin = here[result.system, result.seed]
        assert result.status == "finished" and result.steps["loss"].tolist() == twin.steps["loss"].tolist()
    again = run("--resume", str(only(folder / "there")), "--ray", ray.address)
    assert again.returncode == 0 and "4 of 4" not in again.stdout, "there is nothing left to play"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--fabric", "cluster"], "the cluster fabric plays on the nodes of a Ray cluster; say which with --ray"),
        (["--fabric", "cluster", "--ray", "auto", "--storage", "."], "checkpoints are kept with the run's records"),
        pytest.param(["--ray", "127.0.0.1:1"], "--ray 127.0.0.1:1: no Ray answers there", marks=pytest.mark.slow),
        pytest.param(["--ray", "here"], "--ray here: neither auto nor HOST:PORT", marks=pytest.mark.slow),
        pytest.param(["--ray", "ray://10.0.0.1:10001"], "run this on a node of the cluster", marks=pytest.mark.slow),
        (["--ray", "auto", "--jobs", "2"], "give either --jobs or --ray"),
        (["--storage", "x"], "--storage is for a cluster's nodes: it goes with --ray"),
        (["--ray", "auto", "--fabric", "mininet", "--storage", "."], "what a node has begun begins anew on another"),
        (["--ray", "auto", "--storage", "nowhere"], "--storage nowhere: no such folder"),
        (["--ray", "auto", "--set", "compute.device=measured"], "measured compute times would count each other"),
    ],
)
def test_what_cannot_be_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    (folder / "own.py").write_text("")
    (folder / "mine.toml").write_text(toml(plain()))
    assert main(["run", "mine.toml", *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1
    assert not (folder / "results").exists()
