"""The netem path, on a kernel that surely has it: Debian's user-mode-linux, booted on this machine's own files.

It needs no privilege. Its clock and its one CPU are slower than a real machine's, so the bounds are wider.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import emulation_scenarios as scenarios
import pytest

pytestmark = [pytest.mark.emulation, pytest.mark.full]

HERE = Path(__file__).parent
KERNEL = "linux.uml"
TIME_LIMIT_S = 120
CONSOLE = ["con=null", "con0=fd:0,fd:1", "ssl=null", "quiet"]
ROOT = ["mem=1G", "rootfstype=hostfs", "rootflags=/", "root=/dev/root", "ro"]


def boot(folder: Path, names: list[str]) -> list[str]:
    """Boot, run scenarios, and return everything the machine printed."""
    shim, init = folder / "uml_ptrace.so", folder / "init"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, HERE / "uml_ptrace.c", "-ldl"], check=True)
    init.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "uml_guest.py"}" {" ".join(names)}\n')
    init.chmod(0o755)
    done = subprocess.run(
        [KERNEL, *ROOT, *CONSOLE, f"init={init}", f"uml_dir={folder}"],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not shutil.which(KERNEL):
        pytest.skip(f"no {KERNEL}; install Debian's package user-mode-linux")
    if not shutil.which("cc"):
        pytest.skip("no C compiler (cc); install gcc")
    printed = boot(tmp_path_factory.mktemp("uml"), ["links", "faults", "impaired"])
    assert not [line for line in printed if line.startswith("uml failed")], "\n".join(printed)
    found = [json.loads(line.removeprefix("uml: ")) for line in printed if line.startswith("uml: ")]
    assert len(found) == 3, "\n".join(printed)
    return found


def test_netem_is_what_this_kernel_offers(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["mechanism"] == "netem"


def test_the_round_trip_is_the_profiles(answers: list[dict[str, Any]]) -> None:
    rtt_s = scenarios.FORTH.rtt_ms / 1e3
    assert rtt_s - 0.001 < min(answers[0]["rtt_s"]) < rtt_s + 0.015


@pytest.mark.parametrize(("key", "goodput_mbit"), [("forth_s", 40), ("halved_s", 20), ("back_s", 15)])
def test_messages_take_size_over_rate_and_delay(answers: list[dict[str, Any]], key: str, goodput_mbit: float) -> None:
    expected = scenarios.MESSAGE_BYTES * 8 / goodput_mbit / 1e6 + scenarios.FORTH.rtt_ms / 1e3
    assert expected - 0.002 < min(answers[0][key]) < 1.05 * expected + 0.015


def test_the_counters_are_payload_and_headers(answers: list[dict[str, Any]]) -> None:
    payload = len(answers[0]["forth_s"]) * scenarios.MESSAGE_BYTES
    assert answers[0]["wire_bytes"]["a>b"] == pytest.approx(payload * 1514 / 1448, rel=0.03)


def test_what_is_not_as_asked_is_found_and_named(answers: list[dict[str, Any]]) -> None:
    said = answers[1]
    assert said["nothing"] == "nothing"
    assert "a>b is delayed by 11 ms, not 10" in said["delay"]
    assert "a>b is carried at 1000000 bytes/s" in said["wire rate"]
    assert "a>b is not delayed" in said["stage"]


def test_packets_are_lost_and_stray_as_often_and_as_far_as_asked(answers: list[dict[str, Any]]) -> None:
    seen = answers[2]
    assert 16 <= seen["lost"] <= 68, "10 % of 400, within four and a half standard deviations"
    assert min(seen["rtts_ms"]) > 40 - 15 - 1
    assert min(seen["rtts_ms"]) < 40 - 10
    late = [rtt for rtt in seen["rtts_ms"] if rtt > 40 + 10]
    assert len(late) / len(seen["rtts_ms"]) > 0.05, "a sixth of them, and what a slow clock adds"


def test_loss_and_jitter_are_read_back(answers: list[dict[str, Any]]) -> None:
    loss, jitter = answers[2]["said"]
    assert "a>b loses 9 % of its packets, not 10" in loss
    assert "a>b has a jitter of 14 ms, not 15" in jitter
