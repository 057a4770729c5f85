"""`testbed plan` answers what a run would have shown, and says what it cannot know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from small_runs import PLAIN, each_system, experiment, start

from testbed.cli.command_line import main
from testbed.errors import InputError
from testbed.experiment.load import from_dict
from testbed.experiment.schema import Experiment
from testbed.harness import candidates
from testbed.harness import plan as plans
from testbed.report.numbers.summary import read

SYSTEMS: dict[str, Any] = {"baseline": {}, "fp16": {}, "terngrad": {}, "diloco": {"local_steps": 4}}
RINGS: dict[str, Any] = {
    "hierarchical-allreduce": {"ahead": 0},
    "allreduce": {"ahead": 0},
    "local-sgd": {"local_steps": 10, "ahead": 0},
}
QUESTION = ["plan", "--gradient", "1.3GB", "--step-time", "0.8", "--regions", "us-west-1,eu-west-1,ap-southeast-1"]


def asked(systems: dict[str, Any] = SYSTEMS, parameters: int = 10_000_000, **topology: Any) -> Experiment:
    data = {
        "topology": {
            "profile": "weightgrad-ec2",
            "regions": ["us-west-1", "us-east-1"],
            "server_region": "us-east-2",
            "workers_per_region": 2,
            **topology,
        },
        "model": {"name": "vector", "parameters": parameters, "forward_gflop": 2000.0},
        "training": {"steps": 1000, "batch_size": 2 * topology.get("workers_per_region", 2)},
        "compute": {"device": "a100", "math": "none"},
        "systems": systems,
        "run": {"fabric": "virtual", "link_interval_s": 1e9},
    }
    return from_dict(data, "test.toml")


def played_step_s(it: Experiment, system: str, steps: int, folder: Path) -> float:
    """Of a timing-only run."""
    data = it.as_dict()
    data["training"]["steps"], data["run"]["checkpoint_steps"] = steps, steps
    data["systems"] = {system: data["systems"][system]}
    _, frame = read(start(from_dict(data, "test.toml"), folder))
    return float(frame["mean_step_s"].iloc[0])


@pytest.mark.parametrize("system", each_system(["baseline", "fp16", "terngrad"], "terngrad"))
def test_a_step_takes_what_it_takes_in_a_run(system: str, tmp_path: Path) -> None:
    it = asked()
    (option,) = [each for each in plans.ask(it, {}).options if each.name == system]
    assert option.step_s == pytest.approx(played_step_s(it, system, 20, tmp_path), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["hierarchical-allreduce", "allreduce"])
def test_a_step_of_rings_takes_what_it_takes_in_a_run(system: str, tmp_path: Path) -> None:
    it = asked(RINGS, workers_per_region=3)
    (option,) = [each for each in plans.ask(it, {}).options if each.name == system]
    assert option.step_s == pytest.approx(played_step_s(it, system, 20, tmp_path), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["diloco", "local-sgd"])
@pytest.mark.parametrize("period", [10, 40])
def test_any_period_follows_from_one(period: int, system: str, tmp_path: Path) -> None:
    options = plans.ask(asked(SYSTEMS | RINGS), {}, [period]).options
    (option,) = [each for each in options if each.name == system]
    longer = asked({system: {**(SYSTEMS | RINGS)[system], "local_steps": period}})
    assert option.step_s == pytest.approx(played_step_s(longer, system, 30 * period, tmp_path), rel=0.01)


def test_where_the_lan_holds_a_server_up_rings_are_recommended() -> None:
    rings = {"hierarchical-allreduce": RINGS["hierarchical-allreduce"]}
    plan = plans.ask(asked({"baseline": {}, **rings}, workers_per_region=32, lan_mbit=1e3), candidates.candidates())
    baseline, hierarchical = plan.options
    assert baseline.step_s > 5 * hierarchical.step_s
    found = plan.recommended(hierarchical.share)
    assert found is not None and found.name == "hierarchical-allreduce"


@pytest.mark.slow
def test_a_ring_of_many_is_left_out_unless_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert candidates.too_long(candidates.candidates(), candidates.LONGEST_RING) == ()
    assert main([*QUESTION, "--workers", "9", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    systems = {row["system"] for row in answer["systems"]}
    assert "hierarchical-allreduce" in systems and not systems & {"allreduce", "local-sgd"}
    assert any("Left out: allreduce, local-sgd" in note for note in answer["notes"])


def test_systems_that_are_not_on_the_short_list_are_said_to_be_left_out() -> None:
    short = candidates.unlisted(candidates.candidates())
    assert {"weightgrad", "dgc"} < set(short) and not set(short) & {"baseline", "diloco"}
    [note] = candidates.LeftOut(short).notes
    assert note.startswith(f"Left out: {', '.join(short)};") and "--systems names others" in note


@pytest.mark.slow
def test_what_is_not_sent_in_every_step_is_measured_over_many() -> None:
    it = asked({"weightgrad": {"t_s": 1.0}})
    often, seldom = (
        plans.ask(
            msgspec.structs.replace(it, compute=msgspec.structs.replace(it.compute, sizes={"weightgrad": part})), {}
        )
        for part in (0.4, 0.1)
    )
    assert often.options[0].step_bytes > 2 * seldom.options[0].step_bytes > 1e4


@pytest.mark.slow
def test_the_rate_that_a_share_needs_gives_that_share() -> None:
    plan = plans.ask(asked(lan_mbit=1e5), {})
    for option in plan.options:
        factor = option.rate_for(0.2)
        assert option.at_rate(factor) == pytest.approx(0.2)
        there = plans.ask(plans.altered(plan.experiment, wan_factor=factor), {})
        (found,) = [each for each in there.options if each.name == option.name]
        assert found.share == pytest.approx(0.2, rel=0.1)


def test_the_first_that_has_the_share_is_recommended() -> None:
    plan = plans.ask(asked(lan_mbit=1e5), {})
    shares = {option.name: option.share for option in plan.options}
    assert shares["baseline"] < shares["fp16"] < shares["terngrad"]
    found = plan.recommended(shares["fp16"])
    assert found is not None and found.name == "fp16"
    longer = plan.recommended(0.99 * plan.options[-1].every(plans.LONGEST).share)
    assert longer is not None and longer.name == "diloco" and 1 < longer.period <= plans.LONGEST
    assert longer.share >= 0.99 * plan.options[-1].every(plans.LONGEST).share
    assert longer.every(longer.period - 1).share < longer.share
    assert plan.recommended(0.999) is None


def test_in_whatever_order_systems_are_named_the_least_departure_is_recommended() -> None:
    named: dict[str, Any] = {"mine": {"of": "fp16"}} | dict(reversed(SYSTEMS.items()))
    plan = plans.ask(asked(named, lan_mbit=1e5), candidates.candidates())
    assert [option.name for option in plan.options] == [*SYSTEMS, "mine"], "one that is not known comes last"
    found = plan.recommended(min(option.share for option in plan.options))
    assert found is not None and found.name == "baseline"


def test_bytes_and_prices_are_of_the_links() -> None:
    (baseline, *_) = plans.ask(asked(), {}).options
    up = [size for link, size in baseline.here.sync_bytes.items() if link.endswith(">us-east-2")]
    assert up == pytest.approx([4e7 * 1514 / 1448] * 2, rel=0.001)
    assert baseline.day_usd > 0
    assert sum(baseline.day_bytes.values()) == pytest.approx(baseline.step_bytes * plans.DAY_S / baseline.step_s)


def test_sizes_that_nobody_knows_are_refused(small_data: None) -> None:
    with pytest.raises(InputError, match="dgc: how large its messages are"):
        plans.ask(experiment(systems={"dgc": {}}, compute={"device": "m60", "math": "none"}), {})


def test_of_a_file_systems_with_sizes_that_nobody_knows_are_left_out(
    small_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(tomli_w.dumps({**PLAIN, "systems": {"baseline": {}, "dgc": {}, "gaia": {}}}))
    assert main(["plan", str(file), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [row["system"] for row in answer["systems"]] == ["baseline"]
    assert any("Left out: dgc, gaia" in note and "--sizes" in note for note in answer["notes"])
    assert main(["plan", str(file), "--sizes", "dgc=0.01", "--json"]) == 0
    assert [row["system"] for row in json.loads(capsys.readouterr().out)["systems"]] == ["baseline", "dgc"]
    assert main(["plan", str(file), "--sizes", "dcg=0.01"]) == 2
    assert "--sizes compute.sizes: no system 'dcg' here; did you mean 'dgc'?" in capsys.readouterr().err
    assert main(["plan", str(file), "--systems", "dgc"]) == 2
    assert "dgc: how large its messages are" in capsys.readouterr().err


@pytest.mark.slow
def test_the_question_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION, "--share", "0.5", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "profile skyplane-22" in said and "global server in" in said
    assert "For 50 % of a step computing: 1-bit SGD" in said
    assert "With half the WAN's rate it would be" in said and "A gradient of 1.30 GB" in said
    assert "not known for this model" in said
    answer = json.loads((tmp_path / "plan.json").read_text())
    assert answer["asked"]["parameters"] == 325_000_000 and answer["asked"]["gradient_s"] == pytest.approx(0.8)
    assert {row["system"] for row in answer["systems"]} == set(candidates.candidates())
    links = answer["asked"]["wan_mbit"]
    assert all(
        row["day_bytes"].keys() <= links.keys() == row["day_usd"].keys() | links.keys() for row in answer["systems"]
    )
    assert answer["recommended"]["0.5"]["bits"] == 1 and answer["recommended"]["0.5"]["period"] == 1
    assert answer["recommended"]["0.95"]["system"] == "local-sgd"
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    page = (tmp_path / "plan.html").read_text()
    assert "us-west-1&gt;eu-west-1" in page and "http" not in page.partition("<body>")[2]


@pytest.mark.slow
def test_it_prints_json_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"].keys() == {"0.5", "0.75", "0.9", "0.95"}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        (["--regions", "us-west-1,mars-1"], "--regions: no profile has a region 'mars-1'"),
        (["--gradient", "0GB"], "--gradient 0GB: a model has 1 to 100,000,000,000,000 parameters"),
        (["--gradient", "1PB"], "--gradient 1PB: a model has 1 to 100,000,000,000,000 parameters"),
        (["--gradient", "1e999GB"], "--gradient '1e999GB': that is more than any model has"),
        (["--gradient", "big"], "--gradient 'big': a number and its unit is needed, e.g. 1.3GB"),
        (["--parameters", "1M"], "name what is trained by one of --gradient, --parameters and --model"),
        (["--step-time", "0"], "--step-time 0: a local step takes more than 0 s"),
        (["--regions", "us-west-1,us-west-1"], "a region is named twice"),
        (["--regions", ""], "name the regions, e.g. --regions us-west-1"),
        (["--lan", "0"], "lan_mbit is 0.0"),
        pytest.param(["--out", "/dev/null/plan"], "/dev/null/plan: cannot be made", marks=pytest.mark.slow),
        (["--share", "90"], "--share 90: a part of a step above 0 and below 1"),
        (["--systems", "dgc"], "dgc: how large its messages are"),
        (["--profile", "nowhere"], "nowhere"),
        (["--server", "mars-1"], "mars-1"),
        (["--device", "h1000"], "no device 'h1000'"),
        (["--scale", "paper"], "--scale paper: it is a table of an experiment file; name the file as well"),
        (["--set", "topology.lan_mbit=10", "--lan", "1000"], "topology.lan_mbit is given by --set and by --lan: which"),
        (["--set", "topology.regions=us-west-1"], "topology.regions is given by --set and by --regions: which of them"),
    ],
)
def test_what_cannot_be_is_one_line(changed: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION, *changed]) == 2
    said = capsys.readouterr().err.strip()
    assert line in said and "\n" not in said


def test_where_no_rate_helps_the_round_trips_may_be_why(capsys: pytest.CaptureFixture[str]) -> None:
    question = [*QUESTION, "--gradient", "40MB", "--step-time", "0.5", "--regions", "us-west-1,us-east-1"]
    question += ["--systems", "baseline"]
    assert main(question) == 0
    none = "For 90 % of a step computing: none of these, whatever the WAN's rate; its round trips, the LAN and coding"
    assert none in capsys.readouterr().out.replace("\n", " ")
    assert main([*question, "--set", "topology.rtt_factor=0.01"]) == 0
    assert "Baseline would have it at 3." in capsys.readouterr().out


def test_what_an_experiment_says_itself_is_not_asked_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cifarnet", "--workers", "64"]) == 2
    assert "--workers cannot go with an experiment file, which says so itself" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "option"),
    [
        ("compute.device=a100", ["--device", "m60"]),
        ("topology.lan_mbit=10", ["--lan", "1000"]),
        ("training.batch_size=64", ["--batch", "128"]),
        ("topology.profile=lan", ["--profile", "skyplane-22"]),
    ],
)
def test_what_is_asked_for_twice_is_not_chosen_from(
    key: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "cifarnet", "--set", key, *option]) == 2
    assert f"{key.partition('=')[0]} is given by --set and by {option[0]}: which of them?" in capsys.readouterr().err


def test_a_size_says_nothing_of_how_long_a_gradient_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word for word in QUESTION if word not in ("--step-time", "0.8")]) == 2
    assert "--gradient says nothing of how long a gradient takes: give --step-time" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet", "gpt"])
def test_a_model_of_other_data_than_the_default_is_planned(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    rest = [word for word in QUESTION[1:] if word not in ("--gradient", "1.3GB")]
    assert main(["plan", "--model", model, *rest, "--systems", "baseline,fp16"]) == 0
    assert capsys.readouterr().out.startswith(model)


@pytest.mark.slow
def test_of_one_region_there_is_no_wan_to_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUESTION, "--regions", "us-west-1", "--workers", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["asked"]["wan_mbit"] == {} and all(not row["day_bytes"] for row in answer["systems"])


@pytest.mark.slow
def test_an_experiment_answers_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cifarnet", "--sizes", "weightgrad=0.1"]) == 0
    said = capsys.readouterr().out
    assert "WeightGrad" in said and "profile weightgrad-ec2" in said
    assert main(["plan", "cifarnet", "--gradient", "1GB"]) == 2
    assert "--gradient cannot go with an experiment file" in capsys.readouterr().err
