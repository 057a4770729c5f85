"""Progress is a bar on a terminal, a few plain lines elsewhere, and never in the way."""

from __future__ import annotations

import io

from rich.console import Console

from testbed.report.live import Progress


def lines_of(total: int, steps: range, now: list[float] | None = None) -> list[str]:
    out = io.StringIO()
    ticks = iter(now or [0.0] * 10_000)
    with Progress(total, "weightgrad seed 0", Console(file=out), now=lambda: next(ticks)) as progress:
        for step in steps:
            progress.update(step, 1.5, 12.34, 99.44)
    return out.getvalue().splitlines()


def test_without_a_terminal_a_line_comes_at_every_tenth() -> None:
    lines = lines_of(400, range(1, 401))
    assert len(lines) == 11
    assert lines[-1] == "weightgrad seed 0: step 400/400 loss 1.500  at 12.3 s  WAN 99.4 Mbit/s"
    assert not any("\x1b" in line for line in lines)


def test_without_a_terminal_a_line_comes_after_half_a_minute() -> None:
    now = [0.0, *(11.0 * k for k in range(1, 10))]
    assert [line.split()[4] for line in lines_of(100_000, range(1, 10), now)] == ["1/100,000", "4/100,000", "7/100,000"]


def test_a_terminal_shows_a_bar_with_loss_clock_and_rate() -> None:
    out = io.StringIO()
    with Progress(10, "baseline seed 1", Console(file=out, force_terminal=True, width=120)) as progress:
        progress.update(5, 2.0, 3.0, 80.0)
    shown = out.getvalue()
    assert "baseline seed 1" in shown and "5/10" in shown
    assert "loss 2.000  at 3.00 s  WAN 80.0 Mbit/s" in shown


def test_what_is_not_known_is_left_out() -> None:
    out = io.StringIO()
    Progress(1, "x", Console(file=out)).update(1)
    assert out.getvalue() == "x: step 1/1\n"


def test_nothing_it_is_told_and_no_closed_file_raises() -> None:
    out = io.StringIO()
    progress = Progress(0, "x", Console(file=out))
    progress.update(3, float("nan"), float("inf"), None)
    progress.update("three", "no", None, None)  # type: ignore[arg-type]
    out.close()
    progress.update(4, 1.0, 1.0, 1.0)
    progress.close()
    progress.close()
