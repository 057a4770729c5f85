"""What is played for the map of our own system: who, for how many steps, and what is not played again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from own_grid import GRID, MAP, PLAYS, TUNED, rows


@pytest.mark.slow
def test_what_is_known_is_written_after_each_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one takes hours, and may be stopped."""
    found, stopped = rows("m60", "concord", 1.0, 1.0) + rows("m60", "bgt", 2.0, 2.0), "own"

    def measured(plan: Any, workload: str) -> list[pd.DataFrame]:
        if workload == stopped:
            raise KeyboardInterrupt
        return [pd.DataFrame(found).assign(workload=workload)]

    def finals(plan: Any, workload: str, systems: pd.DataFrame, cells: pd.DataFrame) -> pd.DataFrame:
        ends = [
            {"system": name, "seed": seed, "steps": 9, "metric": 0.5} for name in ("concord", "bgt") for seed in (0, 1)
        ]
        return pd.DataFrame(ends).assign(workload=workload, final_loss=1.0, alike="steps", held_s=3.0, device="m60")

    scope = GRID["main"].__globals__
    monkeypatch.setitem(scope, "measured", measured)
    monkeypatch.setitem(scope, "finals", finals)
    monkeypatch.setattr("sys.argv", ["own_grid", "--workloads", "own-gpt,own", "--out", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        GRID["main"]()
    assert pd.read_csv(tmp_path / "grid.csv")["speedup"].tolist() == [2.0, 2.0]
    assert "own-gpt, m60, as many steps" in (tmp_path / "grid.md").read_text()
    stopped = ""
    monkeypatch.setattr("sys.argv", ["own_grid", "--workloads", "own", "--out", str(tmp_path)])
    monkeypatch.setitem(scope, "wholes", lambda *_: pd.DataFrame())
    GRID["main"]()
    for name in ("systems", "finals", "grid"):  # what is known of the rest stays
        assert list(pd.read_csv(tmp_path / f"{name}.csv")["workload"].unique()) == ["own", "own-gpt"]


def test_a_workload_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["own_grid", "--workloads", "own-gtp", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        GRID["main"]()
    assert "no workload 'own-gtp'; known: own, own-gpt" in capsys.readouterr().err


def test_who_averages_seldom_has_twice_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, tuple[Any, ...]] = {}
    file = tmp_path / "own.toml"
    seldom = "\n[systems.local-sgd-800]\nof = 'local-sgd'\nlocal_steps = 800\n"
    file.write_text(TUNED.find("own").read_text() + seldom)
    scope = GRID["main"].__globals__
    monkeypatch.setitem(scope, "tuned", lambda plan, workload: str(file))
    monkeypatch.setitem(
        scope, "played", lambda plan, folder, file, systems, *words: asked.update({folder.name: ([*systems], *words)})
    )
    both = pd.MultiIndex.from_product([["local-sgd", "diloco"], [0, 1]], names=["system", "seed"])
    monkeypatch.setitem(scope, "steps_needed", lambda run: pd.DataFrame({"steps": 9.0}, index=both))
    base = GRID["Base"].of(GRID["Plan"](("lan",), ("m60",), ("own",), (), ("0", "1"), (), 8, tmp_path), "own")
    kinds = ["", "-again", "-by-long-run", "-flat", "-late", "-more", "-seldom", "-workers"]
    assert list(asked) == [f"base{kind}" for kind in kinds]
    assert asked["base-flat"][0] == ["muloco-flat"]
    assert asked["base-more"][0] == ["sparseloco-flat", "cocod-flat"]
    assert asked["base-workers"][0] == ["streaming-diloco-workers", "local-sgd-4-bits"]
    assert base.overlapping == ["concord", "weightgrad", "deco"]
    again = set(asked["base-again"][0])
    assert again == {"local-sgd", "hierarchical-local-sgd"}
    assert base.kinds["-again"].periods["hierarchical-local-sgd"] == 200  # ten rounds of twenty steps
    assert {"baseline", "diloco"} < (first := set(asked["base"][0])) and base.regions == 2
    assert not first & again
    assert set(base.kinds[""].needed.index.unique("system")) == {"diloco"}, "of the others older plays are left out"
    assert asked["base-seldom"][0] == ["local-sgd-800"] and "training.steps=3200" in asked["base-seldom"]
    assert not any(word.startswith("training.steps") for word in asked["base"][1:])


@pytest.mark.parametrize(
    ("with_four_s", "played", "best_s"),
    [
        ({"diloco": 3.0}, ["diloco"], 3.0),  # still the first
        ({"diloco": 5.0, "cocod": 4.5}, ["diloco", "cocod"], 4.5),  # before DiLoCo and BGT
        ({"diloco": 9.0, "cocod": None}, ["diloco", "cocod"], 6.0),  # WeightGrad, which is played in each cell anyway
    ],
)
def test_the_best_other_is_played_with_as_many_regions_as_a_cell_has(
    with_four_s: dict[str, float | None],
    played: list[str],
    best_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch in more parts takes those more steps whose workers train each by itself: fewer regions say how few."""
    columns = ["system", "seed", "target_s", "held_s"]
    with_two = {"diloco": 2.0, "cocod": 4.0, "bgt": 7.0}
    others = pd.DataFrame([(name, 0, at_s, at_s) for name, at_s in with_two.items()], columns=columns)
    names: list[str] = []

    def others_in(plan: Any, folder: Path, file: str, periods: dict[str, int], *rest: Any) -> str:
        assert 'topology.profile="skyplane-22"' in rest
        names.append(folder.name.removeprefix("base-4-regions-"))
        return names[-1]

    def timed(cell: Any, folder: str, known: str) -> pd.DataFrame:
        return pd.DataFrame([(known, 0, with_four_s[known], with_four_s[known])], columns=columns)

    known = GRID["Others"](SimpleNamespace(folder=tmp_path), pd.DataFrame(), dict.fromkeys(with_two, 0), [])
    base = GRID["Base"]("own.toml", {"": known}, ["concord", "weightgrad"], 400, 2, "m60")
    plan = GRID["Plan"](("skyplane-22",), ("l40s",), ("own",), (), ("0",), (), 8, tmp_path)
    monkeypatch.setitem(GRID["main"].__globals__, "others_in", others_in)
    monkeypatch.setattr(GRID["Cell"], "_timed", timed)
    overlapping = pd.DataFrame([("weightgrad", 0, 6.0, 6.0)], columns=columns)
    found = GRID["Cell"](plan, "own", base, "skyplane-22", "l40s")._confirmed(others, [overlapping])
    assert names == played
    assert GRID["ahead"](pd.concat([overlapping, found]), "held_s").min() == pytest.approx(best_s)
    assert sorted(found["system"]) == sorted(with_two)


@pytest.mark.parametrize(
    ("others_s", "first_s", "asked"),
    [
        ((3.0, 5.0), None, [("deco-first", "0", "run.stop_after_s=5")]),
        ((3.0, 5.0), 2.0, [("deco-first", "0", "run.stop_after_s=5"), ("deco", "0,1", "run.stop_after_s=5")]),
        ((None, None), 2.0, [("deco-first", "0", ""), ("deco", "0,1", "")]),  # nobody else arrives
    ],
)
def test_who_is_late_is_played_no_longer_than_the_best_takes_and_again_where_it_is_there(
    others_s: tuple[float | None, float | None],
    first_s: float | None,
    asked: list[tuple[str, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who misses with one seed is not the best. Held by every worker the best's model is later than reported."""
    plays: list[tuple[str, str, str]] = []

    def play(plan: Any, folder: Path, file: str, systems: Sequence[str], *words: str, alone: bool) -> Any:
        assert systems == ["deco"]
        limit = next((word for word in words if word.startswith("run.stop")), "")
        plays.append((folder.name, words[words.index("--seeds") + 1], limit))
        return SimpleNamespace(summary=pd.DataFrame({"time_to_target_s": [first_s]}), folder=folder)

    monkeypatch.setitem(GRID["main"].__globals__, "played", play)
    monkeypatch.setitem(GRID["main"].__globals__, "of_played", lambda run, closing_s: run.summary)
    target_s, held_s = others_s
    known = pd.DataFrame({"system": "bgt", "seed": [0, 1], "target_s": target_s, "held_s": held_s})
    base = GRID["Base"]("own.toml", {}, ["concord", "weightgrad", "deco"], 400, 2, "m60")
    plan = GRID["Plan"](("lan",), ("m60",), ("own",), (), ("0", "1"), (), 8, tmp_path)
    assert len(GRID["Cell"](plan, "own", base, "lan", "m60")._late(known)) == 1
    assert plays == asked


@pytest.mark.parametrize(
    ("name", "there_at", "other_s", "more"),
    [
        ("weightgrad", 400, 3.0, []),
        ("weightgrad", 1200, 9.0, [600, 800, 1200]),
        ("weightgrad", 1200, 1.4, [600]),  # whose 1.5 s are more than that
        ("weightgrad", 9999, None, [600, 800, 1200, 1600, 2400, 3200]),
        ("concord", 1200, 1.4, [600, 800, 1200]),  # of ours it is told how late it is
    ],
)
def test_who_overlaps_has_as_many_steps_as_it_makes_in_the_time_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, there_at: int, other_s: float | None, more: list[int]
) -> None:
    """400 steps take it a second; it is at the target only in a run of `there_at` steps or more."""
    names: list[str] = []

    def play(plan: Any, folder: Path, file: str, systems: Sequence[str], *words: str, alone: bool) -> Any:
        names.append(folder.name)
        steps = int(next((word[15:] for word in words if word.startswith("training.steps=")), 400))
        summary = pd.DataFrame({"time_to_target_s": [1.0, 1.0 if steps >= there_at else None], "time_s": steps / 400})
        return SimpleNamespace(summary=summary, folder=folder)

    others = pd.DataFrame({"system": "baseline", "seed": [0, 1], "target_s": [other_s, other_s]})
    for fake, found in {"of_others": others, "of_played": others, "needed_by": 9, "closing": 0.1}.items():
        monkeypatch.setitem(GRID["main"].__globals__, fake, lambda *_, found=found: found)
    monkeypatch.setitem(GRID["main"].__globals__, "played", play)
    known = GRID["Others"](SimpleNamespace(folder=tmp_path), pd.DataFrame({"steps": [9.0]}), {"baseline": 0}, [])
    none_arrives = GRID["Others"](SimpleNamespace(folder=tmp_path), pd.DataFrame({"steps": []}), {"cocod-800": 800}, [])
    base = GRID["Base"]("own.toml", {"": known, "-seldom": none_arrives}, [name], 400, 2, "m60")
    plan = GRID["Plan"](("lan",), ("m60",), ("own",), (), ("0", "1"), (), 8, tmp_path)
    GRID["Cell"](plan, "own", base, "lan", "m60").measured()
    assert names == [
        name,
        "timed",
        *(f"{name}-{steps}-steps" for steps in more),
        *(["end"] if name == "concord" else []),
    ]


def test_a_play_of_a_system_that_was_searched_again_since_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, told = tmp_path / "own.toml", TUNED.find("own").read_text()
    file.write_text(told)
    experiment = TUNED.load(str(file))[0].experiment.as_dict()
    run = SimpleNamespace(info=SimpleNamespace(experiment=experiment), folder=tmp_path)
    monkeypatch.setattr(PLAYS, "newest", lambda folder: run)
    monkeypatch.setattr(PLAYS, "is_done", lambda run: True)
    file.write_text(told.replace("[systems.ef21]", "[systems.ef21]\nkept = 0.1"))

    def play(*systems: str, changes: tuple[str, ...] = ()) -> Any:
        plan = GRID["Plan"](("lan",), ("m60",), ("own",), (), ("0",), changes, 8, tmp_path)
        return GRID["played"](plan, tmp_path, str(file), systems)

    assert play("baseline") is run, "what has not changed stays"
    with pytest.raises(SystemExit, match=r"ef21: not with what .*own.toml says now; delete the folder"):
        play("baseline", "ef21")
    assert play("ef21", changes=("systems.ef21.kept=0.001",)) is run, "it was asked for"


def test_final_metrics_are_of_the_file_s_own_device_and_of_the_fastest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Till every worker holds the model: Local SGD, which ends 400 steps between two averagings, takes one more."""
    firsts = {"m60": "weightgrad", "h100": "local-sgd", "l40s": "bgt"}
    best = [
        {"workload": "own", "map": "target_s", "profile": "weightgrad-ec2", "device": device, "best_other": other}
        for device, other in firsts.items()
    ]
    asked: list[tuple[str, list[str], tuple[str, ...]]] = []

    def play(plan: Any, folder: Path, file: str, chosen: list[str], *words: str) -> list[str]:
        asked.append((folder.name, chosen, words))
        return chosen

    def ends_of(chosen: list[str]) -> pd.DataFrame:
        ends = {"system": chosen, "seed": 0, "metric": 0.5, "held_s": [10.0, 19.0][: len(chosen)]}
        return pd.DataFrame(ends).assign(steps=400, mean_step_s=0.0225)  # of 10 s the end takes one

    scope = GRID["main"].__globals__
    for name, fake in {"played": play, "ends_of": ends_of, "tuned": lambda plan, workload: "own"}.items():
        monkeypatch.setitem(scope, name, fake)
    monkeypatch.setitem(scope, "together_of", lambda known, name: 150 if name == "local-sgd" else 400)
    plan = GRID["Plan"](("lan",), ("m60", "l40s", "h100"), ("own",), (), ("0",), (), 8, tmp_path)
    timed = {"workload": "own", "profile": "weightgrad-ec2", "device": "h100", "system": "local-sgd"}
    systems = pd.DataFrame(
        [{**timed, "seed": seed, "target_s": 3.0, "held_s": held_s} for seed, held_s in [(0, 7.5), (1, 4.0)]]
    )
    found = GRID["finals"](plan, "own", systems, pd.DataFrame(best))
    assert [(folder, chosen) for folder, chosen, _ in asked] == [
        ("finals", ["concord", "weightgrad"]),
        ("finals-longer", ["concord"]),
        ("finals-h100", ["concord", "local-sgd"]),
        ("finals-h100-longer", ["concord"]),
    ]
    longer = {folder: words for folder, _, words in asked if "longer" in folder}
    assert "training.steps=800" in longer["finals-longer"], "9 s twice, and the end"
    assert "training.steps=1000" in longer["finals-h100-longer"], "and 4.5 s of averaging"
    assert found.query("system == 'local-sgd'")["held_s"].tolist() == [23.5, 23.5]
    assert all(
        f'compute.device="{device}"' in words
        for device, (_, _, words) in zip(["m60", "m60", "h100", "h100"], asked, strict=True)
    )
    by_device = found.groupby("device")["system"].unique().map(list)
    assert by_device.to_dict() == {"m60": ["concord", "weightgrad"], "h100": ["concord", "local-sgd"]}
    found = GRID["finals"](plan, "own-gpt", systems, pd.DataFrame(best).assign(workload="own-gpt"))
    assert [it[:2] for it in asked[-2:]] == [
        ("finals-muloco-flat", ["muloco-flat"]),
        ("finals-muloco-flat-longer", ["concord"]),
    ]
    assert all('compute.device="m60"' in words for _, _, words in asked[-2:])
    beside = found.query("system == 'muloco-flat'")
    assert beside[["alike", "device", "workload"]].to_numpy().tolist() == [
        [alike, "m60", "own-gpt"] for alike in ("steps", "time-muloco-flat")
    ]


def test_a_network_and_a_device_are_settings_of_the_experiment() -> None:
    from testbed.experiment.load import load
    from testbed.experiment.sweeps import value

    for profile in PLAYS.PROFILES:
        given = [part for part in PLAYS.cell(profile, "l40s") if part != "--set"]
        changes = {key: value(text) for key, _, text in (setting.partition("=") for setting in given)}
        for workload in GRID["WORKLOADS"]:
            assert load(workload, changes)[0].experiment.topology.profile == profile


def test_who_is_beaten_by_twice_where_it_waits_is_played_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = pd.DataFrame(rows("l40s", "bgt", 2.0, 3.0, waiting=0.7) + rows("m60", "bgt", 9.0, 9.0, waiting=0.7))
    ours = pd.DataFrame(rows("l40s", "concord", 1.0, 1.5) + rows("m60", "concord", 8.0, 8.0))
    cells = MAP["compared"](pd.concat([ours, systems]))
    asked: list[tuple[Any, ...]] = []

    def play(plan: Any, folder: Path, file: str, chosen: list[str], *words: str) -> str:
        asked.append((folder.name, *chosen, *words))
        return "played"

    scope = GRID["main"].__globals__
    found = pd.DataFrame({"system": "bgt", "seed": [0, 1], "target_s": [2.1, 3.1]})
    fakes = {"played": play, "of_played": lambda run, closing_s: found, "tuned": lambda plan, workload: "own"}
    for name, fake in fakes.items():
        monkeypatch.setitem(scope, name, fake)
    plan = GRID["Plan"](("lan",), ("l40s",), ("own",), (), ("0", "1"), (), 8, tmp_path)
    whole = GRID["wholes"](plan, "own", systems, cells)
    assert [words[:2] for words in asked] == [("whole-bgt", "bgt")] and 'compute.device="l40s"' in asked[0]
    assert whole["timed_s"].tolist() == [2.0, 3.0] and whole["target_s"].tolist() == [2.1, 3.1]
    assert MAP["of_wholes"](whole) == "- own, lan, l40s: BGT, played 2.55 s, timed 2.45 s."
