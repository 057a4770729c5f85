"""Traces made of others' recordings: mahimahi's packet traces, iperf3's intervals, tables."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wan_files import DATA, log, write_log

from testbed.errors import InputError
from testbed.wan import profile, store, trace
from testbed.wan.import_trace import CHANGES_LIMIT, Recording, assemble, from_csv, from_iperf3, from_mahimahi
from testbed.wan.trace import Change, Trace

EAST_WEST, WEST_EAST = ("us-east-1", "us-west-1"), ("us-west-1", "us-east-1")
PACKET_MBIT = 1448 * 8e-6


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refuse(line: str):
    return pytest.raises(InputError, match="^[^\n]*" + line + "[^\n]*$")


def rates(recording: Recording) -> list[float]:
    return [change.goodput_mbit for change in recording.changes]


# mahimahi


def test_packets_are_counted_per_interval_as_tcp_payload(tmp_path):
    path = write(tmp_path / "phone", "0\n200\n200\n900\n1500\n2000\n")
    recording = from_mahimahi(path, [EAST_WEST], 1.0, 0.001)
    assert rates(recording) == [pytest.approx(4 * PACKET_MBIT), pytest.approx(2 * PACKET_MBIT)]
    assert [change.time_s for change in recording.changes] == [0.0, 1.0]
    assert recording.end_s == 2.0


def test_a_fixed_rate_trace_has_the_rate_that_mahimahi_documents(tmp_path):
    # One packet per millisecond is 12 Mbit/s of IP (mahimahi's own example): 1448 of 1500 bytes are payload.
    path = write(tmp_path / "fixed", "".join(f"{ms}\n" for ms in range(1, 5001)))
    middle = rates(from_mahimahi(path, [EAST_WEST], 1.0, 0.1))[1:-1]
    assert middle == [pytest.approx(12 * 1448 / 1500)] * 3


def test_an_interval_without_a_packet_takes_the_floor_and_is_counted(tmp_path):
    path = write(tmp_path / "gap", "100\n3100\n4000\n")
    recording = from_mahimahi(path, [EAST_WEST, WEST_EAST], 1.0, 0.005)
    assert rates(recording)[2:6] == [0.005] * 4
    assert recording.floored == 4
    assert len(recording.changes) == 8


def test_a_short_rest_at_the_end_belongs_to_the_interval_before(tmp_path):
    path = write(tmp_path / "rest", "".join(f"{ms}\n" for ms in range(0, 2011, 10)))
    recording = from_mahimahi(path, [EAST_WEST], 1.0, 0.1)
    assert rates(recording)[1] == pytest.approx(102 * PACKET_MBIT / 1.01)
    assert len(recording.changes) == 2


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(0, 400), min_size=2, max_size=300).filter(lambda gaps: sum(gaps) > 0),
    interval_s=st.sampled_from([0.1, 0.25, 1.0, 3.0]),
)
def test_no_packet_is_lost_or_counted_twice(tmp_path_factory, gaps, interval_s):
    times = list(itertools.accumulate(gaps))
    path = write(tmp_path_factory.mktemp("trace") / "t", "".join(f"{ms}\n" for ms in times))
    recording = from_mahimahi(path, [EAST_WEST], interval_s, floor := 1e-3)
    starts = [change.time_s for change in recording.changes]
    lengths = [end - start for start, end in zip(starts, [*starts[1:], recording.end_s], strict=True)]
    carried = [0.0 if rate == floor else rate for rate in rates(recording)]
    packets = sum(rate * length for rate, length in zip(carried, lengths, strict=True)) / PACKET_MBIT
    assert packets == pytest.approx(len(times), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("0\n5\n3\n", r"phone:3: time goes back from 5 to 3 ms"),
        ("0\n5.5\n", r"phone:2: '5\.5' is not a time in whole milliseconds"),
        ("0\n\n7\n", r"phone:2: '' is not a time"),
        ("0\n-7\n", r"phone:2: '-7' is not a time"),
        ("0\n" + "9" * 400, r"phone:2: '9{40}' is not a time"),
        ("0\n٣\n", r"phone:2: .* is not a time"),
        ("", r"phone:1: no packets in it"),
        ("0\n0\n", r"phone:1: no packets in it; a trace must last longer"),
        ("0\n99999999999999\n", r"phone: [\d,]+ changes; at most 500,000"),
    ],
)
def test_a_mahimahi_trace_that_cannot_be_is_refused(tmp_path, text, line):
    with refuse(line):
        from_mahimahi(write(tmp_path / "phone", text), [EAST_WEST], 1.0, 0.1)


# iperf3


def test_the_intervals_of_a_log_become_changes(tmp_path):
    path = write_log(tmp_path / "us-east-1__us-west-1.json", log([90.0, 80.0, 100.0]))
    recording = from_iperf3([path], [], {}, None)
    assert recording.changes == [Change(float(k), *EAST_WEST, rate) for k, rate in enumerate([90.0, 80.0, 100.0])]
    assert recording.end_s == 3.0


def test_one_log_can_stand_for_several_pairs(tmp_path):
    path = write_log(tmp_path / "log.json", log([90.0, 80.0]))
    recording = from_iperf3([path], [EAST_WEST, WEST_EAST], {}, None)
    assert {(change.src, change.dst) for change in recording.changes} == {EAST_WEST, WEST_EAST}


def test_start_up_seconds_and_the_tail_of_a_test_are_left_out(tmp_path):
    document = log([10.0, 90.0, 80.0])
    document["intervals"][0]["sum"]["omitted"] = True
    for number, interval in enumerate(document["intervals"][1:]):
        interval["sum"].update(start=float(number), end=number + 1.0)
    document["intervals"].append({"sum": {"start": 2.0, "end": 2.0004, "bits_per_second": 9e9}})
    recording = from_iperf3([write_log(tmp_path / "log.json", document)], [EAST_WEST], {}, None)
    assert rates(recording) == [90.0, 80.0]
    assert recording.changes[0].time_s == 0.0


def test_a_real_log_gives_its_intervals():
    recording = from_iperf3([DATA / "iperf3-3.12-three-streams.json"], [EAST_WEST], {}, None)
    assert len(recording.changes) == 1


def test_an_interval_at_zero_needs_a_floor(tmp_path):
    path = write_log(tmp_path / "log.json", log([90.0, 0.0, 80.0]))
    with refuse(r"log\.json:1: the rate is 0 at 1 s; .* say --floor MBIT"):
        from_iperf3([path], [EAST_WEST], {}, None)
    recording = from_iperf3([path], [EAST_WEST], {}, 0.5)
    assert rates(recording) == [90.0, 0.5, 80.0]
    assert recording.floored == 1


def test_two_tests_of_one_pair_are_refused(tmp_path):
    path = write_log(tmp_path / "us-east-1__us-west-1.json", log([90.0]), log([80.0]))
    with refuse(r"a second test of us-east-1 to us-west-1"):
        from_iperf3([path], [], {}, None)


# tables


def test_a_table_names_its_pairs_or_is_for_all(tmp_path):
    named = write(
        tmp_path / "named.csv", "time_s,src,dst,goodput_mbit\n0,us-east-1,us-west-1,5\n2,us-west-1,us-east-1,6\n"
    )
    assert from_csv(named, [], None, None, None).changes == [Change(0, *EAST_WEST, 5), Change(2, *WEST_EAST, 6)]
    plain = write(tmp_path / "plain.csv", "time_s,goodput\n0,5000\n2,6000\n")
    assert rates(from_csv(plain, [EAST_WEST, WEST_EAST], "kbit/s", None, None)) == [5, 5, 6, 6]


@pytest.mark.parametrize(
    ("text", "pairs", "line"),
    [
        ("time_s,goodput_mbit\n1,5\n0,5\n", [EAST_WEST], r"rates\.csv:3: time goes back from 1 to 0 s"),
        ("time_s,goodput_mbit\n-1,5\n", [EAST_WEST], r":2: time goes back from 0 to -1 s"),
        ("time_s,goodput_mbit\n0,5\n1,-5\n", [EAST_WEST], r":3: rate is -5; a rate must be above 0"),
        ("time_s,goodput_mbit\n0,0\n", [EAST_WEST], r":2: the rate is 0 at 0 s"),
        ("time_s,goodput_mbit\n0,1e-5\n", [EAST_WEST], r":2: the rate is 1e-05 at 0 s; a link needs 0.001 Mbit/s"),
        ("time_s,goodput_mbit\n0,5\n0,6\n", [EAST_WEST], r":3: us-east-1 to us-west-1 stands there twice at 0 s"),
        ("time_s,goodput_mbit\n0,5\n", [], r":1: the table has no columns src and dst; say --pair"),
        ("time_s,src,dst,goodput_mbit\n0,a,b,5\n", [EAST_WEST], r":1: the table names its pairs"),
        ("time_s,goodput\n0,5\n", [EAST_WEST], r":1: column goodput has no unit"),
        ("time_ms,goodput_mbit\n0,5\n", [EAST_WEST], r":1: no column 'time_s'; did you mean 'time_ms'"),
        ("time_s,goodput_mbit\n", [EAST_WEST], r":1: no rows below the header"),
    ],
)
def test_a_table_that_cannot_be_is_refused(tmp_path, text, pairs, line):
    with refuse(line):
        from_csv(write(tmp_path / "rates.csv", text), pairs, None, None, None)


# from a recording to a trace on disk


def test_a_region_that_the_profile_does_not_have_is_named():
    made = profile.load("weightgrad-ec2")
    with refuse("profile weightgrad-ec2 has no region 'us-west-9'; did you mean 'us-west-1'"):
        assemble("x", Recording([Change(0, "us-west-9", "us-east-1", 5)]), made, None)


def test_a_loop_that_ends_before_the_last_change_is_refused():
    made = profile.load("weightgrad-ec2")
    with refuse("--loop 3: the last change is at 4 s"):
        assemble("x", Recording([Change(0, *EAST_WEST, 5), Change(4, *EAST_WEST, 6)]), made, 3.0)


CHANGES = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from([EAST_WEST, WEST_EAST]), st.floats(1e-3, 1e5)),
    min_size=1,
    unique_by=lambda change: change[:2],
)


@settings(max_examples=80, deadline=None)
@given(changes=CHANGES, loop=st.booleans())
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, changes, loop):
    made = profile.load("weightgrad-ec2")
    recording = Recording([Change(time / 4, *pair, rate) for time, pair, rate in changes])
    saved = assemble("lte", recording, made, 60.5 if loop else None)
    path = store.save_trace(saved, tmp_path_factory.mktemp("traces"), ["A comment."])
    assert trace.load(path, made.regions) == saved


def test_a_comment_cannot_become_a_setting(tmp_path):
    saved = Trace("t", (Change(0, *EAST_WEST, 5),))
    path = store.save_trace(saved, tmp_path, ["from a file called x\nend: loop"])
    assert trace.load(path, EAST_WEST).period_s is None


# reading a trace


def test_a_run_on_some_of_a_profiles_regions_takes_their_rows(tmp_path):
    saved = Trace("t", (Change(0, *EAST_WEST, 5), Change(0, "us-east-1", "us-east-2", 7)), None, "weightgrad-ec2")
    path = store.save_trace(saved, tmp_path, [])
    assert [change.dst for change in trace.load(path, EAST_WEST).changes] == ["us-west-1"]
    with refuse("no pair of this run's regions in it"):
        trace.load(path, ("us-west-1", "us-east-2"))


def test_without_its_profile_an_unknown_region_is_an_error(tmp_path):
    saved = Trace("t", (Change(0, *EAST_WEST, 5), Change(0, "us-east-1", "us-east-2", 7)))
    path = store.save_trace(saved, tmp_path, [])
    with refuse(r"t\.csv:4: no region 'us-east-2' in this run"):
        trace.load(path, EAST_WEST)


def test_a_pair_twice_at_one_time_is_refused(tmp_path):
    rows = "0,us-east-1,us-west-1,5\n0,us-east-1,us-west-1,6\n"
    path = write(tmp_path / "t.csv", "time_s,src_region,dst_region,goodput_mbit\n" + rows)
    with refuse(r"t\.csv:3: us-east-1 to us-west-1 stands there twice at 0 s"):
        trace.load(path, EAST_WEST)


def test_the_limit_of_changes_is_checked_before_they_are_made(tmp_path):
    path = write(tmp_path / "long", f"{CHANGES_LIMIT * 1000 + 1000}\n")
    with refuse("take a longer --interval"):
        from_mahimahi(path, [EAST_WEST], 1.0, 0.1)
    assert len(from_mahimahi(path, [EAST_WEST], 1000.0, 0.1).changes) == CHANGES_LIMIT // 1000


@pytest.mark.parametrize("interval_s", [0.01, 0.1, 1.0])
def test_a_packet_counts_in_the_interval_that_it_begins(tmp_path, interval_s):
    """One a millisecond: as many in each interval, wherever its bounds fall in floating point."""
    path = write(tmp_path / "even", "".join(f"{ms}\n" for ms in range(5000)))
    found = rates(from_mahimahi(path, [EAST_WEST, EAST_WEST], interval_s, 0.1))[:-1]
    assert found == [pytest.approx(1000 * PACKET_MBIT)] * (round(5 / interval_s) - 1)  # a pair named twice is one


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (["1.7e12,{pair},5"], "time_s is 1.7e[+]12; above 1e[+]08 the unit must be wrong"),
        (["# period_s: 60", "0,{pair},5"], "period_s means nothing with end 'hold'; it goes with '# end: loop'"),
        (["# end: loop", "# period_s: 1e-9", "0,{pair},5"], "period_s is 1e-09; it must be from 0.001"),
        (["# end: loop", "# end: hold", "0,{pair},5"], "end stands there twice"),
        (["0,{pair},1_5"], "goodput_mbit is '1_5'; it must be a number"),
    ],
)
def test_a_trace_that_says_what_cannot_be_meant_is_refused(tmp_path, lines, line):
    comments = [each for each in lines if each.startswith("#")]
    rows = [each.format(pair=",".join(EAST_WEST)) for each in lines if not each.startswith("#")]
    text = "\n".join([*comments, "time_s,src_region,dst_region,goodput_mbit", *rows])
    with refuse(line):
        trace.load(write(tmp_path / "odd.csv", text + "\n"), EAST_WEST)
