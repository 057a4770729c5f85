"""The stand-in for Mininet's helper, as far as it shows without a network (Mininet's own use: test_network)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed.emulation import mnexec


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", mnexec.__file__, *arguments], capture_output=True, text=True, check=False
    )


def test_the_command_takes_the_place_of_the_helper() -> None:
    done = call("-p", "sh", "-c", "echo $$; exit 3")
    assert done.returncode == 3
    mark, shell = done.stdout.split("\n")[:2]
    assert mark == f"\001{shell}"


def test_detached_means_a_session_of_its_own() -> None:
    done = call("-d", sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())")
    assert done.stdout == "True\n"


def test_options_of_the_command_are_left_alone() -> None:
    assert call("-c", "echo", "-n", "-d").stdout == "-d"


@pytest.mark.parametrize("arguments", [["-g", "group", "true"], ["-z", "true"]])
def test_an_unknown_option_is_refused(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.returncode == 1 and "usage: mnexec" in done.stderr


def test_a_missing_command_is_named() -> None:
    done = call("no-such-command")
    assert done.returncode == 1 and "mnexec: no-such-command: " in done.stderr


def test_it_is_installed_only_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    mnexec.install(tmp_path / "first")
    found = subprocess.run(["mnexec", "-v"], capture_output=True, text=True, check=True)
    assert "stand-in" in found.stdout
    mnexec.install(tmp_path / "second")
    assert not (tmp_path / "second").exists()
