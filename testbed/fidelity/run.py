"""From a profile to `fidelity.json`, `fidelity.png` and an exit code."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

from testbed.fidelity import against, iperf, plot, report, speed, steps
from testbed.fidelity.measure import FULL, QUICK, measure
from testbed.wan import profile as profiles

AGAINST_S, AGAINST_QUICK_S = 30.0, 10.0  # length of the message schedule


def run(name: str, quick: bool, against_virtual: bool, folder: Path) -> int:
    """Measure, print, write; returns 1 when a bound is missed, else 0.

    Parameters
    ----------
    name : of the profile, or its TOML file
    quick : fewer sizes and repeats
    against_virtual : compare the emulated with the virtual network instead of with the profile
    folder : where the files go
    """
    profile = profiles.load(name)
    date, began_s, load = report.now(), monotonic(), os.getloadavg()

    def say(line: str) -> None:
        print(f"{monotonic() - began_s:6.1f} s  {line}", flush=True)

    if against_virtual:
        say("messages at the same times on both networks ...")
        result = against.compare(profile, AGAINST_QUICK_S if quick else AGAINST_S)
        if not quick:
            result.figures += steps.compare(name, profile.regions, say)
        say("messages on the virtual network alone ...")
        result.figures += speed.figures()
    else:
        result = measure(profile, QUICK if quick else FULL, say)
    facts: dict[str, Any] = {
        "profile": profile.name,
        "against": "virtual" if against_virtual else "profile",
        "quick": quick,
        "date": date,
        "took_s": round(monotonic() - began_s, 1),
        "goodput_tool": iperf.version() or "own probe",
        "load_before": load,
        "load_after": os.getloadavg(),
    }
    record = report.as_record(result, facts)
    report.show(result.figures)
    stem = "fidelity-virtual" if against_virtual else "fidelity"
    json_path, plot_path = folder / f"{stem}.json", folder / f"{stem}.png"
    report.write(json_path, record)
    draw = plot.draw_against if against_virtual else plot.draw
    draw(plot_path, result.figures, f"{profile.name}, {result.mechanism}")
    print(f"figures: {json_path}\nplot:    {plot_path}")
    return 0 if record["ok"] else 1
