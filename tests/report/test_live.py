"""Progress is a live view on a terminal, a few plain lines elsewhere, and never in the way."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable

import pytest
from rich.console import Console

from testbed.record.events import Capacity, LinkBytes, StepDone
from testbed.report.live import Progress
from testbed.report.plain_progress import PlainProgress
from testbed.roles.roles import Roles

ROLES = Roles(("us-west-1", "us-east-1"), 2, "us-east-2")
WAN = {
    f"{a}>{b}": 99.0 for a in ("us-west-1", "us-east-1", "us-east-2") for b in ("us-west-1", "us-east-1", "us-east-2")
}
RATE = 1514 / 1448 * 1e6 / 8  # wire bytes per second for each Mbit/s of goodput


def step(number: int, *losses: float, time_s: float = 12.34) -> Iterable[StepDone]:
    return [
        StepDone(time_s=time_s, node=f"w{k}", step=number, loss=loss, compute_s=0.0) for k, loss in enumerate(losses)
    ]


def links(time_s: float, mbit: dict[str, float]) -> LinkBytes:
    wire_bytes = {name: round(rate * RATE) for name, rate in mbit.items()}
    return LinkBytes(time_s=time_s, interval_s=1.0, wire_bytes=wire_bytes)


def terminal(width: int = 120, height: int = 40) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def lines_of(total: int, steps: range, now: list[float] | None = None) -> list[str]:
    console = Console(file=io.StringIO())
    ticks = iter(now or [0.0] * 10_000)
    with Progress("weightgrad, seed 0", total, ROLES, WAN, console, now=lambda: next(ticks)) as progress:
        for number in steps:
            for event in (links(number, {"us-west-1>us-east-2": 99.4}), *step(number, 1.0, 2.0, 1.0, 2.0)):
                progress.see(event)
    return shown(console).splitlines()


def test_without_a_terminal_a_line_comes_at_every_tenth() -> None:
    lines = lines_of(400, range(400))
    assert len(lines) == 11
    assert lines[-1] == "weightgrad, seed 0: step 400/400 loss 1.500  at 12.3 s  WAN 99.4 Mbit/s, 5.20 GB"
    assert not any("\x1b" in line for line in lines)


def test_without_a_terminal_a_line_comes_after_half_a_minute() -> None:
    now = [0.0, *(11.0 * k for k in range(1, 10))]
    assert [line.split()[4] for line in lines_of(100_000, range(9), now)] == ["1/100,000", "4/100,000", "7/100,000"]


def test_a_step_counts_once_all_workers_have_reported_it() -> None:
    console = Console(file=io.StringIO())
    with Progress("x", 1, ROLES, WAN, console) as progress:
        for event in step(0, 1.0, 2.0, 3.0):
            progress.see(event)
        assert shown(console) == ""
        progress.see(StepDone(time_s=20.0, node="w3", step=0, loss=4.0, compute_s=0.0))
    assert shown(console) == "x: step 1/1 loss 2.500  at 20.0 s\n"


def test_a_terminal_shows_the_regions_their_roles_and_the_use_of_their_links() -> None:
    console = terminal()
    with Progress("baseline, seed 1", 10, ROLES, WAN, console) as progress:
        progress.see(Capacity(time_s=0.0, link="us-east-2>us-west-1", goodput_mbit=20.0))
        for second in (1.0, 2.0):
            mbit = {"us-west-1>us-east-2": 49.5, "us-east-2>us-west-1": 20.0, "us-west-1/w0>us-west-1": 400.0}
            progress.see(links(second, mbit))
        for number, loss in enumerate((2.3, 2.0)):
            for event in step(number, *[loss] * 4):
                progress.see(event)
        assert progress._live is not None
        progress._live.refresh()
    rows = [line.split() for line in shown(console).splitlines()]
    assert ["us-west-1", "LPS,", "2", "workers", "us-east-2", "█" * 10 + "░" * 10, "49.5", "of", "99.0"] in rows
    assert ["us-east-2", "global", "server", "us-east-1", "░" * 20, "0.0", "of", "99.0"] in rows
    assert ["us-west-1", "█" * 20, "20.0", "of", "20.0"] in rows
    assert "2/10" in shown(console) and "baseline, seed 1" in shown(console)
    assert "loss 2.000  at 12.3 s  WAN 69.5 Mbit/s, 18.2 MB  █▁" in shown(console)


def test_a_run_within_one_region_says_so_and_counts_no_wan() -> None:
    console = terminal()
    with Progress("x", 2, Roles(("rack-1",), 2, "rack-1", kind="flat"), {}, console) as progress:
        for event in (*(links(second, {"rack-1/w0>rack-1": 400.0}) for second in (1.0, 2.0)), *step(0, 2.0, 2.0)):
            progress.see(event)
        assert progress._live is not None
        progress._live.refresh()
    assert "rack-1  global server, 2 workers: nothing crosses a WAN" in shown(console)
    assert "WAN 0" not in shown(console)


def test_where_there_is_no_room_the_busiest_links_are_shown() -> None:
    console = terminal(height=8)
    with Progress("x", 10, ROLES, WAN, console) as progress:
        for second in (1.0, 2.0):
            progress.see(links(second, {"us-east-2>us-east-1": 90.0, "us-west-1>us-east-2": 50.0}))
        assert progress._live is not None
        progress._live.refresh()
    last = shown(console).rpartition("region")[2]
    assert "90.0 of 99.0" in last and "50.0 of 99.0" in last and " 0.0 of" not in last
    assert "2 links that carry less are not shown" in last


def test_what_stays_on_the_terminal_is_the_bar_and_the_facts() -> None:
    console = terminal()
    with Progress("baseline, seed 1", 1, ROLES, WAN, console) as progress:
        for event in step(0, *[2.0] * 4):
            progress.see(event)
    kept = shown(console).rpartition("\x1b[2K")[2]
    assert "1/1" in kept and "loss 2.000" in kept and "us-east-2" not in kept


def test_nothing_it_is_told_and_no_closed_file_raises() -> None:
    for console in (Console(file=io.StringIO()), terminal()):
        progress = Progress("x", 0, ROLES, {}, console)
        for loss in (float("nan"), float("inf")):
            for event in step(3, *[loss] * 4):
                progress.see(event)
        progress.see(StepDone(time_s="no", step="three", loss=None, compute_s=0.0))  # type: ignore[arg-type]
        progress.see(LinkBytes(time_s=1.0, interval_s=0.0, wire_bytes={"a>b": 5}))
        console.file.close()
        for event in step(4, *[1.0] * 4):
            progress.see(event)
        progress.close()
        progress.close()


@pytest.mark.parametrize("kind", [Progress, PlainProgress])
def test_a_run_outlives_whoever_reads_its_progress(
    kind: type[Progress] | type[PlainProgress], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    out = os.fstat(1)
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr(sys, "stderr", broken)
        with kind("x", 10, ROLES, WAN) as progress:
            for number in range(10):
                for event in step(number, *[1.0] * 4):
                    progress.see(event)
        if kind is PlainProgress:  # as the command line does at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), writing)
    assert os.fstat(1) == out, "standard output leads elsewhere"
