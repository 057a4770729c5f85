"""Files far larger than any network's: read or refused in a time and a memory that grow as the file does."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from wan_files import log

from testbed.errors import InputError
from testbed.wan import iperf3, profile, reading
from testbed.wan.import_profile import Labels, Rates, assemble, from_csv, read_rtt
from testbed.wan.measure import read_hosts

MANY = 200_000


def one_line(error: InputError) -> str:
    text = str(error)
    assert "\n" not in text and len(text) < 4_000
    return text


def test_the_pairs_that_a_chain_of_regions_lacks_are_counted_and_not_listed() -> None:
    chain = {(f"r{number}", f"r{number + 1}"): [1.0] for number in range(5_000)}
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as error:
            assemble("mine", Rates(chain), {}, Labels("", ""), None)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert one_line(error.value).endswith(f"no rate for r0 to r2 and {5_001 * 5_000 - 5_000 - 1:,} more")
    assert peak_bytes < 10e6


def test_missing_pairs_are_counted_as_they_are() -> None:
    with pytest.raises(InputError, match=r"no row for b to a$"):
        profile.check_complete({("a", "b")}, "here")
    with pytest.raises(InputError, match=r"no row for a to c and 2 more$"):
        profile.check_complete([("a", "b"), ("b", "a"), ("b", "c")], "here")  # a set has no order
    profile.check_complete({("a", "b"), ("b", "a")}, "here")


@pytest.mark.slow
def test_a_table_of_very_many_columns_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    names = [f"c{number}" for number in range(MANY)]
    path.write_text(f"{','.join(names)}\n{','.join('1' for _ in range(3))}\n")
    for read in (
        lambda: from_csv(path, "Mbit/s", None),
        lambda: read_rtt(path),
        lambda: list(reading.read_table(path).rows),
    ):
        with pytest.raises(InputError) as error:
            read()
        one_line(error.value)
    path.write_text(f"{','.join(names)},c7\n")
    with pytest.raises(InputError, match=r"column 'c7' stands there twice"):
        reading.read_table(path)


@pytest.mark.slow
def test_very_many_logs_in_one_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "joined.json"
    failed = json.dumps({"start": {}, "end": {}, "error": "no route"})
    path.write_text("\n".join([failed] * (MANY - 1) + [json.dumps(log(5))]))
    found = iperf3.read(path)
    assert len(found) == MANY
    assert (found[0].where, found[-1].where) == (f"{path}:1", f"{path}:{MANY}")


@pytest.mark.slow
def test_a_list_of_very_many_hosts_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    hosts = [f'[[hosts]]\nregion = "r{number}"\naddress = "a"\n' for number in range(50_000)]
    path.write_text("".join([*hosts, hosts[0]]))
    with pytest.raises(InputError, match="r0 has two hosts"):
        read_hosts(path)
