"""What a cluster needs besides Ray: archives that lead nowhere else, and machines that are told apart."""

from __future__ import annotations

import gzip
import tarfile
from io import BytesIO
from pathlib import Path

import msgspec
import numpy as np
import pytest
from small_runs import plain

from testbed.errors import RunError
from testbed.experiment.load import from_dict
from testbed.fabrics.cluster import fitness
from testbed.fabrics.cluster.baggage import Baggage
from testbed.harness.cluster import archive
from testbed.workloads import Arrays
from testbed.workloads.fingerprint import fingerprint


def packed(*members: tuple[str, bytes, bytes]) -> bytes:
    """An archive of (name, content, type)."""
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), "/etc/passwd"
            tar.addfile(member, BytesIO(data))
    return content.getvalue()


def test_a_folder_comes_back_as_it_was_and_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    source, place = tmp_path / "a" / "seed-0", tmp_path / "b" / "seed-0"
    (source / "checkpoint-4").mkdir(parents=True)
    (source / "events.jsonl").write_bytes(b"one\n" * 1000)
    (source / "checkpoint-4" / "clock.json").write_text("{}")
    (source / "run.lock").touch()
    place.mkdir(parents=True)
    (place / "old").touch()
    archive.unpack(archive.pack(source), place)
    found = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {"events.jsonl": b"one\n" * 1000, "checkpoint-4/clock.json": b"{}"}
    assert [path.name for path in place.parent.iterdir()] == ["seed-0"]


@pytest.mark.parametrize(
    "content",
    [
        packed(("../outside", b"x", tarfile.REGTYPE)),
        packed(("fine/../../outside", b"x", tarfile.REGTYPE)),
        packed(("/tmp/outside", b"x", tarfile.REGTYPE)),
        packed(("link", b"", tarfile.SYMTYPE)),
        packed(("link", b"", tarfile.LNKTYPE)),
        packed(("device", b"", tarfile.CHRTYPE)),
        packed(("events.jsonl", bytes(range(256)) * 400, tarfile.REGTYPE))[:-300],
        b"no archive",
        b"",
    ],
)
def test_what_is_no_archive_of_plain_files_changes_nothing(tmp_path: Path, content: bytes) -> None:
    place = tmp_path / "deep" / "seed-0"
    place.mkdir(parents=True)
    (place / "kept").touch()
    with pytest.raises(RunError, match="the records that came are damaged") as error:
        archive.unpack(content, place)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "kept", "seed-0"]


def test_a_member_that_claims_more_than_the_disk_holds_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("events.jsonl")
    member.size = 1 << 60
    with pytest.raises(RunError, match="no room for the records that came"):
        archive.unpack(gzip.compress(member.tobuf()), tmp_path / "seed-0")


def test_a_data_set_is_told_by_its_examples() -> None:
    x = np.arange(1200, dtype=np.float32).reshape(300, 4)
    y = np.arange(300) % 3

    def of(x: np.ndarray, y: np.ndarray) -> str:
        return fingerprint(Arrays(x[:200], y[:200], x[200:], y[200:]))

    assert of(x, y) == of(x.copy(), y.copy())
    other, labels = x.copy(), y.copy()
    other[0, 0] += 1
    labels[123] = (labels[123] + 1) % 3
    assert len({of(x, y), of(other, y), of(x, labels), of(x[:290], y[:290])}) == 4


def test_a_machine_says_why_it_cannot_take_part(small_data: None) -> None:
    it = plain()
    facts = fitness.here(it)
    assert fitness.unfit(facts, it, None) == ""
    older = msgspec.structs.replace(facts, packages={**facts.packages, "torch": "1.0"})
    assert fitness.unfit(older, it, None).endswith("the driver's 1.0; install the same there")
    assert "the driver sparc" in fitness.unfit(msgspec.structs.replace(facts, machine="sparc"), it, None)
    assert fitness.unfit(facts, it, Path("/proc")) == "its disk is full (/proc); make room there"
    assert "its data set 'synthetic' is not the driver's" in fitness.unfit(
        msgspec.structs.replace(facts, dataset="another"), it, None
    )


def test_files_that_an_experiment_names_are_found_where_it_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text("time_s,src_region,dst_region,goodput_mbit\n1,us-west-1,us-east-2,5\n")
    it = plain(topology={**plain()["topology"], "trace": str(trace)})
    baggage = Baggage([from_dict(it, "test")], tmp_path / "baggage")
    assert (tmp_path / "baggage" / "code" / "testbed" / "shipped" / "experiments" / "cifarnet.toml").is_file()
    monkeypatch.chdir(baggage.runtime_env["working_dir"])
    trace.unlink()
    there = from_dict(baggage.renamed(it), "there")
    assert there.trace is not None and there.trace.changes[0].goodput_mbit == 5
    assert there.topology.profile.startswith("files/") and there.plan.profile.name == "weightgrad-ec2"
