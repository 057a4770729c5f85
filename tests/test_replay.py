"""A trace changes the WAN's rates at its own times, on the virtual fabric and as a value."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import PLAIN, network, quadratic_task, toml

from testbed.cli import main
from testbed.errors import InputError
from testbed.fabrics.virtual import VirtualFabric
from testbed.faults import Schedule
from testbed.record import lines
from testbed.record.events import Capacity, StepDone
from testbed.record.reader import load
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS
from testbed.wan import store
from testbed.wan import trace as traces
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link
from testbed.wan.trace import Change, Trace

ROLES = Roles(("a", "b"), 1, "c")
LAN, WAN = Link(1000, 0.2), Link(0.1, 20)


def both_ways(time_s: float, goodput_mbit: float) -> tuple[Change, ...]:
    return tuple(
        Change(time_s, src, dst, goodput_mbit) for src, dst in (("a", "c"), ("c", "a"), ("b", "c"), ("c", "b"))
    )


def farther(time_s: float, more_ms: float) -> tuple[Change, ...]:
    return tuple(replace(change, rtt_ms=WAN.rtt_ms + more_ms) for change in both_ways(time_s, WAN.goodput_mbit))


def run(trace: Trace | None, wan: Link = WAN, stops=(6,)):
    """Baseline's events and its end on the virtual fabric."""
    task = quadratic_task(ROLES, steps=6)
    made = SYSTEMS["baseline"](task, SYSTEMS["baseline"].options_type())
    plan = NetworkPlan(ROLES.all, network(("a", "b", "c"), LAN, wan))
    fabric = VirtualFabric(plan, compute_model("m60"), lambda name, seed: made, schedule=trace and Schedule(trace))
    events = []
    fabric.record = events.append
    fabric.begin("baseline", 3, Path(), 0.0, None)
    for stop in stops:
        end_s = fabric.segment(stop)
    return events, end_s


def test_a_trace_from_the_start_on_equals_a_profile_with_its_rates():
    assert run(Trace("half", both_ways(0.0, WAN.goodput_mbit / 2)))[1] == run(None, Link(WAN.goodput_mbit / 2, 20))[1]


def test_changes_happen_at_their_own_times_and_slow_the_steps():
    plain, _ = run(None)
    events, _ = run(Trace("outage", both_ways(0.5, WAN.goodput_mbit / 20) + both_ways(2.5, WAN.goodput_mbit)))
    assert [event.time_s for event in events if isinstance(event, Capacity)] == [0.5] * 4 + [2.5] * 4

    def ends(events):
        return {event.step: event.time_s for event in events if isinstance(event, StepDone) and event.node == "a/w0"}

    before, after = ends(plain), ends(events)
    unhurt = [step for step in before if before[step] < 0.5]
    assert unhurt and all(after[step] == before[step] for step in unhurt)
    assert after[max(unhurt) + 2] > before[max(unhurt) + 2] + 0.5


def test_what_stands_at_time_0_is_in_force_and_in_the_record():
    events, _ = run(Trace("from the start", both_ways(0.0, 1.0)), stops=(2, 6))
    assert [event.time_s for event in events if isinstance(event, Capacity)] == [0.0] * 4


def test_a_longer_round_trip_makes_every_step_longer_by_it():
    """A step of the baseline crosses the WAN once there and once back, whatever its bytes."""
    trace = Trace("farther", farther(0.0, 500))
    assert run(trace)[1] - run(None)[1] == pytest.approx(6 * 0.5 + 0.25)  # and a marker's way
    assert run(trace)[1] == run(None, Link(WAN.goodput_mbit, WAN.rtt_ms + 500))[1]


