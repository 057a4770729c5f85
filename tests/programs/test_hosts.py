"""Which hosts a program gets, and what it is told of them."""

from __future__ import annotations

import pytest

from testbed.cli.command_line import main
from testbed.errors import InputError
from testbed.programs import hosts
from testbed.wan import profile as profiles

ADDRESSES = {"a/h0": "10.1.0.2", "a/h1": "10.1.1.2", "b/h0": "10.2.0.2"}


def test_hosts_are_counted_by_region_in_the_order_asked() -> None:
    profile = profiles.load("weightgrad-ec2")
    plan = hosts.plan_of(profile, hosts.asked("us-east-1=2, us-west-1=1"))
    assert plan.hosts == ("us-east-1/h0", "us-east-1/h1", "us-west-1/h0")


@pytest.mark.parametrize("text", ["", "us-west-1", "us-west-1=0", "us-west-1=x", "us-west-1=251", "a=1,,b=1", "=3"])
def test_what_is_no_number_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^--hosts: '.*' is not like us-west-1=4, with 1 to 250 hosts$"):
        hosts.asked(text)


def test_a_program_is_told_its_place() -> None:
    told = hosts.environment(ADDRESSES, "a/h1", gpus=["0", "1"])
    assert (told["RANK"], told["NODE_RANK"], told["WORLD_SIZE"]) == ("1", "1", "3")
    assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.1.0.2", "29500")
    assert {told[f"{who}_SOCKET_IFNAME"] for who in ("GLOO", "NCCL", "TP")} == {"eth0"}
    assert (told["TESTBED_HOST"], told["TESTBED_REGION"]) == ("a-h1", "a")
    assert told["TESTBED_HOSTS"] == "a-h0=10.1.0.2,a-h1=10.1.1.2,b-h0=10.2.0.2"
    assert told["CUDA_VISIBLE_DEVICES"] == "1"


def test_gpus_are_dealt_out_in_turn() -> None:
    dealt = [hosts.environment(ADDRESSES, host, ["0", "1"])["CUDA_VISIBLE_DEVICES"] for host in ADDRESSES]
    assert dealt == ["0", "1", "0"]
    assert "CUDA_VISIBLE_DEVICES" not in hosts.environment(ADDRESSES, "a/h0")


def test_names_of_hosts_and_regions() -> None:
    lines = [line.split() for line in hosts.names(ADDRESSES).splitlines()]
    assert {name: address for address, name in lines} == {
        "a-h0": "10.1.0.2",
        "a-h1": "10.1.1.2",
        "b-h0": "10.2.0.2",
        "a": "10.1.0.2",
        "b": "10.2.0.2",
    }


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("nowhere --hosts us-west-1=1 -- true", "no profile 'nowhere'"),
        ("weightgrad-ec2 --hosts us-west=1 -- true", "profile weightgrad-ec2 has no region 'us-west'"),
        (
            "weightgrad-ec2 --hosts us-w=1 -- true",
            "'us-west-1'? known: us-east-1, us-east-2, us-west-1\n",
        ),
        ("weightgrad-ec2 --hosts us-west-1=1,us-west-1=2 -- true", "region us-west-1 is there twice"),
        ("weightgrad-ec2 --hosts us-west-1=1", "testbed exec needs a command, after --, or --start FILE: one of them"),
        ("weightgrad-ec2 --hosts us-west-1=1 --start a.toml -- true", "after --, or --start FILE: one of them"),
        ("weightgrad-ec2 --hosts us-west-1=1 --start none.toml", "none.toml: No such file"),
        ("weightgrad-ec2 --hosts us-west-1=1 --publish us-west-1:80 -- true", "is not like us-east-1-h0:8080=9000"),
        ("weightgrad-ec2 --hosts us-west-1=1 --publish us-west-1:80=0 -- true", "with ports from 1 to 65535"),
        ("weightgrad-ec2 --hosts us-west-1=1 --publish nobody:80=9000 -- true", "no host or region 'nobody'"),
        ("weightgrad-ec2 --hosts us-west-1=1 -- no-such-program", "no command 'no-such-program' on this machine"),
        ("weightgrad-ec2 --hosts us-west-1=1 --dilation 0 -- true", "--dilation: 0 is not between 1 and 1000"),
        (
            "weightgrad-ec2 --hosts us-west-1=1 --out /etc/hostname -- true",
            "/etc/hostname is there and no empty folder",
        ),
        ("weightgrad-ec2 --hosts us-west-1=1 --trace none.csv -- true", "none.csv"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exec", *arguments.split()]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1


def test_no_other_command_takes_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--", "ls"]) == 2
    assert "only `testbed exec` takes a command after --" in capsys.readouterr().err
