"""What the map of our own system searches, and with which periods its others are played."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "benchmarks" / "own_grid"
GRID: dict[str, Any] = runpy.run_path(str(SCRIPTS), run_name="imported")
MAP: dict[str, Any] = runpy.run_path(str(SCRIPTS / "own_map.py"), run_name="imported")
TUNED = sys.modules["own_tuned"]


def test_who_averages_now_and_then_is_played_at_longer_periods_as_well(tmp_path: Path) -> None:
    file = tmp_path / "few.toml"
    file.write_text(TUNED.find("own").read_text() + "\n[systems.local-sgd-50]\nof = 'local-sgd'\nlocal_steps = 150\n")
    systems = TUNED.longer(file, ["baseline", "local-sgd", "local-sgd-50"], TUNED.SELDOM["own"])["systems"]
    assert list(systems) == [
        "baseline",
        "local-sgd",
        "local-sgd-100",
        "local-sgd-200",
        "local-sgd-400",
        "local-sgd-800",
        "local-sgd-50",
        "local-sgd-50-200",
    ]
    assert systems["local-sgd-200"] == {"of": "local-sgd", "local_steps": 200, "ahead": 0}
    assert systems["local-sgd-50-200"]["of"] == "local-sgd"
    both = TUNED.longer(file, ["local-sgd-50"], {"local-sgd-50": (400,)}, briefly=True)["systems"]
    assert list(both) == ["local-sgd-50", "local-sgd-50-200", "local-sgd-50-400", "local-sgd-50-400-brief"]
    assert both["local-sgd-50-400-brief"] == both["local-sgd-50-400"]
    as_found = TUNED.longer(file, ["local-sgd", "local-sgd-50"], TUNED.SELDOM["own"], ["local-sgd"])["systems"]
    assert list(as_found) == ["local-sgd", "local-sgd-50", "local-sgd-50-200"]
    assert MAP["label"]("local-sgd-200") == "Local SGD, 200" and MAP["label"]("local-sgd") == "Local SGD"


def test_who_needs_no_wan_is_searched_on_a_fast_device_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def called(*words: str, alone: bool = True) -> None:
        asked.append(words)
        chosen = TUNED.find("own").read_text()
        if 'compute.device="l40s"' in words:
            chosen = "[systems.hierarchical-local-sgd]\nlocal_steps = 200\nrate = 0.0067\n"
        Path(words[words.index("--to") + 1]).write_text(chosen)

    monkeypatch.setattr(TUNED, "called", called)
    plan = GRID["Plan"](("lan",), ("m60",), ("own",), (), ("0",), (), 8, tmp_path)
    systems = tomllib.loads(Path(GRID["tuned"](plan, "own")).read_text())["systems"]
    names = [words[words.index("--systems") + 1] for words in asked]
    assert "muloco" in names[0].split(",") and names[1:] == ["deco", "hierarchical-local-sgd"]
    assert [words[0] for words in asked] == ["tune"] * 3 and asked[2][asked[2].index("--trials") + 1] == "8"
    assert ["run.stop_after_s=20" in words for words in asked] == [False, True, False]
    fast = {"of": "hierarchical-local-sgd", "local_steps": 200, "rate": 0.0067}
    assert systems["hierarchical-local-sgd-fast"] == fast
    assert MAP["label"]("hierarchical-local-sgd-fast") == "Hierarchical local SGD, fast"
    GRID["tuned"](plan, "own")
    assert len(asked) == 3


def test_what_is_new_in_a_file_is_searched_and_the_rest_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def called(*words: str, alone: bool = True) -> None:
        names = words[words.index("--systems") + 1].split(",")
        asked.extend(names)
        said = "\n".join(f"# {name}: loss in 2 s" for name in names)
        systems = "\n".join(f"[systems.{name}]\nrate = 0.5" for name in names)
        Path(words[words.index("--to") + 1]).write_text(f"# Tuned.\n{said}\n\n{systems}\n")

    monkeypatch.setattr(TUNED, "called", called)
    plan = GRID["Plan"](("lan",), ("m60",), ("own",), ("baseline", "deco", "bgt"), ("0",), (), 8, tmp_path)
    searched = tmp_path / "own-tuned.toml"
    searched.write_text("# Tuned.\n# baseline: loss in 1 s\n\n[systems.baseline]\nrate = 0.1\n")
    TUNED.search_missing(plan, "own", searched)
    assert asked == ["bgt", "deco"] and list(tmp_path.iterdir()) == [searched]
    said = ["# Tuned.", "# baseline: loss in 1 s", "# bgt: loss in 2 s", "# deco: loss in 2 s"]
    assert searched.read_text().splitlines()[:4] == said
    rates = {name: options["rate"] for name, options in tomllib.loads(searched.read_text())["systems"].items()}
    assert rates == {"baseline": 0.1, "bgt": 0.5, "deco": 0.5}


def test_what_averages_seldom_is_searched_there_by_its_rate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []

    def called(*words: str, alone: bool = True) -> None:
        asked.append(words)
        name = words[words.index("--systems") + 1]
        found = f'systems.{name} = {{ of = "local-sgd", local_steps = 800, rate = 0.01 }}'
        chosen = found if 'compute.device="l40s"' in words else TUNED.find("own-gpt").read_text()
        Path(words[words.index("--to") + 1]).write_text(chosen)

    monkeypatch.setattr(TUNED, "called", called)
    plan = GRID["Plan"](("lan",), ("m60",), ("own-gpt",), (), ("0",), (), 8, tmp_path)
    systems = tomllib.loads(Path(GRID["tuned"](plan, "own-gpt")).read_text())["systems"]
    for words, name in zip(asked[2:], TUNED.FAST["own-gpt"], strict=True):
        assert words[words.index("--systems") + 1] == name and words[words.index("--fixed") + 1] == "local_steps"
        assert ("training.steps=2600" in words) != name.endswith("-brief") and words[1].endswith("own-gpt.toml")
        assert systems[f"{name}-fast"] == {"of": "local-sgd", "local_steps": 800, "rate": 0.01}
    assert MAP["label"]("local-sgd-800-fast") == "Local SGD, 800, fast"
    assert MAP["label"]("muloco-flat-400-brief-fast") == "MuLoCo, workers, 400, brief, fast"
    known = TUNED.load(tmp_path / "own-gpt.toml")[0].experiment
    seldom = {name for name in known.systems if TUNED.is_seldom(known, name)}
    assert {"muloco-flat-400", "local-sgd-800-fast"} < seldom and not any("-brief" in name for name in seldom)