def test_an_rtt_holds_until_the_next_one_and_over_the_end_of_a_segment():
    trace = Trace("t", (*farther(0.3, 500), *both_ways(0.6, WAN.goodput_mbit)))
    whole, cut = run(trace), run(trace, stops=(2, 6))
    assert cut[1] == pytest.approx(whole[1] + 0.27, abs=0.1)  # a boundary costs a marker's way, by then a long one
    assert [event.rtt_ms for event in whole[0] if isinstance(event, Capacity)] == [520] * 4 + [None] * 4


def test_rates_hold_over_the_end_of_a_segment():
    trace = Trace("outage", both_ways(0.3, WAN.goodput_mbit / 2))
    whole, cut = run(trace), run(trace, stops=(2, 6))
    assert cut[1] == pytest.approx(whole[1], abs=0.1)  # a boundary costs a round trip of markers
    assert len([event for event in cut[0] if isinstance(event, Capacity)]) == 4


def seconds(first: int, last: int) -> st.SearchStrategy[float]:
    return st.integers(first * 1024, last * 1024).map(lambda n: n / 1024)  # their sums are exact


changes = st.lists(
    st.tuples(seconds(0, 50), st.sampled_from(["a", "b"]), st.floats(0.1, 1000)), min_size=1, max_size=8
).map(lambda rows: tuple(Change(t, src, "c", rate) for t, src, rate in sorted(rows)))


@given(changes, st.one_of(st.none(), seconds(51, 100)), seconds(0, 300))
def test_the_rates_in_force_are_those_of_the_changes_so_far(changes, period_s, clock_s):
    trace = Trace("any", changes, period_s)
    rates = {}
    for change in trace.after(-1.0):
        if change.time_s > clock_s:
            break
        rates[change.src, change.dst] = change.goodput_mbit
    else:
        assert period_s is None, "a trace that loops never ends"
    assert {pair: change.goodput_mbit for pair, change in trace.at(clock_s).items()} == rates
    following = next(trace.after(clock_s), None)
    assert following is None or following.time_s > clock_s


def test_the_last_rtt_is_in_force_wherever_it_was_set():
    trace = Trace("t", (Change(0, "a", "b", 5, 100), Change(10, "a", "b", 6)), period_s=20)
    assert [trace.at(clock_s)["a", "b"].rtt_ms for clock_s in (0, 15, 21, 35)] == [100] * 4
    assert trace.at(15)["a", "b"].goodput_mbit == 6


def test_a_file_says_rtts_and_its_end(tmp_path):
    path = tmp_path / "t.csv"
    rows = "1,a,b,5,40\n2,a,b,6,\n"
    path.write_text(f"# end: end\n# end_s: 9\ntime_s,src_region,dst_region,goodput_mbit,rtt_ms\n{rows}")
    loaded = traces.load(path, ("a", "b"))
    assert loaded == Trace("t", (Change(1, "a", "b", 5, 40), Change(2, "a", "b", 6)), end_s=9)
    assert traces.load(store.save_trace(loaded, tmp_path / "again", []), ("a", "b")) == loaded


@pytest.mark.parametrize("name", ["outage", "diurnal", "brownout"])
def test_shipped_traces_fit_the_shipped_profile(name):
    loaded = traces.load(Path(traces.FOLDER) / f"{name}.csv", ("us-west-1", "us-east-1", "us-east-2"))
    assert loaded.changes
    assert (loaded.period_s is not None) == (name == "diurnal")
    assert (loaded.end_s is not None) == (name == "brownout")


@pytest.mark.parametrize("name", ["outage", "outage.csv", "topologies/traces/outage.csv"])
def test_a_shipped_trace_is_found_from_any_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert traces.find(name).read_text().startswith("#")


