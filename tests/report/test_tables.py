"""Tables and sentences say what the summary says, and warn where a number must not be believed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from testbed.record.info import DataInfo
from testbed.record.reader import load
from testbed.report.looks import known, look
from testbed.report.numbers import sentences, wording
from testbed.report.numbers.columns import timing
from testbed.report.numbers.sentences import headlines
from testbed.report.numbers.summary import summarize
from testbed.report.numbers.tables import csv, rows
from testbed.report.page.markdown import markdown
from testbed.report.papers.beside import paper_rows
from testbed.report.terminal import show
from testbed.report.write import write_report

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]
STAND_IN = DataInfo(dataset="CIFAR-10", stand_in=True, note="no network")


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (wording.size, 0, "0 B"),
        (wording.size, 999, "999 B"),
        (wording.size, 999_600, "1.00 MB"),
        (wording.size, 1_230_000_000, "1.23 GB"),
        (wording.size, 5e15, "5,000 TB"),
        (wording.duration, 0.0123, "0.0123 s"),
        (wording.duration, 42.13, "42.1 s"),
        (wording.duration, 119.7, "2 min 00 s"),
        (wording.duration, 12_000, "3 h 20 min"),
        (wording.times, 5.361, "5.36×"),
        (wording.times, 41.26, "41.3×"),
        (wording.times, 1234.4, "1,234×"),
        (wording.times, 0.85, "0.85×"),
        (wording.percent, 0.4718, "47.2 %"),
        (wording.size, pd.NA, "–"),
        (wording.duration, float("nan"), "–"),
        (wording.times, None, "–"),
    ],
)
def test_numbers_are_written_for_people(write: Callable[[object], str], value: object, text: str) -> None:
    assert write(value) == text


def test_the_headline_holds_speedup_accuracy_gap_and_bytes(make_run: MakeRun) -> None:
    run = load(make_run())
    frame = summarize(run)
    row = frame.set_index("system").loc["weightgrad"]
    sentence = next(s for s in headlines(run, frame) if s.startswith("WeightGrad"))
    assert f"{wording.times(row['speedup_vs_baseline'])} sooner than baseline" in sentence
    gap = 100 * (row["final_accuracy"] - frame["final_accuracy"][0])
    assert f"({gap:+.1f} points)".replace("-", "−") in sentence
    assert f"{wording.times(row['compression'])} fewer WAN bytes" in sentence


def test_accuracies_after_unlike_numbers_of_steps_say_so(make_run: MakeRun) -> None:
    """As in a run that ended at its target, or that nobody has finished."""
    run = load(make_run())
    frame = summarize(run)
    assert not any("steps" in sentence.partition("accuracy")[2] for sentence in headlines(run, frame))
    frame.loc[frame["system"] == "weightgrad", "steps"] += 1234
    base = frame["steps"][0]
    sentence = next(s for s in headlines(run, frame) if s.startswith("WeightGrad"))
    assert f"points) after {base + 1234:,} and {base:,} steps" in sentence


def test_a_slower_system_is_called_later(make_run: MakeRun) -> None:
    run = load(make_run())
    frame = summarize(run).assign(speedup_vs_baseline=[1.0, 0.5, 4.0], compression=[1.0, 0.25, 2.0])
    assert "2.00× later than baseline" in headlines(run, frame)[0]
    assert "4.00× more WAN bytes" in headlines(run, frame)[0]


def test_how_much_later_has_its_interval_the_same_way_round(make_run: MakeRun) -> None:
    run = load(make_run(seeds=(0, 1, 2)))
    frame = summarize(run)
    slow = frame["system"] == "terngrad"
    frame.loc[slow, "speedup_vs_baseline"] = [0.25, 0.5, 0.25]
    sentence = next(each for each in headlines(run, frame) if "later than baseline" in each)
    low, high = (float(end) for end in re.findall(r"interval ([\d.]+)× to ([\d.]+)×", sentence)[0])
    assert low < 3.17 < high and "3.17× later" in sentence


def test_a_target_that_was_not_reached_is_never_a_number(make_run: MakeRun) -> None:
    run = load(make_run(target={"loss": 0.1, "window": 10}))
    frame = summarize(run)
    heads, cells = rows(frame)
    at = heads.index("time to target")
    assert {line[at] for line in cells} == {wording.NOT_REACHED}
    assert all("did not reach loss ≤ 0.1 in 120 steps (nor did baseline)" in s for s in headlines(run, frame))
    assert sentences.verdict(run, frame) == "No system reached loss ≤ 0.1 in 120 steps" + sentences.RAISE


def test_a_seed_that_did_not_reach_the_target_is_counted(make_run: MakeRun) -> None:
    run = load(make_run(seeds=(0, 1, 2)))
    frame = summarize(run)
    frame.loc[(frame["system"] == "weightgrad") & (frame["seed"] == 1), "time_to_target_s"] = float("nan")
    heads, cells = rows(frame)
    assert cells[2][heads.index("time to target")] == "not reached by 1"
    assert "with 1 of 3 seeds" in next(s for s in headlines(run, frame) if s.startswith("WeightGrad"))
    frame.loc[frame["seed"] == 1, "time_to_target_s"] = float("nan")
    assert "with every seed in 120 steps" in sentences.verdict(run, frame)


def test_several_seeds_make_one_row_with_its_interval(make_run: MakeRun) -> None:
    heads, cells = rows(summarize(load(make_run(seeds=(0, 1, 2)))))
    assert len(cells) == 3 and heads[1] == "seeds" and cells[0][1] == "3"
    assert "±" in cells[2][heads.index("final loss")]
    assert "±" not in cells[2][heads.index("WAN bytes")]  # the same bytes in each seed


def test_a_ratio_has_both_ends_of_its_interval_since_it_lies_nearer_to_the_lower_one(make_run: MakeRun) -> None:
    frame = summarize(load(make_run(seeds=(0, 1, 2))))
    heads, cells = rows(frame.assign(speedup_vs_baseline=[1.0] * 3 + [4.0] * 3 + [4.0, 16.0, 8.0]))
    at = heads.index("speedup")
    ternary = next(line for line in cells if line[0] == "WeightGrad")
    assert ternary[at].startswith("8.00× (1.") and " to 4" in ternary[at] and "±" not in ternary[at]
    assert cells[0][at] == "1.00×"  # to itself


def test_a_second_target_has_its_own_column_whatever_its_metric() -> None:
    frame = pd.DataFrame({"target": ["loss ≤ 1.8, bits per character ≤ 2.6"], "fabric": ["virtual"]})
    assert [column.head for column in timing(frame)][-2:] == ["time to bits per character", "speedup to it"]
    assert [column.head for column in timing(frame.assign(target="accuracy ≥ 40 %"))][-1] == "speedup"


def test_a_column_that_nothing_fills_is_left_out(make_run: MakeRun) -> None:
    heads, _ = rows(summarize(load(make_run(systems=["baseline"], target={}))))
    assert not {"EMA", "full precision", "time to target"} & set(heads)


def test_stand_in_data_and_unfinished_runs_are_marked_everywhere(make_run: MakeRun) -> None:
    folder = make_run(data=STAND_IN, ends={"terngrad": (30, "interrupted")})
    run, frame = write_report(folder)
    text = (folder / "summary.md").read_text()
    assert "STAND-IN DATA" in text and "stand-in for CIFAR-10" in (folder / "summary.csv").read_text()
    assert "TernGrad (unfinished)" in text and "terngrad seed 0 is interrupted: 30 steps recorded" in text
    assert "Fewer than 50 steps" in text
    assert all(
        "(stand-in data)" in here or here in ("not measured", "not reached") for _, _, here, _ in paper_rows(run, frame)
    )


def test_the_conditions_are_stated(make_run: MakeRun) -> None:
    text = markdown(run := load(make_run()), summarize(run))
    for part in ("mininet fabric", "delay by netem", "time dilation 4", "compute: m60", "2 × 4 workers", "batch 128"):
        assert part in text
    assert "shards" not in text


def test_uneven_shards_are_a_condition(make_run: MakeRun) -> None:
    data = {"dataset": "cifar10", "split": "dirichlet", "alpha": 0.3}
    text = markdown(run := load(make_run(experiment={"data": data})), summarize(run))
    assert "CIFAR-10 · dirichlet shards, alpha 0.3" in text


def test_the_table_goes_plain_into_a_pipe(make_run: MakeRun) -> None:
    run = load(make_run())
    out = io.StringIO()
    show(run, summarize(run), Console(file=out))
    assert "\x1b" not in out.getvalue()
    assert "WeightGrad" in out.getvalue() and "5.36×" in out.getvalue()


def test_csv_leaves_empty_what_was_not_measured(make_run: MakeRun) -> None:
    frame = summarize(load(make_run(systems=["weightgrad"], steps=20)))
    head, row = csv(frame).splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert cells["time_to_target_s"] == cells["speedup_vs_baseline"] == cells["accuracy_ema"] == ""
    assert cells["wan_bytes"] == str(20 * 420_000) and cells["steps"] == "20"


def test_a_record_without_facts_still_makes_a_report(make_run: MakeRun) -> None:
    folder = make_run()
    (folder / "run.json").unlink()
    run, frame = write_report(folder)
    assert (folder / "comparison.png").stat().st_size > 10_000
    assert "the facts of the run are not known" in (folder / "summary.md").read_text()
    assert frame["target"].eq("").all() and len(headlines(run, frame)) == 2


def test_every_look_can_be_told_apart_and_an_unknown_system_keeps_its_own() -> None:
    looks = known().values()
    assert len({one.label for one in looks}) == len({(one.color, one.line) for one in looks}) == len(looks)
    assert look("brand-new") == look("brand-new") and look("brand-new").label == "brand-new"
