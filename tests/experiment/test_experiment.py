"""The experiment file: everything that can be wrong in it is one line that says where, what, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import PLAIN, plain, toml

from testbed.cli import main
from testbed.errors import InputError
from testbed.experiment import load as experiment_file
from testbed.experiment.schema import Target
from testbed.systems import SYSTEMS
from testbed.systems.terngrad import TernGradOptions
from testbed.wan import profile as profiles

Refuse = Callable[..., str]


@pytest.fixture
def refuse(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refuse:
    """Give a file (its text, or plain data) and options to `testbed run`; returns the one line it ends with."""

    def check(content: str | dict[str, Any] = PLAIN, *options: str) -> str:
        path, out = tmp_path / "mine.toml", tmp_path / "results"
        path.write_text(content if isinstance(content, str) else toml(content))
        code = main(["run", str(path), "--out", str(out), *options])
        stdout, stderr = capfd.readouterr()
        assert code == 2
        assert stdout == ""
        assert not out.exists()
        assert re.fullmatch(r"testbed: error: [^\n]+\n", stderr)
        return stderr.removeprefix("testbed: error: ").rstrip().replace(str(path), "mine.toml")

    return check


# (key.path = value laid over a correct file, what the line says)
WRONG = [
    (
        "training.stepz=3",
        "--set training.stepz: unknown key; did you mean 'training.steps'? known: augment, batch_size",
    ),
    (
        "topolgy.profile=x",
        "--set topolgy: unknown key; did you mean 'topology'? known: cluster, compute, data, faults, model",
    ),
    (
        "training.schedule={kind='constant', rat=1}",
        "--set training.schedule.rat: unknown key; did you mean 'training.schedule.rate'?",
    ),
    (
        "systems.weightgrad.t_locl_s=1",
        "--set systems.weightgrad.t_locl_s: unknown key; did you mean 'systems.weightgrad.t_local_s'?",
    ),
    ("training.steps=0", "--set training.steps is 0: expected int >= 1"),
    ("training.steps=many", "--set training.steps is 'many': expected int, got str"),
    ("training.steps=1.5", "--set training.steps is 1.5: expected int, got float"),
    ("data=[]", "--set data is []: expected object, got array"),
    ("systems.baseline=3", "--set systems.baseline is 3: expected object, got int"),
    ("systems.terngrad.clip=wide", "--set systems.terngrad.clip is 'wide': expected float, got str"),
    (
        "systems.weightgad={}",
        "systems.weightgad: unknown system 'weightgad'; did you mean 'weightgrad'? known: ",
    ),
    (
        "topology.profile=weightgrad",
        "topology.profile: no profile 'weightgrad'; did you mean 'weightgrad-ec2'? known: ",
    ),
    ("topology.regions=['us-west-9']", "topology.regions: profile weightgrad-ec2 has no region 'us-west-9'; did you"),
    ("topology.regions=['us-east-1', 'us-east-1']", "--set topology.regions: a region is named twice"),
    ("topology.regions=[]", "--set topology.regions is []: expected array of length >= 1"),
    ("topology.server_region=mars", "topology.server_region: profile weightgrad-ec2 has no region 'mars'; known: us-"),
    ("topology.workers_per_region=99999", "--set topology.workers_per_region is 99999: expected int <= 16384"),
    ("topology.kind=flat", "mine.toml: systems.weightgrad: topology.kind is 'flat'; it needs 'tree'"),
    ("systems.weightgrad.topology=flat", "mine.toml: systems.weightgrad: its topology is 'flat'; it needs 'tree'"),
    ("systems={allreduce={topology='flat'}}", "systems.allreduce.topology: its workers have no server; leave it out"),
    ("systems.terngrad.topology=ring", "--set systems.terngrad.topology is 'ring'; known: flat"),
    ("network.tcp_window_kb=1", "--set network.tcp_window_kb is 1: expected float >= 1.448"),
    ("network.slowstart=true", "--set network.slowstart: unknown key; did you mean 'network.slow_start'?"),
    ("topology.trace=nowhere.csv", "--set topology.trace: no trace 'nowhere.csv'; known: "),
    ("model.name=tiney", "--set model.name: unknown model 'tiney'; did you mean 'tiny'? known: "),
    ("data.dataset=cifar", "--set data.dataset: unknown data set 'cifar'; did you mean 'cifar10'? known: cifar10"),
    ("data.split=dirichlet", "mine.toml: data.alpha: needed with split = 'dirichlet'"),
    ("data.split=idd", "--set data.split is 'idd'; did you mean 'iid'? known: dirichlet, iid"),
    ("compute.device=m61", "--set compute.device: no device 'm61'; did you mean 'm60'? known: a100,"),
    ("compute.dilation=autoo", "compute.dilation is 'autoo'; did you mean 'auto'? known: a number, auto"),
    ("compute.dilation=0", "--set compute.dilation is 0: expected float > 0.0"),
    ("training.batch_size=18", "training.batch_size is 18; it must be a multiple of the 4 workers, for example 16"),
    (
        "topology.workers_per_region=3",
        "--set topology.workers_per_region: training.batch_size is 16; it must be a multiple of the 6 workers",
    ),
    ("training.schedule={kind='constant', rate=0}", "training.schedule.rate is 0: expected float > 0.0"),
    ("training.schedule.kind=constnt", "training.schedule.kind is 'constnt'; did you mean 'constant'? known: constant"),
    ("training.optimizer.kind=rmsprop", "training.optimizer.kind is 'rmsprop'; known: adam, adamw, sgd"),
    ("training.schedule={rate=1}", "--set training.schedule.kind is missing; it must be set"),
    ("systems.weightgrad.rate=-1", "--set systems.weightgrad.rate is -1: expected float > 0.0"),
    ("systems.weightgrad.aggregate=mean", "systems.weightgrad.aggregate is 'mean'; known: average, serial"),
    (
        "run.fabric=virtuall",
        "run.fabric: unknown fabric 'virtuall'; did you mean 'virtual'? known: auto, cluster, mininet, virtual",
    ),
    ("run.seeds=[]", "--set run.seeds is []: expected array of length >= 1"),
    ("run.seeds=[0, -1]", "--set run.seeds[1] is -1: expected int >= 0"),
    ("run.seeds=[1, 1]", "--set run.seeds: a seed is named twice"),
    ("run.seeds=[18446744073709551616]", "--set run.seeds[0] is 18446744073709551616: it must fit into 64 bits"),
    (
        "model={name='gpt', layer=2}",
        "--set model.layer: unknown key; did you mean 'model.layers'? known: context, dropout, heads",
    ),
    ("model={name='gpt', layers=0}", "--set model.layers is 0: expected int >= 1"),
    ("model={name='gpt', width=30, heads=4}", "--set model.width: 30 cannot be shared by 4 heads"),
    ("model.layers=2", "--set model.layers: unknown key; known: name"),
    ("model.name=my.py:Net", "'my.py:Net' is a file, not the name of a model; bring it with plugins = ["),
    ("data={dataset='text', tokens='word'}", "--set data.tokens is 'word'; known: byte, character"),
    ("target.metric=perplexity", "mine.toml: target.value: needed with metric"),
    ("target={metric='acuracy', value=0.5}", "data set 'synthetic' has no metric 'acuracy'; did you mean 'accuracy'?"),
    ("target.accuracy=1.1", "--set target.accuracy is 1.1: expected float <= 1.0"),
    ("run.link_interval_s=nan", "--set run.link_interval_s is nan: it must be a finite number"),
]


@pytest.mark.parametrize(("override", "line"), WRONG, ids=[override for override, _ in WRONG])
def test_what_is_wrong_is_one_line(refuse: Refuse, override: str, line: str) -> None:
    assert line in refuse(PLAIN, "--set", override)


@pytest.mark.parametrize("table", ["training", "topology", "systems"])
def test_a_missing_table_is_named(refuse: Refuse, table: str) -> None:
    data = {name: value for name, value in PLAIN.items() if name != table}
    assert refuse(data) == f"mine.toml: {table} is missing; it must be set"


def test_a_missing_key_is_named(refuse: Refuse) -> None:
    topology = {key: value for key, value in PLAIN["topology"].items() if key != "server_region"}
    assert refuse({**PLAIN, "topology": topology}) == "mine.toml: topology.server_region is missing; it must be set"


def test_no_systems(refuse: Refuse) -> None:
    assert refuse(plain(systems={})) == f"mine.toml: [systems] is empty; known: {', '.join(sorted(SYSTEMS))}"


def test_not_toml(refuse: Refuse) -> None:
    assert refuse("[training\n").startswith("mine.toml: not valid TOML: Expected")


def test_not_text(refuse: Refuse, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert main(["run", str(tmp_path / "binary.toml")]) == 2
    assert "not a text file" in capfd.readouterr().err


@pytest.mark.parametrize(("name", "line"), [("cifarnett", "did you mean 'cifarnet'?"), ("gone.toml", "known: ")])
def test_no_such_experiment(capfd: pytest.CaptureFixture[str], name: str, line: str) -> None:
    assert main(["run", name]) == 2
    assert f"testbed: error: no experiment '{name}'" in (error := capfd.readouterr().err)
    assert line in error


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("training.steps", "--set training.steps: write it as key.path=value, e.g. training.steps=50"),
        ("=4", "--set =4: write it as key.path=value"),
        ("training.steps.x=4", "--set training.steps.x: steps is not a table"),
    ],
)
def test_a_bad_override(refuse: Refuse, override: str, line: str) -> None:
    assert refuse(PLAIN, "--set", override).startswith(line)


def test_a_table_that_is_none(refuse: Refuse) -> None:
    assert refuse({**PLAIN, "systems": 3}, "--systems", "baseline") == "mine.toml: systems is 3: it must be a table"
    assert refuse({**PLAIN, "run": 3}, "--seeds", "1") == "mine.toml: run is 3: it must be a table"


def test_a_device_that_is_not_there(refuse: Refuse) -> None:
    assert "device 'gpu' is unknown; use cpu" in refuse(PLAIN, "--fabric", "virtual", "--device", "gpu")


def test_results_cannot_lie_in_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml(PLAIN))
    assert main(["run", str(path), "--out", str(path / "results")]) == 2
    assert "is no folder; name another with --out" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("a,b,0,1,s,", "wan.csv:2: goodput_mbit is 0; a rate must be above 0"),
        ("a,b,0.00001,1,s,", "wan.csv:2: goodput_mbit is 1e-05 Mbit/s; a rate must be at least 0.001"),
        ("a,b,fast,1,s,", "wan.csv:2: goodput_mbit is 'fast'; it must be a number"),
        ("a,b,5,-1,s,", "wan.csv:2: rtt_ms is -1; it must not be negative"),
    ],
)
def test_a_wrong_figure_in_the_profile_is_named(refuse: Refuse, tmp_path: Path, row: str, line: str) -> None:
    (tmp_path / "wan.toml").write_text(
        'title = ""\nlan = {goodput_mbit = 1000, rtt_ms = 0.2}\n[sources]\ns = "measured"'
    )
    (tmp_path / "wan.csv").write_text(f"{','.join(profiles.COLUMNS)}\n{row}\nb,a,5,1,s,\n")
    error = refuse(plain(topology={"profile": str(tmp_path / "wan.toml")}))
    assert error.startswith("mine.toml: topology.profile: ")
    assert line in error


def test_a_wrong_rate_in_the_file_itself(refuse: Refuse) -> None:
    training = {"schedule": {"kind": "polynomial", "rate": -0.1}}
    assert refuse(plain(training=training)) == "mine.toml: training.schedule.rate is -0.1: expected float > 0.0"


# What a correct file means


def load(tmp_path: Path, data: dict[str, Any], *args: Any, **more: Any) -> experiment_file.Experiment:
    path = tmp_path / "mine.toml"
    path.write_text(toml(data))
    changes = [experiment_file.parse_changes(each) for each in args]
    [point] = experiment_file.load(str(path), *changes, **more)
    return point.experiment


def test_the_example_says_what_it_is() -> None:
    loaded = experiment_file.load("cifarnet")[0].experiment
    assert list(loaded.systems) == ["baseline", "terngrad", "weightgrad"]
    assert loaded.roles.regions == ("us-west-1", "us-east-1")
    assert len(loaded.roles.workers) == 8
    assert loaded.roles.global_server == "us-east-2/gs"
    assert experiment_file.load("cifarnet", scale="paper")[0].experiment.training.steps == 50_000


def test_left_out_tables_have_defaults(tmp_path: Path) -> None:
    data = {name: PLAIN[name] for name in ("topology", "training", "systems")}
    loaded = load(tmp_path, data)
    assert (loaded.model.name, loaded.data.dataset, loaded.compute.device) == ("cifarnet", "cifar10", "auto")
    assert loaded.run.seeds == [0]


SCALED = {**PLAIN, "scale": {"large": {"training": {"steps": 90}, "run": {"checkpoint_steps": 30}}}}


def test_a_scale_changes_only_what_it_names(tmp_path: Path) -> None:
    assert load(tmp_path, SCALED).training.steps == 8
    large = load(tmp_path, SCALED, scale="large")
    assert (large.training.steps, large.training.batch_size, large.run.checkpoint_steps) == (90, 16, 30)


def test_an_override_wins_over_a_scale_and_the_last_one_over_all(tmp_path: Path) -> None:
    overrides = ["training.steps=70", "training.steps=71", "title=a = b"]
    loaded = load(tmp_path, SCALED, overrides, scale="large")
    assert (loaded.training.steps, loaded.title, loaded.run.checkpoint_steps) == (71, "a = b", 30)


@pytest.mark.parametrize(
    ("scale", "line"),
    [
        (
            {"large": {"training": {"stepz": 1}}},
            "unknown key 'scale.large.training.stepz'; did you mean 'scale.large.training.steps'?",
        ),
        ({"large": 3}, "scale.large is 3: it must be a table"),
        (3, "scale is 3: it must be a table"),
    ],
)
def test_a_wrong_scale_is_found_even_when_it_is_not_taken(refuse: Refuse, scale: Any, line: str) -> None:
    assert line in refuse({**PLAIN, "scale": scale})


@pytest.mark.parametrize(("table", "scale"), [("model", {"name": "tiny"}), ("data", {"split": "iid"})])
def test_what_a_scale_is_to_be_laid_over_must_be_a_table(refuse: Refuse, table: str, scale: dict[str, str]) -> None:
    data = {**PLAIN, table: "cifarnet", "scale": {"paper": {table: scale}}}
    assert refuse(data) == f"mine.toml: {table} is 'cifarnet': it must be a table"


def test_no_such_scale(refuse: Refuse) -> None:
    assert "no [scale.lagre]; did you mean 'large'? known: large" in refuse(SCALED, "--scale", "lagre")
    assert refuse(PLAIN, "--scale", "paper") == "mine.toml: no [scale.paper] or any other"


def test_systems_and_seeds_can_be_selected(tmp_path: Path) -> None:
    data = plain(systems={"baseline": {}, "terngrad": {"clip": 3.0}})
    loaded = load(tmp_path, data, systems=["weightgrad", "terngrad"], seeds=[4, 5])
    assert list(loaded.systems) == ["weightgrad", "terngrad"]
    assert loaded.systems["terngrad"] == TernGradOptions(clip=3.0)
    assert loaded.run.seeds == [4, 5]


def test_an_unknown_system_can_not_be_selected(refuse: Refuse) -> None:
    said = refuse(PLAIN, "--systems", "basline")
    assert said.startswith("systems: unknown system 'basline'; did you mean 'baseline'?")


def test_as_dict_and_from_dict_are_inverse(tmp_path: Path) -> None:
    training = {
        "optimizer": {"kind": "adam", "beta1": 0.8},
        "schedule": {"kind": "staircase", "rate": 0.2},
        "ema_decay": 0.99,
    }
    loaded = load(tmp_path, plain(training=training, data={"split": "dirichlet", "alpha": 0.5}))
    assert experiment_file.from_dict(loaded.as_dict(), "again") == loaded


def test_a_models_and_a_data_sets_options_are_read_with_them_and_kept(tmp_path: Path) -> None:
    parts = {"model": {"name": "gpt", "layers": 2, "width": 32}, "data": {"dataset": "text", "tokens": "byte"}}
    loaded = load(tmp_path, plain(**parts))
    assert (loaded.model.layers, loaded.model.heads, loaded.data.tokens, loaded.data.split) == (2, 4, "byte", "iid")
    assert loaded.as_dict()["model"] == {
        "name": "gpt", "layers": 2, "heads": 4, "width": 32, "context": 128, "dropout": 0.0,
    }  # fmt: skip
    assert experiment_file.from_dict(loaded.as_dict(), "again") == loaded


def test_what_has_no_options_is_recorded_as_before(tmp_path: Path) -> None:
    recorded = load(tmp_path, plain(target={"loss": 1.0})).as_dict()
    assert recorded["model"] == {"name": "tiny"}
    assert recorded["data"] == {"dataset": "synthetic", "split": "iid", "alpha": None}
    assert recorded["target"] == {"loss": 1.0, "accuracy": None, "window": 10}


def test_a_scale_changes_the_options_of_the_files_own_model(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = toml(plain(model={"name": "gpt"}, data={"dataset": "text"}))
    path.write_text(text + "[scale.deep.model]\nlayers = 9\n")
    assert experiment_file.load(str(path), scale="deep")[0].experiment.model.layers == 9
    path.write_text(text + "[scale.deep.model]\nlayer = 9\n")
    with pytest.raises(
        InputError, match=r"unknown key 'scale\.deep\.model\.layer'; did you mean 'scale.deep.model.layers'"
    ):
        experiment_file.load(str(path))


def test_errors_of_a_library_call_name_their_source() -> None:
    with pytest.raises(InputError, match=r"^run\.json: training\.steps is 0: "):
        experiment_file.from_dict(plain(training={"steps": 0}), "run.json")


def test_the_target_is_that_of_the_data_or_of_the_stand_in() -> None:
    both = Target(accuracy=0.7, window=20, model="ema", stand_in_loss=2.2)
    assert both.on(real=True) == Target(accuracy=0.7, window=20, model="ema")
    assert both.on(real=False) == Target(loss=2.2, window=20, model="ema")
    for real in (True, False):
        assert Target(loss=1.9).on(real) == Target(loss=1.9)


@pytest.mark.parametrize(
    ("changes", "scale", "loss"),
    [
        ({}, "", 2.2),
        ({"target.loss": 1.7}, "", 1.7),
        ({"target.stand_in_loss": 2.0, "target.loss": 1.7}, "", 2.0),
        ({"target.window": 20}, "", 2.2),
        ({}, "paper", 0.8),
    ],
)
def test_a_target_that_is_stated_anew_is_one_for_the_stand_in_too(
    changes: dict[str, float], scale: str, loss: float
) -> None:
    (point,) = experiment_file.load("cifarnet", changes, scale=scale)
    assert point.experiment.target.on(real=False).loss == loss


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("..", "the name '..' is no plain name"),
        (".", "the name '.' is no plain name"),
        ("", "the name '' is no plain name"),
        ("../esc", "'/' in a name that records are kept under"),
        ("a b", "' ' in a name that records are kept under"),
        ("x" * 300, "is a name of 300 bytes; 255 are possible"),
    ],
)
def test_a_table_of_a_system_is_called_as_a_folder_can_be(name: str, line: str) -> None:
    with pytest.raises(InputError, match=rf"^test\.toml: systems\..*{re.escape(line)}"):
        experiment_file.from_dict(plain(systems={"baseline": {}, name: {"of": "baseline"}}), "test.toml")
