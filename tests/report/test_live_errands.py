"""Many errands at once on the terminal, and without one."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from testbed.report.live_errands import Errands


def test_a_terminal_shows_each_that_is_under_way_with_its_node_and_steps() -> None:
    out, said = StringIO(), list[str]()
    console = Console(file=out, force_terminal=True, width=100, height=20)
    with Errands(3, said.append, console) as view:
        view.see({"gaia, seed 0": ("10.0.0.2", 40, 200), "[/bold], seed 1": ("10.0.0.3", 0, 0)})
        view.say("node 10.0.0.4 is passed over: [/bold]")
        view.done("dgc, seed 0", "10.0.0.3")
    shown = out.getvalue()
    for part in ("gaia, seed 0", "40/200", "10.0.0.2", "[/bold], seed 1", "starting", "1 of 3 done, 2 under way"):
        assert part in shown
    assert "node 10.0.0.4 is passed over: [/bold]" in shown and not said


def test_without_a_terminal_each_that_is_done_is_a_line() -> None:
    said = list[str]()
    with Errands(2, said.append, Console(file=StringIO(), force_terminal=False)) as view:
        view.see({"gaia, seed 0": ("10.0.0.2", 40, 200)})
        view.done("gaia, seed 0", "10.0.0.2")
    assert said == ["gaia, seed 0: done on 10.0.0.2 (1 of 2)"]
