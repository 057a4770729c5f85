"""The replay's picture: what was asked, what crossed, and what came of it, from the records alone."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest

from testbed.errors import InputError
from testbed.message import PAYLOAD_PER_WIRE
from testbed.record.events import Capacity, LinkBytes, RunEnded, RunStarted, StepDone
from testbed.record.info import LinkInfo, ResultInfo, RunInfo, write_info
from testbed.record.reader import load
from testbed.record.recorder import Recorder
from testbed.report.numbers.courses import Course, courses_of, slowdown, throughput, told, worst_of
from testbed.report.pictures import draw
from testbed.report.pictures.style import png
from testbed.systems import SYSTEMS

LINKS = ("west>server", "server>west", "east>server")
RATES = {"west>server": 100.0, "server>west": 100.0, "east>server": 200.0}
# West has 1 % from 20 to 30 s, both ways; east is only told its own rate.
WEST = [Capacity(time_s=t, link=link, goodput_mbit=r) for t, r in ((20.0, 1.0), (30.0, 100.0)) for link in LINKS[:2]]
OUTAGE = (*WEST, Capacity(time_s=25.0, link="east>server", goodput_mbit=200.0))


def write(folder: Path, ends_s: dict[str, list[float]], changes: tuple[Capacity, ...] = OUTAGE) -> Path:
    """A run whose systems' steps end at these times; each second every link carries half the profile's rate."""
    network = {link: LinkInfo(goodput_mbit=rate, rtt_ms=50) for link, rate in RATES.items()}
    topology = {"trace": "outage", "regions": ["west", "east"]}
    write_info(
        folder,
        RunInfo(run_id="run", target="t", network=network, topology=topology, fabric="virtual", systems=list(ends_s)),
    )
    for system, ends in ends_s.items():
        one = folder / system / "seed-0"
        events: list = [RunStarted(time_s=0.0, step=0)]
        for step, end_s in enumerate(ends):
            events.append(StepDone(time_s=end_s, node="west/w0", step=step, loss=2.0 - 0.01 * step, compute_s=0.1))
        for second in range(int(ends[-1])):
            for link, rate in RATES.items():
                size = round(rate / 2 / 8e-6 / PAYLOAD_PER_WIRE)
                events.append(LinkBytes(time_s=second + 1.0, interval_s=1.0, wire_bytes={link: size}))
        events += [change for change in changes if change.time_s < ends[-1]]
        with Recorder(one) as recorder:
            for event in sorted(events, key=lambda event: event.time_s):
                recorder.record(event)
            recorder.record(RunEnded(time_s=ends[-1], step=len(ends), how="finished"))
            recorder.finish()
        write_info(one, ResultInfo(system=system, steps=len(ends), status="finished"))
    return folder


SLOW = [*np.arange(1.0, 21.0), 30.0, *np.arange(31.0, 41.0)]  # a step a second, and one in the outage
QUICK = [*np.arange(0.1, 20.01, 0.1), *np.arange(20.2, 30.01, 0.2), *np.arange(30.1, 40.01, 0.1)]  # half as fast in it


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done_before = list(np.arange(0.1, 10.0, 0.1))
    return write(tmp_path_factory.mktemp("run"), {"baseline": SLOW, "terngrad": QUICK, "weightgrad": done_before})


def test_what_was_asked_begins_with_the_profile_and_both_directions_are_one(folder: Path) -> None:
    run = load(folder)
    first, second = courses_of(run, run.results)
    assert first.name in ("west ⇄ server", "server ⇄ west") and second.name == "east → server"
    assert list(first.time_s) == [0, 20, 30] and list(first.goodput_mbit) == [100, 1, 100]
    assert list(second.goodput_mbit) == [200, 200]


def test_what_the_worst_did_to_each_system(folder: Path) -> None:
    run = load(folder)
    worst = worst_of(courses_of(run, run.results), 40.0)
    assert worst is not None and worst.spans == ((20.0, 30.0),) and worst.share == 0.01
    baseline, terngrad, weightgrad = run.results
    assert slowdown(baseline, worst) == pytest.approx(10.0)
    assert slowdown(terngrad, worst) == pytest.approx(2.0)
    assert slowdown(weightgrad, worst) is None
    said = told(run.results, worst)
    assert said.endswith("is at 1 %, steps take longer: Baseline 10.0×, TernGrad 2.00×; done before: WeightGrad")


def test_a_system_that_does_no_step_stands_still(tmp_path: Path) -> None:
    run = load(write(tmp_path / "run", {"baseline": [*np.arange(1.0, 21.0), 130.0]}, OUTAGE[:2]))
    worst = worst_of(courses_of(run, run.results), 30.0)
    assert worst is not None and slowdown(run.results[0], worst) == np.inf
    assert "Baseline stands still" in told(run.results, worst)


def test_a_trace_that_is_never_low_or_low_all_the_time_has_no_worst() -> None:
    times = np.arange(100.0)
    assert worst_of([Course("a>b", times, 90 + 10 * np.sin(times))], 100.0) is None
    assert worst_of([Course("a>b", times, np.where(times % 2, 1.0, 100.0))], 100.0) is None


def test_the_worst_is_that_of_the_tightest_link() -> None:
    wide = Course("a>b", np.array([0.0, 10.0]), np.array([1000.0, 100.0]))  # a tenth, and still the wider one
    tight = Course("b>a", np.array([0.0, 20.0, 30.0]), np.array([50.0, 20.0, 50.0]))
    worst = worst_of([wide, tight], 40.0)
    assert worst is not None
    assert (worst.course, worst.share, worst.spans) == (tight, 0.4, ((20.0, 30.0),))


def test_throughput_is_goodput_of_each_second(folder: Path) -> None:
    result = load(folder).results[0]
    at_s, mbit = throughput(result, "west>server")
    assert list(at_s) == [*range(40), 40.0]
    assert mbit == pytest.approx([50.0] * 41, rel=1e-6)
    assert list(throughput(result, "no>where")[1]) == [0, 0]


@pytest.mark.slow
def test_a_long_run_keeps_its_mean_throughput_in_fewer_points(tmp_path: Path) -> None:
    result = load(write(tmp_path / "run", {"baseline": list(np.arange(1.0, 5001.0, 7))}, OUTAGE)).results[0]
    at_s, mbit = throughput(result, "west>server")
    assert len(at_s) <= 102 and mbit[:-2] == pytest.approx([50.0] * (len(mbit) - 2), rel=1e-3)


@pytest.mark.slow
def test_the_same_records_make_the_same_picture_whatever_the_users_settings(folder: Path) -> None:
    first = png(draw(load(folder), "replay"))
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9}):
        assert png(draw(load(folder), "replay")) == first


@pytest.mark.slow
def test_every_look_can_be_drawn(tmp_path: Path) -> None:
    """Some marks are letters and signs, which are no part of matplotlib's formats."""
    draw(load(write(tmp_path / "run", dict.fromkeys(SYSTEMS, SLOW))), "replay")


def test_without_a_trace_or_a_change_there_is_no_picture(tmp_path: Path) -> None:
    run = load(write(tmp_path / "run", {"baseline": SLOW}, ()))
    with pytest.raises(InputError, match="hold nothing for 'replay'"):
        draw(run, "replay")
    with_change = load(write(tmp_path / "other", {"baseline": SLOW}))
    with_change.info.topology = {}
    with pytest.raises(InputError, match="hold nothing for 'replay'"):
        draw(with_change, "replay")
