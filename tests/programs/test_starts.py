"""Files that say what starts where."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.programs import hosts
from testbed.programs.starts import Ready, Start, load
from testbed.wan import profile as profiles

PLAN = hosts.plan_of(profiles.load("weightgrad-ec2"), {"us-west-1": 2, "us-east-1": 1})
WEST = ("us-west-1/h0", "us-west-1/h1")


def read(folder: Path, text: str) -> list[Start]:
    (folder / "it.toml").write_text(text)
    return load(folder / "it.toml", PLAN)


def test_hosts_are_named_alone_by_region_or_together(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        [[start]]
        hosts = "us-east-1-h0"
        run = "sh -c 'echo a b'"
        ready = "port 8080"
        service = true
        environment = { WHO = "me" }
        [[start]]
        hosts = ["us-west-1/h1", "us-west-1"]
        run = ["sh", "-c", "true"]
        ready = "line listening on 8080"
        within_s = 5
        [[start]]
        run = "true"
        """,
    )
    assert found == [
        Start(("us-east-1/h0",), ("sh", "-c", "echo a b"), (("WHO", "me"),), Ready(port=8080), service=True),
        Start(("us-west-1/h1", "us-west-1/h0"), ("sh", "-c", "true"), (), Ready(line="listening on 8080", within_s=5)),
        Start((*WEST, "us-east-1/h0"), ("true",)),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "start is missing"),
        ("start = []", "start is"),
        ("[[start]]", r"start\[0\].run is missing"),
        ("[[start]]\nrun = 3", "run is 3"),
        ("[[start]]\nrun = ''", "start 1: run is ''; it must be a command and its arguments"),
        ('[[start]]\nrun = "sh \'"', "start 1: run is .*No closing quotation"),
        (
            '[[start]]\nrun = "true"\nreddy = "port 1"',
            "unknown key 'start\\[0\\].reddy'; did you mean 'start\\[0\\].ready'",
        ),
        (
            '[[start]]\nrun = "true"\nready = "port 99999"',
            "start 1: ready is 'port 99999'; it must be like 'port 8080'",
        ),
        ('[[start]]\nrun = "true"\nready = "soon"', "start 1: ready is 'soon'"),
        ('[[start]]\nrun = "true"\nwithin_s = 0', "within_s is 0"),
        (
            '[[start]]\nrun = "true"\nhosts = "us-west"',
            "start 1: no host or region 'us-west'; did you mean 'us-west-1'",
        ),
        ('[[start]]\nrun = "no-such-program"', "no command 'no-such-program' on this machine; .* is ./no-such-program"),
        ('[[start]]\nrun = "/no/program"', "no command '/no/program' on this machine; is it there, and executable"),
        ('[[start]]\nrun = "true"\nservice = true', "all that it starts are services"),
        ('[[start]]\nrun = "true"\nenvironment = { "A=B" = "" }', "start 1: environment has 'A=B'"),
        ("[[start", "it.toml: "),
        ('[[start]]\nrun = ["tr\\u0000ue"]', "start 1: run is"),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_file(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(InputError, match=rf"it\.toml: .*{line.removeprefix('it.toml: ')}") as raised:
        read(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_a_large_file_is_not_read_into_memory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at most 1,048,576"):
        read(tmp_path, "#" * (1 << 20) + "\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml", PLAN)
