"""Every system is tuned alike: the same number of trials, on seeds that are not reported, whatever runs beside it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_runs import experiment, plain, start, toml

from testbed.cli.command_line import main
from testbed.errors import InputError
from testbed.experiment.load import from_dict, load
from testbed.experiment.schema import Experiment
from testbed.harness import tune
from testbed.harness.tune import Budget, Outcome
from testbed.record.reader import load as load_run
from testbed.report.numbers.asked import Target
from testbed.report.numbers.reached import judged_s as judged
from testbed.report.numbers.summary import measure
from testbed.systems.protocols.base import Knob

BUDGET = Budget(trials=3, seeds=(100,))


TRAINING: dict[str, Any] = {"steps": 12, "batch_size": 16, "schedule": {"kind": "constant", "rate": 0.02}}


def small(**changes: Any) -> Experiment:
    tables: dict[str, Any] = {
        "systems": {"baseline": {}, "gaia": {}},
        "target": {"loss": 2.25, "window": 2},
        "run": {"seeds": [0, 1], "probe_steps": 2, "probe_images": 50},
        "training": TRAINING,
    }
    return experiment(**{**tables, **changes})


@pytest.mark.full
@pytest.mark.slow
def test_every_system_gets_the_same_number_of_trials_and_the_first_is_as_it_stands(
    small_data: None, tmp_path: Path
) -> None:
    found = tune.tune(small(), "virtual", BUDGET, tmp_path, jobs=1)
    assert {system: len(trials) for system, trials in found.items()} == {"baseline": 3, "gaia": 3}
    assert found["baseline"][0].options == {"rate": 0.02, "momentum": 0.0}
    assert found["gaia"][0].options == {"rate": 0.02, "momentum": 0.0, "threshold": 0.01}
    for trials in found.values():
        assert len({msgspec.json.encode(trial.options) for trial in trials}) == 3
        best = tune.best(trials)
        assert best.score <= trials[0].score
        assert best.reached or not any(trial.reached for trial in trials)


@pytest.mark.parametrize(("target", "images"), [({"loss": 1.7}, 1), ({"loss": 1.7, "accuracy": 0.4}, 50)])
def test_a_trial_tests_on_test_data_only_what_its_target_is_of(target: dict[str, float], images: int) -> None:
    it = small(systems={"baseline": {}}, target=target, run={"probe_images": 50})
    assert tune.attempt(it, "baseline", tune.standing(it, "baseline"), (100,), []).run.eval_images == images


@pytest.mark.slow
def test_a_trial_takes_as_long_to_its_target_as_the_run_that_is_reported(small_data: None, tmp_path: Path) -> None:
    """It ends there, and nothing holds it up before: a system that sends while it computes would lose that."""
    runs = {"seeds": [0], "checkpoint_steps": 80, "probe_steps": 2, "probe_images": 50}
    training = {"steps": 80, "batch_size": 16, "schedule": {"kind": "constant", "rate": 0.1}}
    it = small(systems={"concord": {}}, run=runs, training=training)
    options = tune.standing(it, "concord")
    trying = tune.attempt(it, "concord", options, (100,), before=[])
    tried = tune._play(trying, "virtual", tmp_path / "trial", "concord", options, [])
    reported = msgspec.structs.replace(it.run, seeds=[100])
    whole = load_run(start(msgspec.structs.replace(it, run=reported), tmp_path / "whole"))
    trial = load_run(tmp_path / "trial")
    target = Target.of(whole.info)
    times_s = [float(measure(run, target)["time_to_target_s"].iloc[0]) for run in (trial, whole)]
    assert tried.reached and tried.score == times_s[0] == times_s[1]
    [ended], [went_on] = trial.results, whole.results
    steps = len(ended.steps)
    assert ended.status == "finished" and 2 <= steps < 80
    assert set(ended.probes["images"]) == {1} and set(went_on.probes["images"]) == {50}, "the loss is on as many images"
    by_all = steps - int(ended.steps["workers"].iloc[-1] < 4)  # one may end amid the others' last step
    assert ended.steps["loss"].tolist()[:by_all] == went_on.steps["loss"].tolist()[:by_all]


@pytest.mark.slow
def test_a_trial_ends_when_it_can_only_be_slower_than_the_best_before_it(small_data: None, tmp_path: Path) -> None:
    it = small(systems={"baseline": {}}, training={"steps": 40, "batch_size": 16})
    options = {"rate": 1e-6, "momentum": 0.0}  # never gets there
    whole = tune._play(
        tune.attempt(it, "baseline", options, (100,), []), "virtual", tmp_path / "a", "baseline", options, []
    )
    [result] = load_run(tmp_path / "a").results
    best = Outcome({"rate": 0.1}, float(result.steps["time_s"].iloc[9]), True, "")
    missed = Outcome({"rate": 0.1}, best.score / 2, False, "")  # limits nothing: it reached nothing
    trying = tune.attempt(it, "baseline", options, (100,), [missed, best])
    tried = tune._play(trying, "virtual", tmp_path / "b", "baseline", options, [missed, best])
    [stopped] = load_run(tmp_path / "b").results
    assert len(result.steps) == 40 and 10 <= len(stopped.steps) < 40
    judged_s = [judged(stopped.probes.iloc[:count], it.target.window) for count in (-1, len(stopped.probes))]
    assert judged_s[0] < best.score <= judged_s[1], "as soon as it is known that it cannot have been reached in time"
    assert best.score <= tried.score < whole.score and not tried.reached
    assert tune.attempt(it, "baseline", options, (100, 101), [best]).run.stop_after_s == 2 * best.score


@pytest.mark.slow
def test_a_trial_that_misses_is_worse_than_one_that_reaches_however_soon_it_ends(
    small_data: None, tmp_path: Path
) -> None:
    it = small(systems={"local-sgd": {"local_steps": 50}}, training={"steps": 10, "batch_size": 16})
    options = {"rate": 1e-6, "momentum": 0.0, "local_steps": 50}  # never gets there, and is done at once
    slow = Outcome({"rate": 0.1}, 1e6, True, "")
    trying = tune.attempt(it, "local-sgd", options, (100,), [slow])
    tried = tune._play(trying, "virtual", tmp_path, "local-sgd", options, [slow])
    assert not tried.reached and tried.score >= slow.score
    assert tune.best([Outcome({}, 1.0, False, ""), slow]) == slow


@pytest.mark.slow
@pytest.mark.parametrize("system", ["baseline", "fp16"])
def test_a_trial_that_diverges_is_the_worst_and_the_search_goes_on(
    small_data: None, tmp_path: Path, system: str
) -> None:
    """Whether its codec says so (fp16), or only its losses (the baseline, whose vectors travel as they are)."""
    it = small(systems={system: {}}, training={"steps": 12, "batch_size": 16})
    options = {"rate": 1e6, "momentum": 0.0}
    trial = tune.attempt(it, system, options, (100,), [])
    tried = tune._play(trial, "virtual", tmp_path, system, options, [])
    assert tried.score == tune.NEVER and not tried.reached and "diverged" in tried.said
    assert tune._play(trial, "virtual", tmp_path, system, options, []) == tried, "as well where it was stopped here"


def test_damaged_trials_are_named(tmp_path: Path) -> None:
    (tmp_path / tune.TRIALS_FILE).write_text('{"options": {"rate": 0.1}, "score": "long"}\n')
    with pytest.raises(InputError, match=r"trials\.jsonl: .*score.*; delete it to search again"):
        tune.outcomes(tmp_path)


@pytest.mark.full
@pytest.mark.slow
def test_it_repeats_with_any_number_of_jobs_and_goes_on_where_it_was(small_data: None, tmp_path: Path) -> None:
    one = tune.tune(small(), "virtual", BUDGET, tmp_path / "one", jobs=1)
    half = Budget(trials=2, seeds=BUDGET.seeds)
    tune.tune(small(), "virtual", half, tmp_path / "two", jobs=2)
    for trial in (tmp_path / "two" / "gaia").glob("trial-*/"):  # their file alone tells: another machine has no more
        shutil.rmtree(trial)
    two = tune.tune(small(), "virtual", BUDGET, tmp_path / "two", jobs=2)
    assert two == one
    assert [trial.name for trial in (tmp_path / "two" / "gaia").glob("trial-*/")] == ["trial-2"]


def test_what_is_reported_is_not_tuned_on(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--seeds: 1 is one of run\.seeds; tune on seeds that are not reported"):
        tune.tune(small(), "virtual", Budget(2, (100, 1)), tmp_path, jobs=1)
    with pytest.raises(InputError, match=r"\[target\] names nothing to be reached"):
        tune.tune(small(target={}), "virtual", BUDGET, tmp_path, jobs=1)


def test_what_computes_nothing_is_not_tuned(tmp_path: Path) -> None:
    it = small(compute={"device": "m60", "math": "none"})
    with pytest.raises(InputError, match=r"compute\.math is 'none': no trial could reach a target; leave it out"):
        tune.tune(it, "virtual", BUDGET, tmp_path, jobs=1)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_claimed_only_for_trials_that_can_be(tmp_path: Path) -> None:
    """What is then asked for rightly was refused there."""
    with pytest.raises(InputError, match="--seeds 100,100: a seed is named twice"):
        tune.tune(small(), "virtual", Budget(2, (100, 100)), tmp_path / "twice", jobs=1)
    tune._claim(tmp_path / "other", small(systems={"gaia": {}}), Budget(2, (101,)))
    with pytest.raises(InputError, match="gaia: holds trials of another experiment or on other seeds"):
        tune.tune(small(), "virtual", BUDGET, tmp_path / "other", jobs=1)
    assert not (tmp_path / "twice").exists() and not (tmp_path / "other" / "baseline").exists()


def test_a_folder_of_other_trials_is_not_taken_for_these(tmp_path: Path) -> None:
    it = small()
    tune._claim(tmp_path, it, BUDGET)
    tune._claim(tmp_path, small(systems={"gaia": {}}), Budget(trials=9, seeds=BUDGET.seeds))  # more trials, one system
    for other, budget in ((small(target={"loss": 2.0}), BUDGET), (it, Budget(3, (101,)))):
        with pytest.raises(InputError, match="holds trials of another experiment or on other seeds"):
            tune._claim(tmp_path, other, budget)


def test_a_system_has_its_own_knobs_and_what_it_is_of() -> None:
    it = small(systems={"dgc": {}, "mine": {"of": "diloco", "rate": 0.3}, "weightgrad": {"momentum": 0.5}})
    assert set(tune.knobs(it, "dgc")) == {"rate", "momentum", "sparsity"}
    assert tune.standing(it, "dgc") == {"rate": 0.02, "momentum": 0.9, "sparsity": 0.999}
    assert tune.standing(it, "mine") == {"rate": 0.3, "momentum": 0.0, "local_steps": 20}
    assert tune.standing(it, "weightgrad")["momentum"] in (0.0, 0.9)
    assert tune.knobs(it, "dgc")["rate"] == Knob(low=0.02 / 16, high=0.02 * 16)
    heavy = small(training={**TRAINING, "optimizer": {"kind": "sgd", "momentum": 0.9}})
    assert tune.knobs(heavy, "baseline")["rate"].high == pytest.approx(0.2 * 16)  # in the long run
    adam = small(systems={"baseline": {}}, training={"steps": 4, "batch_size": 16, "optimizer": {"kind": "adam"}})
    assert set(tune.knobs(adam, "baseline")) == {"rate"}


@pytest.mark.parametrize(
    ("system", "optimizer", "lengthens", "times"),
    [
        ("baseline", "sgd", True, 10),
        ("dgc", "sgd", True, 10),
        ("dgc", "adamw", False, 1),  # Adam's step is as long whatever its gradients are multiplied by
        ("ef21", "sgd", False, 10),  # a mean of gradients: as long in the long run at ten times the rate
        ("ef21", "adamw", False, 1),
        ("muloco", "sgd", False, 1),  # Muon's step has a length of its own
        ("demo", "sgd", False, 1),  # signs
    ],
)
def test_a_rate_is_searched_by_what_momentum_makes_of_it(
    system: str, optimizer: str, lengthens: bool, times: int
) -> None:
    heavy: dict[str, Any] = {"kind": optimizer} | ({"momentum": 0.9} if optimizer == "sgd" else {})
    it = small(systems={system: {} if system == "baseline" else {"momentum": 0.9}}, training={"optimizer": heavy})
    assert tune.lengthens(it, system) == lengthens
    assert tune.knobs(it, system)["rate"].high == pytest.approx(it.training.schedule.rate * times * 16)


def test_a_knob_that_is_fixed_stays_as_it_is(tmp_path: Path) -> None:
    long = small(systems={"local-sgd": {"local_steps": 800}})
    assert "local_steps" in tune.knobs(long, "local-sgd")
    assert set(tune.standing(long, "local-sgd", ("local_steps",))) == {"rate", "momentum"}
    tried = tune.attempt(long, "local-sgd", {"rate": 0.3}, (100,), [])
    assert tried.systems["local-sgd"].local_steps == 800
    with pytest.raises(InputError, match=r"--fixed momentum: no system's own knob .*: local_steps$"):
        tune.tune(long, "virtual", Budget(2, (100,), ("momentum",)), tmp_path)
    with pytest.raises(InputError, match=r"--fixed momentum: .* is searched; baseline has none; leave it out$"):
        tune.tune(small(systems={"baseline": {}}), "virtual", Budget(2, (100,), ("momentum",)), tmp_path)
    tune._claim(tmp_path, long, Budget(2, (100,), ("local_steps",)))
    with pytest.raises(InputError, match="holds trials of another"):
        tune._claim(tmp_path, long, Budget(2, (100,)))


def test_a_knob_is_a_choice_or_a_range() -> None:
    assert Knob(choices=(1, 3, 7)).nearest(4) == 3
    assert [Knob(low=1.0, high=10.0).nearest(value) for value in (0.1, 5.0, 99.0)] == [1.0, 5.0, 10.0]


def test_the_file_has_what_was_found_and_can_be_run(small_data: None, tmp_path: Path) -> None:
    it = small(systems={"baseline": {}, "twice": {"of": "fixed-4", "rounding": "nearest"}})
    slow, fast = ({"rate": rate, "momentum": 0.9} for rate in (0.01, 0.5))
    trials = [Outcome(slow, 30.0, True, "loss ≤ 2.25 in 30 s"), Outcome(fast, 20.0, True, "loss ≤ 2.25 in 20 s")]
    text = tune.tuned(it, dict.fromkeys(it.systems, trials), BUDGET, Target(loss=2.25))
    assert "# twice: loss ≤ 2.25 in 20 s; as it stood: loss ≤ 2.25 in 30 s" in text
    read = from_dict(tomllib.loads(text), "tuned.toml")
    assert read.systems["baseline"].rate == 0.5 and read.systems["twice"].rounding == "nearest"
    assert read.kind_of("twice").name == "fixed-4"
    assert msgspec.structs.replace(read, systems=it.systems) == it


def test_the_command_says_what_the_trials_went_by(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = Path("trials", "baseline", tune.TRIALS_FILE)
    done.parent.mkdir(parents=True)
    done.write_bytes(msgspec.json.Encoder().encode_lines([Outcome({"rate": 0.1}, 20.0, True, "loss ≤ 1.5 in 20 s")]))
    monkeypatch.setattr(tune, "tune", lambda it, kind, budget, folder, *more: tune.searched(folder))
    Path("mine.toml").write_text(toml(plain(target={"metric": "loss", "value": 1.5}, systems={"baseline": {}})))
    assert main(["tune", "mine.toml", "--out", "trials"]) == 0
    assert "for the shortest time to loss ≤ 1.5" in Path("mine-tuned.toml").read_text()


@pytest.mark.full
@pytest.mark.slow
def test_the_command_writes_a_file(
    small_data: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = [
        "data.dataset=synthetic",
        "model.name=tiny",
        "training.steps=6",
        "run.probe_images=50",
        "target.loss=2.4",
    ]
    settings = [part for change in [*changes, "target.loss=2.4"] for part in ("--set", change)]
    command = ["tune", "cifarnet", "--systems", "baseline", "--trials", "2", "--jobs", "1", *settings]
    assert main(command) == 0
    assert "written: cifarnet-tuned.toml" in capsys.readouterr().out
    [point] = load("cifarnet-tuned.toml")
    assert list(point.experiment.systems) == ["baseline"]
    assert main([word.replace("baseline", "fp16") for word in command]) == 0  # its picture has both
    known = tune.searched(Path("results/tune/cifarnet"))
    assert {name: len(trials) for name, trials in known.items()} == {"baseline": 2, "fp16": 2}
    assert main([*command, "--seeds", "0"]) == 2
    assert "--seeds: 0 is one of run.seeds" in capsys.readouterr().err


def test_what_a_system_refuses_beside_its_other_options_is_not_searched() -> None:
    it = experiment(systems={"streaming-diloco": {}, "sync": {"of": "streaming-diloco", "overlap_steps": 0}})
    assert tune.knobs(it, "streaming-diloco")["local_steps"].choices == (20, 50)  # of 2 fragments that overlap 5 steps
    assert tune.knobs(it, "sync")["local_steps"].choices == (5, 10, 20, 50)
    assert tune.standing(it, "streaming-diloco")["local_steps"] == 20