@pytest.mark.parametrize("name", ["my/outage.csv", "./outage.csv", "/nowhere/outage.csv", "my/outage"])
def test_a_path_where_there_is_no_trace_stands_for_no_shipped_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        traces.load(traces.find(name), ("us-west-1", "us-east-1", "us-east-2"))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("time_s,src_region,dst_region\n", 1, "columns"),
        ("# end: lop\ntime_s,src_region,dst_region,goodput_mbit\n1,a,b,5\n", None, "did you mean 'loop'"),
        ("# end: loop\n# period_s: 1\ntime_s,src_region,dst_region,goodput_mbit\n1,a,b,5\n", None, "period_s is 1"),
        ("# end: end\ntime_s,src_region,dst_region,goodput_mbit\n1,a,b,5\n", None, "end_s is ''"),
        ("# end: end\n# end_s: 1\ntime_s,src_region,dst_region,goodput_mbit\n1,a,b,5\n", None, "end_s is 1"),
        ("time_s,src_region,dst_region,goodput_mbit,rtt_ms\n1,a,b,5,-3\n", 2, "rtt_ms is -3"),
        ("time_s,src_region,dst_region,goodput_mbit,rtt_ms\n1,a,b,5,x\n", 2, "rtt_ms is 'x'"),
        ("time_s,src_region,dst_region,rtt_ms\n1,a,b,5\n", 1, "columns must be"),
        ("time_s,src_region,dst_region,goodput_mbit\n1,a,b,0\n", 2, "0"),
        ("time_s,src_region,dst_region,goodput_mbit\n1,a,x,5\n", 2, "no region 'x'"),
        ("time_s,src_region,dst_region,goodput_mbit\n1,a,a,5\n", 2, "itself"),
        ("time_s,src_region,dst_region,goodput_mbit\n2,a,b,5\n1,a,b,5\n", 3, "goes back"),
        ("time_s,src_region,dst_region,goodput_mbit\n2,a,b,5\n3,a,b,x\n", 3, "number"),
        ("time_s,src_region,dst_region,goodput_mbit\n", None, "no changes"),
    ],
)
def test_what_cannot_be_is_one_line_with_file_and_line(tmp_path, text, line, says):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        traces.load(path, ("a", "b", "c"))
    message = str(caught.value)
    assert says in message and "\n" not in message
    assert message.startswith(f"{path}:{line}:" if line else str(path))


# A run that ends with its trace


@pytest.mark.slow
def test_a_run_that_ends_with_its_trace_is_kept_and_reported_and_done(small_data, tmp_path, capsys):
    file, trace = tmp_path / "mine.toml", tmp_path / "short.csv"
    file.write_text(toml(PLAIN))
    header = "time_s,src_region,dst_region,goodput_mbit,rtt_ms"
    trace.write_text(f"# end: end\n# end_s: 5.5\n{header}\n0,us-west-1,us-east-2,0.15,80\n")
    options = ["--systems", "baseline,terngrad", "--trace", str(trace), "--jobs", "1", "--out", str(tmp_path / "out")]
    assert main(["run", str(file), *options]) == 0
    printed = capsys.readouterr().out
    assert "ended with the trace" in printed and "unfinished" not in printed
    [folder] = (tmp_path / "out" / "mine").iterdir()
    assert str(folder / "replay.png") in printed

    run = load(folder)
    baseline, terngrad = run.results
    assert (baseline.status, terngrad.status, run.missing) == ("ended", "finished", [])
    assert 4 <= len(baseline.steps) < 8 == len(terngrad.steps)
    assert set(baseline.tests["step"]) == {4}  # the last checkpoint
    assert baseline.links["second"].max() == 5
    last = lines.last_event(baseline.folder / lines.FILE_NAME)
    assert (last.how, last.time_s, last.step) == ("ended", 5.5, 4)

    before = {path: path.read_bytes() for path in (*folder.rglob("events.jsonl"), folder / "replay.png")}
    assert main(["run", "--resume", str(folder), "--jobs", "1"]) == 0, "nothing is left to do"
    assert {path: path.read_bytes() for path in before} == before

    trace.unlink()
    (folder / "replay.png").unlink()
    assert main(["plot", str(folder)]) == 0, "the records are enough"
    assert (folder / "replay.png").read_bytes() == before[folder / "replay.png"]
