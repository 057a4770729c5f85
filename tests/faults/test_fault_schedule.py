"""A schedule of faults: what is in force follows from the clock alone, whatever is laid over whatever."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, pairwise, takewhile
from math import inf, log
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import network

from testbed.errors import InputError
from testbed.experiment.load import read_faults
from testbed.faults import FAULTS, Break, Schedule, Turn, sentence
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link
from testbed.wan.trace import Change, Trace

PLAN = NetworkPlan(("a/w0", "a/w1", "b/w0", "c/gs"), network(("a", "b", "c"), Link(1000, 1), Link(100, 20)))
KINDS = (
    "cut a=b",
    "cut a>c",
    "partition a",
    "rate * factor=0.5",
    "rate a>b mbit=7",
    "delay b ms=30",
    "pause a/w0",
    "jitter * ms=9 hold_s=7",
    "blackhole a/w0=c/gs",
)


def schedule(*faults: Any, trace: Trace | None = None) -> Schedule:
    return Schedule(trace, read_faults(list(faults), "test"), PLAN.wan, PLAN.hosts)


def states(changes: list[Change]) -> dict[tuple[str, str], tuple[float, float | None, bool]]:
    """What the links are after some changes, where that is not what the profile says."""
    found = {pair: (link.goodput_mbit, link.rtt_ms, False) for pair, link in PLAN.wan.items()}
    found |= dict.fromkeys([("a/w0", "c/gs"), ("c/gs", "a/w0")], (inf, 0.0, False))
    for change in changes:
        rate, rtt_ms, cut = found[change.pair]
        if change.cut is None:
            rate, rtt_ms = change.goodput_mbit, rtt_ms if change.rtt_ms is None else change.rtt_ms
        found[change.pair] = (rate, rtt_ms, cut if change.cut is None else change.cut)
    return found


def seconds(first: int, last: int) -> st.SearchStrategy[float]:
    return st.integers(first * 64, last * 64).map(lambda n: n / 64)  # their sums are exact


once = st.builds(
    lambda kind, at_s, for_s: f"{kind} at {at_s}s for {for_s}s", st.sampled_from(KINDS), seconds(0, 60), seconds(1, 30)
)
again = once.map(lambda text: f"{text} every 31s")
random_ones = st.builds(
    lambda kind, seed: f"{kind} mtbf 10s mttr 5s seed={seed}", st.sampled_from(KINDS), st.integers(0, 9)
)
trace_changes = st.lists(
    st.builds(
        Change,
        seconds(0, 50),
        st.just("a"),
        st.sampled_from(["b", "c"]),
        st.floats(1, 500),
        st.none() | st.floats(1, 90),
    ),
    min_size=1,
    max_size=5,
).map(lambda changes: tuple(sorted(changes, key=lambda change: change.time_s)))


@given(
    st.lists(once | again | random_ones, min_size=1, max_size=4),
    st.none()
    | st.builds(lambda changes, period_s: Trace("any", changes, period_s), trace_changes, st.none() | seconds(51, 60)),
    seconds(0, 150),
)
def test_what_is_in_force_is_what_the_changes_so_far_have_made(faults, trace, clock_s):
    it = schedule(*faults, trace=trace)
    before = takewhile(lambda each: each.time_s <= clock_s, it.after(-1.0))
    assert states(it.at(clock_s)) == states([each for each in before if isinstance(each, Change)])
    following = list(islice(it.after(clock_s), 20))
    assert all(each.time_s > clock_s for each in following)
    assert [each.time_s for each in following] == sorted(each.time_s for each in following)


def test_faults_add_up_and_give_back_what_the_trace_has_made_meanwhile():
    trace = Trace("slower", (Change(15.0, "a", "b", 50.0),))
    it = schedule("rate a>b factor=0.1 at 10s for 10s", "cut a>b at 12s for 1s", trace=trace)
    found = [(each.time_s, each.cut, each.goodput_mbit) for each in it.after(0.0) if isinstance(each, Change)]
    assert found == [(10, None, 10), (12, True, 10), (13, False, 10), (15, None, 5), (20, None, 50)]


def test_a_partition_cuts_all_links_that_leave_it_and_none_inside():
    cut = {
        each.pair for each in schedule("partition a b at 1s for 1s").after(0.0) if isinstance(each, Change) and each.cut
    }
    assert cut == {("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")}


def test_a_connection_is_cut_off_one_way_or_both_for_all_that_a_pattern_means():
    def pairs(*faults: str) -> set[tuple[str, str]]:
        return {change.pair for change in schedule(*faults).at(1.0) if change.cut}

    assert pairs("blackhole a/w0>c/gs at 1s") == {("a/w0", "c/gs")}
    assert pairs("blackhole a/*=c/gs at 1s") == {(a, "c/gs") for a in ("a/w0", "a/w1")} | {
        ("c/gs", a) for a in ("a/w0", "a/w1")
    }
    assert schedule("blackhole a/w0=c/gs at 1s").tells_roles_apart


def test_a_reset_is_over_when_it_begins_and_breaks_each_connection_once():
    found = list(schedule("reset a/w0=c/gs a/*=c/gs at 3s", "reset a/w0=c/gs at 3s").after(0.0))
    assert [(each.time_s, each.over) for each in found if isinstance(each, Turn)] == [(3.0, False), (3.0, True)] * 2
    assert [each.link for each in found if isinstance(each, Break)] == ["a/w0=c/gs", "a/w1=c/gs"]
    again = schedule("reset a/w0=c/gs at 3s every 2s", "reset a/w1=c/gs mtbf 5s seed=2")
    times = [each.time_s for each in islice(again.after(4.0), 90) if isinstance(each, Break) and "w0" in each.link]
    assert times[:3] == [5.0, 7.0, 9.0]
    assert again.at(100.0) == [] and again.tells_roles_apart


def test_who_joins_stands_still_until_then_and_who_leaves_meanwhile():
    joins, leaves = schedule("join a at 5s"), schedule("leave a at 5s for 2s")
    for role in ("a/w0", "a/w1"):
        join, leave = joins.pace_of(role), leaves.pace_of(role)
        assert join is not None and [join.awake_s(now_s) for now_s in (0.0, 4.0, 5.0)] == [5.0, 5.0, 5.0]
        assert leave is not None and [leave.awake_s(now_s) for now_s in (0.0, 5.0, 8.0)] == [0.0, 7.0, 8.0]
    assert joins.pace_of("b/w0") is None and leaves.pace_of("b/w0") is None


def test_each_fault_says_when_it_begins_and_is_over():
    turns = [
        each for each in schedule("pause a at 1s for 2s", "slow a factor=2 at 2s").after(0.0) if isinstance(each, Turn)
    ]
    assert [(turn.time_s, turn.number, turn.over) for turn in turns] == [(1, 0, False), (2, 1, False), (3, 0, True)]
    assert turns[0].about == "pause a"


def test_random_times_have_the_means_that_are_asked_for_and_repeat():
    (fault,) = read_faults(["cut a=b mtbf 50s mttr 5s seed=3"], "test")
    spans = list(islice(fault.spans(0), 4000))
    assert spans[:9] == list(islice(fault.spans(0), 9))
    up = [begin - before for (_, before), (begin, _) in pairwise(spans)]
    assert sum(up) / len(up) == pytest.approx(50, rel=0.05)
    assert sum(over - begin for begin, over in spans) / len(spans) == pytest.approx(5, rel=0.05)
    assert spans[:9] != list(islice(fault.spans(1), 9))  # as another of the run's


def test_a_share_of_the_roles_is_slow_and_always_the_same():
    roles = [f"a/w{k}" for k in range(10)]
    (fault,) = read_faults(["slow */w* factor=3 share=0.25 seed=1 at 0s"], "test")
    chosen = fault.on_roles(roles)
    assert len(chosen) == 3 and list(chosen) == list(fault.on_roles(roles))


@pytest.mark.slow
def test_jitter_is_drawn_anew_for_each_direction_and_the_same_for_who_comes_later():
    it = schedule("jitter a=b ms=10 hold_s=0.25 seed=4 at 1s for 1000s")
    changes = [each for each in it.after(-1.0) if isinstance(each, Change)]
    there, back = ([each for each in changes if each.pair == pair] for pair in (("a", "b"), ("b", "a")))
    assert [each.time_s for each in there[:3]] == [1.0, 1.25, 1.5] and there[-1].time_s == 1001 and len(there) == 4001
    assert (there[-1].rtt_ms, there[-1].goodput_mbit) == (20, 100)
    more_ms = [(each.rtt_ms - 20) / 2 for each in there[:-1]]  # of one direction
    assert 0 <= min(more_ms) < 0.1 and 9.9 < max(more_ms) < 10 and sum(more_ms) / 4000 == pytest.approx(5, rel=0.03)
    assert [each.rtt_ms for each in there[:9]] != [each.rtt_ms for each in back[:9]]
    assert [each for each in it.after(500.1) if isinstance(each, Change)] == [
        each for each in changes if each.time_s > 500.1
    ]


def test_one_that_is_over_before_it_is_ever_drawn_anew_comes_again_and_again():
    it = schedule("jitter a=b ms=10 hold_s=7 at 14s for 1s every 21s")  # a draw falls on each beginning, none inside
    assert [each.time_s for each in islice(it.after(0.0), 12) if isinstance(each, Turn)] == [14, 15, 35, 36]


@pytest.mark.slow
def test_stragglers_come_and_go_when_their_factor_has_a_spread():
    it = schedule("slow a factor=2 spread=0.5 hold_s=1 seed=3 at 0s")
    times = {}
    for role in ("a/w0", "a/w1"):
        pace, now_s, times[role] = it.pace_of(role), 0.0, []
        assert pace is not None
        for _ in range(4000):
            times[role].append(1 / pace._at(now_s)[0])
            now_s += 1.0
    logs = sorted(log(factor) for factor in times["a/w0"])
    assert logs[2000] == pytest.approx(log(2), abs=0.03) and min(logs) == 0  # never faster than without
    assert logs[int(0.977 * 4000)] == pytest.approx(log(2) + 2 * 0.5, abs=0.1)  # two standard deviations above
    assert times["a/w0"][:9] != times["a/w1"][:9]


@pytest.mark.parametrize(
    "text",
    ["partition a b at 20s for 500ms every 2min", "slow a/w0 factor=3 at 0s", "cut a=b b>c mtbf 1h mttr 10s seed=4"],
)
def test_a_sentence_says_what_a_table_does(text: str):
    assert read_faults([sentence.read(text)], "test") == read_faults([text], "test")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("brown a=b at 1s", "unknown kind of fault 'brown'"),
        ("cut a=b", "at_s: needed"),
        ("cut a=b at soon", "'at soon': a time is e.g. 20s"),
        ("slow a factor=3 at 20 s", "'at 20 s': a time is one word: at 20s"),
        ("cut a=b at 1s at 2s", "at_s stands there twice"),
        ("slow a faktor=3 at 1s", "'faktor=3' is no key of slow; did you mean 'factor'"),
        ("slow a factor=0.5 at 1s", "faults[0].factor is 0.5"),
        ("rate a=b at 1s", "factor: either factor or mbit"),
        ("rate a=b factor=2 mbit=1 at 1s", "factor: either factor or mbit"),
        ("cut a=b at 1s for 5s every 5s", "every_s: needs a for_s that is shorter"),
        ("cut a=b mtbf 5s", "mttr_s: goes together with mtbf_s"),
        ("cut a=b at 1s mtbf 5s mttr 1s", "at_s: not beside mtbf_s"),
        ("cut a=b at 1e9s", "a time is e.g. 20s"),
        ("cut at 1s", "links is missing"),
        ("join a at 1s for 2s", "for_s: a region joins once"),
        ("join a mtbf 1s mttr 2s", "mtbf_s: a region joins once"),
        ("reset a/w0=c/gs at 1s for 2s", "for_s: a reset happens at a moment, it does not last"),
        ("reset a/w0=c/gs mtbf 1s mttr 2s", "mttr_s: a reset happens at a moment"),
        ("reset a/w0=c/gs", "at_s: needed, when it begins (or mtbf_s, for random times)"),
        ({"kind": "cut", "links": "a=b", "at_s": 1}, "faults[0].links"),
        ({"kind": "cut", "links": ["a=b"], "at_s": -1}, "faults[0].at_s is -1"),
        (
            {"kind": "cut", "links": ["a=b"], "at_s": 1, "fro_s": 2},
            "unknown key 'faults[0].fro_s'; did you mean",
        ),
        ({"links": ["a=b"]}, "unknown kind of fault ''"),
        (7, "faults[0]"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_fault(wrong: Any, words: str):
    with pytest.raises(InputError) as error:
        read_faults([wrong], "test.toml")
    line = str(error.value)
    assert words in line and line.startswith("test.toml: ") and "faults[0]" in line and "\n" not in line


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("cut a=d at 1s", "no link 'a=d' in this run; known"),
        ("partition d at 1s", "no region 'd' in this run"),
        ("partition a b c at 1s", "these are all regions"),
        ("pause a/w9 at 1s", "no role 'a/w9' in this run; did you mean"),
        ("leave d at 1s", "no region 'd' in this run"),
        ("blackhole a/w0 at 1s", "'a/w0' is no connection; one is e.g. a/w0=c/gs"),
        ("reset a/w0>c/gs at 1s", "'a/w0>c/gs': a connection is reset for both of its ends; write a=b"),
        ("blackhole a/w0=c/lps at 1s", "no role 'c/lps' in this run"),
    ],
)
def test_what_is_not_in_the_run_is_named(wrong: str, words: str):
    with pytest.raises(InputError) as error:
        schedule(wrong)
    assert words in str(error.value)


def test_every_kind_says_what_it_is():
    assert set(FAULTS) >= {"cut", "partition", "rate", "delay", "slow", "pause"}
    assert all(kind.__doc__ and kind.target in kind.__struct_fields__ for kind in FAULTS.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(once, again), min_size=1, max_size=5), st.booleans())
def test_no_link_ever_holds_more_than_the_extremes_say(faults: list[str], traced: bool):
    trace = Trace("t", (Change(5, "a", "b", 250, 8), Change(9, "a", "b", 50, 90)), period_s=12) if traced else None
    it = schedule(*faults, trace=trace)
    for change in (*it.at(0.0), *takewhile(lambda change: change.time_s < 60, it.after(0.0))):
        if isinstance(change, Change) and change.cut is None and change.pair in PLAN.wan:
            most = it.extremes[change.pair]
            assert change.goodput_mbit <= most.goodput_mbit and (change.rtt_ms or 0.0) <= most.rtt_ms
            assert change.goodput_mbit >= it.least_mbit[change.pair]


def test_a_plan_knows_its_links_as_they_are_and_at_their_widest():
    plan = replace(PLAN, extremes=schedule("delay a=b ms=100 at 1s", "rate a>b factor=4 at 1s").extremes)
    assert plan.widest["a", "b"] == Link(400, 220) and plan.widest["b", "a"] == Link(100, 220)
    assert plan.widest["a", "c"] == plan.wan["a", "c"] and plan.wan["a", "b"] == Link(100, 20)
    assert plan.scaled(2).widest["a", "b"] == Link(200, 440)


def test_a_plan_knows_how_slow_a_run_makes_its_links():
    plan = schedule("rate a>b factor=0.1 at 1s", "rate a>b factor=4 at 9s", "delay a=c ms=9 at 1s").on(PLAN)
    assert plan.widest["a", "b"] == Link(400, 20)
    assert plan.scaled(2).least_mbit == {("a", "b"): 5, ("a", "c"): 50, ("c", "a"): 50}


def test_one_way_that_becomes_longer_makes_the_round_trip_longer_for_both():
    plan = replace(PLAN, extremes=schedule("delay a>b ms=100 at 1s").extremes)
    assert plan.widest["a", "b"] == plan.widest["b", "a"] == Link(100, 120)


@pytest.mark.parametrize("other", ["delay a=b ms=100 at 1s", "rate a=b factor=0.1 at 1s"])
def test_what_tcp_gets_through_losses_follows_from_all_else_whatever_the_order(other: str) -> None:
    loss = "loss a=b p=0.01 at 1s"
    one, another = (states(schedule(*order).at(2.0)) for order in ((loss, other), (other, loss)))
    assert one == another and one["a", "b"][0] < states(schedule(other).at(2.0))["a", "b"][0]
    one, another = (schedule(*order).extremes for order in ((loss, other), (other, loss)))
    assert one == another


def test_a_link_without_a_round_trip_loses_nothing_to_tcp() -> None:
    plan = NetworkPlan(PLAN.hosts, network(("a", "b", "c"), Link(1000, 1), Link(100, 0)))
    found = Schedule(None, read_faults(["loss * p=0.01 at 1s"], "test"), plan.wan, plan.hosts)
    assert found.at(2.0) == []
