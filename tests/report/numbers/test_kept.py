"""Kept runs say how many steps a system takes, with their interval, and nothing of what they did not do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.report.numbers.kept import Kept, kept_of


def keep(folder: Path, steps: dict[str, list[object]], model: str = "tiny", **periods: int) -> Path:
    """A kept run with the steps to the target of each seed."""
    folder.mkdir(parents=True)
    rows = [f"{name},{seed},{model},{each}" for name, seeds in steps.items() for seed, each in enumerate(seeds)]
    (folder / "summary.csv").write_text("\n".join(["system,seed,model,steps_to_target", *rows]) + "\n")
    systems = {name: {"local_steps": periods[name]} if name in periods else {} for name in steps}
    (folder / "run.json").write_text(json.dumps({"experiment": {"systems": systems}}))
    return folder


def test_steps_are_over_the_baselines_of_the_same_seed(tmp_path: Path) -> None:
    keep(tmp_path / "run", {"baseline": [100, 200], "bgt": [150, 300]})
    kept = kept_of("tiny", tmp_path)
    assert kept.ratios["bgt", 1] == pytest.approx({"ratio": 1.5, "low": 1.5, "high": 1.5})
    assert kept_of("another", tmp_path) == Kept()


def test_the_interval_is_students(tmp_path: Path) -> None:
    keep(tmp_path / "run", {"baseline": [100, 100, 100], "bgt": [90, 100, 110]})
    found = kept_of("tiny", tmp_path).ratios["bgt", 1]
    assert found["ratio"] == pytest.approx(0.9967, abs=1e-3)
    assert (found["low"], found["high"]) == pytest.approx((0.776, 1.280), abs=0.01)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    keep(tmp_path / "run", {"baseline": [100], "bgt": [120]})
    assert kept_of("tiny", tmp_path).ratios["bgt", 1] == {"ratio": pytest.approx(1.2), "low": None, "high": None}


def test_what_did_not_come_to_the_target_is_not_known(tmp_path: Path) -> None:
    keep(tmp_path / "run", {"baseline": [100, 100], "never": [100, ""]})
    assert kept_of("tiny", tmp_path).ratios.keys() == {("baseline", 1)}


def test_a_period_is_known_for_itself_alone(tmp_path: Path) -> None:
    keep(tmp_path / "run", {"baseline": [100], "diloco": [90]}, diloco=20)
    kept = kept_of("tiny", tmp_path)
    assert kept.periods == {20} and ("diloco", 1) not in kept.ratios


def test_what_tables_are_made_of_is_not_quoted(tmp_path: Path) -> None:
    keep(tmp_path / "own" / "records" / "base", {"baseline": [100, 100], "bgt": [120, 120]})
    assert kept_of("tiny", tmp_path) == Kept()


def test_most_seeds_win_and_repeats_with_other_settings_do_not_count(tmp_path: Path) -> None:
    keep(tmp_path / "few", {"baseline": [100], "bgt": [120]})
    many = keep(tmp_path / "many", {"baseline": [100, 100], "bgt": [130, 130]})
    swept = keep(tmp_path / "swept", {"baseline": [100, 100, 100], "bgt": [140] * 3})
    text = (swept / "summary.csv").read_text()
    (swept / "summary.csv").write_text(text + "bgt,0,tiny,150\n")
    assert kept_of("tiny", tmp_path).run == str(many)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.csv", "system,seed,model,steps_to_target\nbaseline,zero,tiny,100\n"),
        ("summary.csv", "system,seed,model,steps_to_target\nbaseline,0,tiny,0\n"),
        ("summary.csv", "seed,model,steps_to_target\n0,tiny,1\n"),
        ("summary.csv", "system,model,steps_to_target\n\0\xff,tiny,1\n"),
        ("run.json", '{"experiment": 3}'),
        ("run.json", '{"experiment": '),
    ],
)
def test_a_kept_run_that_cannot_be_read_is_named(tmp_path: Path, file: str, content: str) -> None:
    folder = keep(tmp_path / "run", {"baseline": [100], "bgt": [120]})
    (folder / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=re.escape(str(folder / file))):
        kept_of("tiny", tmp_path)
