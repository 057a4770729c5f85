"""What `testbed fidelity` measures, writes and draws."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cli.command_line import main
from testbed.emulation import sandbox
from testbed.errors import RunError
from testbed.fidelity import against, goodput, measure, messages, plot, report, steps
from testbed.fidelity.values import Bound, Value
from testbed.wan import profile as profiles
from testbed.wan.plan import region_of
from testbed.wan.profile import Cap, Link

RUN_S = 180


def test_the_grid_has_every_rate_with_every_round_trip_in_both_directions() -> None:
    plan = messages.grid_plan(Link(1000, 0.2))
    found = {(link.goodput_mbit, link.rtt_ms) for link in messages.grid_links().values()}
    assert found == {(rate, rtt) for rate in (5, 20, 99, 327, 1000) for rtt in (0, 12, 60)}
    assert all(plan.wan[b, a] == link for (a, b), link in plan.wan.items())
    ends = [host for pair in messages.grid_paths().values() for host in pair]
    assert set(ends) == set(plan.hosts), "no host is left out"
    assert len(ends) == len(set(ends)), "no host takes part in two"
    for name, (src, dst) in messages.grid_paths().items():
        link = plan.wan[region_of(src), region_of(dst)]
        assert name == f"{link.goodput_mbit:g} Mbit/s {link.rtt_ms:g} ms"


def test_links_that_share_a_cap_are_compared_together_and_the_others_one_by_one() -> None:
    profile = profiles.load("weightgrad-ec2")  # 99 and 119 Mbit/s leave us-west-1, 99 and 327 enter us-east-1
    capped = replace(profile, caps={"us-west-1": Cap(egress_mbit=100), "us-east-2": Cap(egress_mbit=9000)})
    (cap,) = goodput.caps(capped)  # the other one bounds nothing
    assert (cap.name, cap.mbit) == ("us-west-1 egress", 100)
    figure = cap.figure({"us-west-1>us-east-1": 48.0, "us-west-1>us-east-2": 50.5}, "goodput, all at once")
    assert figure.measured == 98.5 and figure.ok
    both = replace(profile, caps={"us-west-1": Cap(egress_mbit=100), "us-east-1": Cap(ingress_mbit=100)})
    assert goodput.caps(both) == [], "a link under two caps: neither alone tells"


@pytest.mark.parametrize(("size", "name"), [(16 << 10, "16 KB"), (214 << 10, "214 KB"), (4 << 20, "4 MB")])
def test_sizes_in_words(size: int, name: str) -> None:
    assert messages.size_name(size) == name


@pytest.mark.parametrize("name", ["weightgrad-ec2", "wanify-8"])
def test_all_pairs_at_once_are_spread_so_that_no_host_is_the_bottleneck(name: str) -> None:
    profile = profiles.load(name)
    hosts = goodput.hosts_needed(profile)
    load: dict[str, float] = defaultdict(float)
    for (a, b), ends in goodput.spread(profile, hosts).items():
        assert (region_of(ends[0]), region_of(ends[1])) == (a, b)
        for host in ends:
            load[host] += profile.pairs[a, b].goodput_mbit
    assert max(load.values()) <= profile.lan.goodput_mbit


def test_the_schedule_against_the_virtual_network_repeats_and_covers_every_role() -> None:
    profile = profiles.load("weightgrad-ec2")
    sent = against.schedule(profile, 5)
    assert sent == against.schedule(profile, 5)
    assert sent != against.schedule(profile, 5, seed=4)
    assert {message.src for message in sent} == set(against.roles_of(profile).all)
    assert [message.time_s for message in sent] == sorted(message.time_s for message in sent)


def test_a_message_alone_on_the_virtual_network_takes_size_over_rate_and_delay() -> None:
    profile = profiles.load("weightgrad-ec2")
    plan = measure.NetworkPlan(("us-west-1/w0", "us-east-1/w0"), replace(profile, lan=Link(1000, 0)))
    sent = [against.Sent(2.0, "us-west-1/w0", "us-east-1/w0", 1 << 20)]
    (arrived,) = against.virtual(plan, sent)
    assert arrived == pytest.approx(2 + (1 << 20) * 8 / 99e6 + 59.536e-3 / 2, rel=1e-6)


def test_deliveries_are_compared_for_each_pair_and_as_a_whole() -> None:
    sent = [against.Sent(k, "a/w0", "b/w0", 1) for k in range(20)]
    modelled = [k + 0.1 for k in range(20)]
    real = [*(k + 0.105 for k in range(18)), 18.15, 19.15]
    found = {figure.name: figure for figure in against.figures(sent, modelled, real) if figure.asked}
    assert set(found) == {"WAN", "a>b"}
    assert found["a>b"].asked == pytest.approx(100)
    assert found["a>b"].measured == pytest.approx(150)
    assert not found["a>b"].ok
    assert found["a>b"].detail["outside_percent"] == 10


FIGURES = [
    Value("goodput, alone", "a>b", "Mbit/s", 99, 98.9, goodput.GOODPUT),
    Value("goodput, all at once", "a>b", "Mbit/s", 99, 80.0, goodput.GOODPUT),
    Value("message, after an idle second", "a>b 16 KB", "ms", 31, 31.2, messages.MESSAGE),
    Value("round trip, idle, median", "a<>b", "ms", 60, None, measure.RTT_MEDIAN),
    Value(
        *("trace, worst second", "a>b", "Mbit/s", 50, 50.5, measure.INTERVAL),
        {"asked_mbit": [99, 50], "measured_mbit": [99, 50.5]},
    ),
]


def test_the_record_says_what_was_missed_and_on_which_machine(tmp_path: Path) -> None:
    result = measure.Result(FIGURES, "delay-line", {"drops": 0})
    record = report.as_record(result, {"profile": "test", "date": "2026-01-01T00:00:00+00:00"})
    path = tmp_path / "x" / report.JSON_NAME
    report.write(path, record)
    read = json.loads(path.read_text())
    assert read["ok"] is False
    assert read["missed"] == 2
    assert [figure["ok"] for figure in read["figures"]] == [True, False, True, False, True]
    assert read["figures"][3]["measured"] is None
    assert read["environment"]["kernel"]
    assert isinstance(read["root"], bool)


def test_the_newest_record_of_a_profile_and_kernel_is_found(tmp_path: Path) -> None:
    for folder, profile, kernel, date in (
        ("a", "wan", "6.1", "2026-01-01"),
        ("b", "wan", "6.1", "2026-01-03"),
        ("c", "wan", "6.2", "2026-01-04"),
        ("d", "other", "6.1", "2026-01-05"),
    ):
        record = {"profile": profile, "environment": {"kernel": kernel}, "date": date}
        report.write(tmp_path / folder / report.JSON_NAME, record)
    (tmp_path / "b2").mkdir()
    (tmp_path / "b2" / report.JSON_NAME).write_text("half a fi")
    assert report.newest(tmp_path, "wan", "6.1") == tmp_path / "b" / report.JSON_NAME
    assert report.newest(tmp_path, "wan", "5.0") is None


def test_the_printed_table_shows_the_worst_of_each_section_and_every_miss(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(FIGURES)
    printed = capsys.readouterr().out
    assert "2 of 5 miss their bound" in printed
    for text in ("goodput, all at once", "80 Mbit/s", "nothing", "± 2 %", "FAIL 1", "pass"):
        assert text in printed


@pytest.mark.slow
def test_the_picture_of_the_same_figures_is_the_same(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        plot.draw(tmp_path / name, FIGURES, "test")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    plot.draw(tmp_path / "none.png", [Value("goodput", "a>b", "Mbit/s", 1, None, Bound(relative=1))], "test")
    assert (tmp_path / "none.png").stat().st_size > 10_000


def test_where_no_results_can_go_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "available", lambda: None)
    monkeypatch.setattr(sandbox, "run", lambda *_, **__: pytest.fail("it went on"))
    (tmp_path / "file").touch()
    assert main(["fidelity", "weightgrad-ec2", "--out", str(tmp_path / "file" / "x")]) == 2
    assert "name another folder with --out" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.emulation
@pytest.mark.slow
def test_the_command_measures_writes_and_judges(tmp_path: Path) -> None:
    if reason := sandbox.available():
        pytest.skip(reason)
    command = [sys.executable, "-m", "testbed", "fidelity", "weightgrad-ec2", "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    record = json.loads((tmp_path / "fidelity.json").read_text())
    assert done.returncode == (0 if record["ok"] else 1), done.stderr
    assert (tmp_path / "fidelity.png").is_file()
    sections = {figure["section"] for figure in record["figures"]}
    for prefix in (
        "goodput, alone",
        "goodput, all at once",
        "message",
        "round trip, every core busy",
        "trace",
        "bytes",
    ):
        assert any(section.startswith(prefix) for section in sections), prefix
    assert all(figure["measured"] is not None for figure in record["figures"])
    assert record["delay_mechanism"] in ("netem", "delay-line")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured in a sandbox has its folder there."""
    monkeypatch.setattr(sandbox, "scratch", lambda: nullcontext(tmp_path))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.usefixtures("scratch")
def test_a_systems_mean_step_is_read_from_a_run_of_its_own() -> None:
    found = steps.mean_step_s("virtual", ["terngrad"], ["topology.workers_per_region=1"])
    assert list(found) == ["terngrad"]
    assert found["terngrad"] > 0.049, "no faster than the round trip to the global server"


@pytest.mark.slow
@pytest.mark.usefixtures("scratch")
def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(RunError, match=r"testbed run cifarnet .*: testbed: error: .*nonesuch"):
        steps.mean_step_s("virtual", ["terngrad"], ["topology.profile=nonesuch"])
