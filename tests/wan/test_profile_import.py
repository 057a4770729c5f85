"""Profiles made of others' measurements: what is read, and the one line that says what cannot be."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wan_files import DATA, log, write_log

from testbed.errors import InputError
from testbed.wan import iperf3, profile, reading, store
from testbed.wan.import_profile import Labels, Rates, assemble, from_csv, from_iperf3, read_rtt
from testbed.wan.iperf3 import Failed, Test
from testbed.wan.profile import Cap, Link, Origin, Profile, Spread

HOSTS = {"10.0.0.1": "east", "10.0.0.2": "west"}
LABELS = Labels("two regions", "iperf3, 2026", "ping, 2026")
BOTH = {("east", "west"): 12.0}


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def only(tests: list[Test | Failed]) -> Test:
    [test] = tests
    assert isinstance(test, Test)
    return test


# iperf3's own logs


def test_the_streams_of_a_parallel_test_are_added_up():
    document = json.loads((DATA / "iperf3-3.12-three-streams.json").read_text())
    received = [stream["receiver"]["bytes"] for stream in document["end"]["streams"]]
    seconds = document["end"]["sum_received"]["seconds"]
    test = only(iperf3.read(DATA / "iperf3-3.12-three-streams.json"))
    assert len(received) == 3
    assert test.goodput_mbit == pytest.approx(sum(received) * 8e-6 / seconds)
    assert (test.src, test.dst) == ("127.0.0.7", "127.0.0.1")


def test_a_reverse_test_sends_from_the_server_to_the_client():
    test = only(iperf3.read(DATA / "iperf3-3.12-reverse.json"))
    assert (test.src, test.dst, test.forward) == ("127.0.0.1", "127.0.0.7", False)
    assert test.rtt_ms is None  # the sender was the other side


def test_a_servers_log_names_the_client_as_the_source():
    test = only(iperf3.read(DATA / "iperf3-3.12-server.json"))
    assert (test.src, test.dst) == ("127.0.0.7", "127.0.0.1")


def test_a_test_both_ways_counts_as_two():
    forward, back = iperf3.read(DATA / "iperf3-3.12-bidir.json")
    assert isinstance(forward, Test) and isinstance(back, Test)
    assert (forward.src, forward.dst) == (back.dst, back.src) == ("127.0.0.7", "127.0.0.1")
    assert forward.goodput_mbit != back.goodput_mbit


def test_addresses_of_ip_version_6_are_read_in_their_shortest_form(tmp_path):
    assert only(iperf3.read(DATA / "iperf3-3.12-ipv6.json")).src == "::1"
    long = write_log(tmp_path / "log.json", log(9, "2001:db8:0:0:0:0:0:1", "::ffff:10.0.0.2"))
    assert (only(iperf3.read(long)).src, only(iperf3.read(long)).dst) == ("2001:db8::1", "10.0.0.2")


def test_failed_tests_are_listed_and_not_counted():
    rates = from_iperf3([DATA / "iperf3-3.12-failed.json", DATA / "iperf3-3.12-server.json"],
                        {"127.0.0.7": "a", "127.0.0.1": "b"})  # fmt: skip
    assert list(rates.goodput_mbit) == [("a", "b")]
    [failed] = rates.failed
    assert failed.error == "unable to connect to server: Connection refused"


def test_failed_tests_alone_make_no_profile():
    with pytest.raises(InputError, match=r"no iperf3 test that succeeded; .*failed\.json:1: unable to connect"):
        from_iperf3([DATA / "iperf3-3.12-failed.json"], {})


def test_several_runs_of_a_pair_give_the_median_and_from_five_on_percentiles(tmp_path):
    runs = [90.0, 110.0, 100.0, 70.0, 130.0]
    path = write_log(tmp_path / "all.json", *(log(mbit) for mbit in runs), log(40, reverse=True))
    made = assemble("two", from_iperf3([path], HOSTS), BOTH, LABELS, None)
    assert made.link("east", "west").goodput_mbit == pytest.approx(100)
    assert made.link("west", "east").goodput_mbit == pytest.approx(40)
    assert list(made.spread) == [("east", "west")]
    spread = made.spread["east", "west"]
    assert (spread.p10_mbit, spread.p90_mbit) == (pytest.approx(78), pytest.approx(122))


def test_a_file_name_says_client_and_server(tmp_path):
    paths = [
        write_log(tmp_path / "us-east-1__eu-west-1.json", log(80)),
        write_log(tmp_path / "us-east-1__eu-west-1__again.json", log(60, reverse=True)),
    ]
    rates = from_iperf3(paths, {})
    assert rates.goodput_mbit == {
        ("us-east-1", "eu-west-1"): [pytest.approx(80)],
        ("eu-west-1", "us-east-1"): [pytest.approx(60)],
    }


def test_the_hosts_in_a_file_name_are_mapped_too(tmp_path):
    path = write_log(tmp_path / "node-a__west.json", log(80))
    assert list(from_iperf3([path], {"node-a": "east", "10.0.0.2": "west"}).goodput_mbit) == [("east", "west")]


def test_without_a_table_of_round_trips_those_under_load_stand_in_as_assumed(tmp_path):
    path = write_log(tmp_path / "log.json", log(50, rtt_us=13_000), log(51, rtt_us=12_000), log(40, reverse=True))
    made = assemble("two", from_iperf3([path], HOSTS), {}, LABELS, None)
    assert {link.rtt_ms for link in made.pairs.values()} == {12.0}
    assert made.assumed == set(made.pairs)
    assert "not below the idle RTT" in made.sources["loaded-rtt"]


def refuse(line: str):
    return pytest.raises(InputError, match="^[^\n]*" + line + "[^\n]*$")


def test_a_log_that_is_cut_off_is_named_with_its_line(tmp_path):
    whole = (DATA / "iperf3-3.12-server.json").read_text()
    path = write(tmp_path / "cut.json", whole[: whole.index('"sum_received"')])
    lines = path.read_text().count("\n") + 1
    with refuse(rf"cut\.json:{lines}: not complete JSON"):
        iperf3.read(path)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 0.995))
def test_no_cut_makes_a_log_that_is_taken_for_whole(tmp_path_factory, share):
    whole = (DATA / "iperf3-3.12-three-streams.json").read_text()
    path = tmp_path_factory.mktemp("cut") / "cut.json"
    path.write_text(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=r"cut\.json:\d+: "):
        iperf3.read(path)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda d: d["end"]["sum_received"].update(bits_per_second=0, bytes=0), r"log\.json:1: .* rate is 0"),
        (lambda d: d["end"]["sum_received"].update(bits_per_second=-5e6), r"log\.json:1: .* rate is -5"),
        (lambda d: d["end"]["sum_received"].update(bits_per_second=50.0), "not 50 bit/s; .* its unit is another"),
        (lambda d: d["end"]["sum_received"].update(bits_per_second="fast"), "not an iperf3 log: Expected `float`"),
        (lambda d: d["start"].update(connected=[]), "does not say who took part"),
        (lambda d: d["start"]["test_start"].update(protocol="UDP"), "a UDP test"),
        (lambda d: d["intervals"].reverse(), "time goes back at 0 s"),
        (lambda d: d.pop("end"), "not an iperf3 log; write one with `iperf3 -J`"),
    ],
)
def test_a_log_that_cannot_be_is_refused_in_one_line(tmp_path, change, line):
    document = log([50.0, 50.0])
    change(document)
    with refuse(line):
        from_iperf3([write_log(tmp_path / "log.json", document)], HOSTS)


@pytest.mark.parametrize("text", ["", "[1, 2]", "[" * 100_000, "null", '{"start": {}, "end": {"x": NaN}}'])
def test_json_that_is_no_log_is_refused(tmp_path, text):
    with refuse(r"log\.json:1: "):
        iperf3.read(write(tmp_path / "log.json", text))


def test_a_host_without_a_region_is_named_with_the_option_that_helps(tmp_path):
    path = write_log(tmp_path / "log.json", log(50, server="10.0.0.9"))
    with refuse(r"log\.json:1: no region for host '10\.0\.0\.9'; add --map 10\.0\.0\.9=REGION"):
        from_iperf3([path], HOSTS)


def test_a_region_with_a_slash_is_refused(tmp_path):
    with refuse("region is 'ea/st'"):
        from_iperf3([write_log(tmp_path / "log.json", log(50))], {"10.0.0.1": "ea/st", "10.0.0.2": "west"})


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(reading.LIMIT_BYTES + 1)
    with refuse("at most 33,554,432 are read"):
        iperf3.read(path)


@pytest.mark.parametrize("path", [Path("/dev/zero"), Path("/nowhere/log.json"), Path("/")])
def test_what_is_not_a_file_is_refused(path):
    with refuse(str(path)):
        iperf3.read(path)


# tables of rates


def test_a_table_of_rates_states_its_unit(tmp_path):
    path = write(tmp_path / "rates.csv", "src,dst,goodput\neast,west,0.25\nwest,east,0.5\n")
    rates = from_csv(path, "Gbit/s", None)
    assert rates.goodput_mbit == {("east", "west"): [250.0], ("west", "east"): [500.0]}
    assert from_csv(path, "MB/s", None).goodput_mbit["east", "west"] == [2.0]


def test_a_column_can_tell_unit_and_round_trip(tmp_path):
    text = "dst_region,src_region,rtt_ms,throughput_mbit_s\nwest,east,12,80\neast,west,12,90\n"
    rates = from_csv(write(tmp_path / "rates.csv", text), None, None)
    assert rates.goodput_mbit["east", "west"] == [80.0]
    assert rates.rtt_ms["west", "east"] == 12.0


@pytest.mark.parametrize(
    ("text", "unit", "line"),
    [
        ("src,dst,goodput\na,b,10\n", None, r"rates\.csv:1: column goodput has no unit; say --unit"),
        ("src,dst,goodput_gbit\na,b,10\n", "Mbit/s", r":1: column goodput_gbit is in Gbit/s by its name"),
        ("src,dst,goodput\na,b,fast\n", "Mbit/s", r":2: goodput is 'fast'; it must be a number"),
        ("src,dst,goodput\na,b,nan\n", "Mbit/s", r":2: goodput is 'nan'; it must be a number"),
        ("src,dst,goodput\na,b,10\nb,a,-1\n", "Mbit/s", r":3: goodput is -1; a rate must be above 0"),
        ("src,dst,goodput\na,b,0\n", "Mbit/s", r":2: goodput is 0; a rate must be above 0"),
        ("src,dst,goodput\na,b,95000000\n", "Gbit/s", r":2: goodput is .* the unit must be wrong"),
        ("src,dst,goodput\na,b,10\n\na,b,11\n", "Mbit/s", r":4: a to b stands there twice"),
        ("src,dst,goodput\na,a,10\n", "Mbit/s", r":2: a link from a to itself"),
        ("src,dst,goodput\na,b\n", "Mbit/s", r":2: 2 fields; a row needs src, dst, goodput"),
        ("src,dst,goodput\na/x,b,1\n", "Mbit/s", r":2: src is 'a/x'"),
        ("src,to,goodput\na,b,1\n", "Mbit/s", r":1: no column 'dst_region'"),
        ("src,dst,rate\na,b,1\n", "Mbit/s", r":1: which column is the rate\? say --column"),
        ("src,dst,goodput\n", "Mbit/s", r":1: no rows below the header"),
        ('src,dst,goodput\na,"b,1\n', "Mbit/s", r":\d+: not CSV"),
        ("", "Mbit/s", r":1: no header"),
        ("src,src,goodput\n", "Mbit/s", r":1: column 'src' stands there twice"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_file_and_line(tmp_path, text, unit, line):
    with refuse(line):
        from_csv(write(tmp_path / "rates.csv", text), unit, None)


def test_a_table_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_bytes(b"src,dst,goodput\n\xff\xfe,b,1\n")
    with refuse(r"rates\.csv: not a text file"):
        from_csv(path, "Mbit/s", None)


# round trips


def test_round_trips_come_as_a_long_table_or_a_square_one(tmp_path):
    long = write(tmp_path / "long.csv", "src,dst,rtt_ms,mdev\na,a,1.5,0\na,b,12,0.1\nb,a,13,0.1\n")
    square = write(tmp_path / "square.csv", "region,a,b\na,1.5,12\nb,13,\n")
    assert read_rtt(long) == read_rtt(square) == {("a", "b"): 12.0, ("b", "a"): 13.0}


def test_round_trips_in_seconds(tmp_path):
    assert read_rtt(write(tmp_path / "rtt.csv", "src,dst,rtt_s\na,b,0.012\n"), "s") == {("a", "b"): pytest.approx(12)}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("src,dst,rtt_ms\na,b,-1\n", r"rtt\.csv:2: rtt_ms is -1; it must not be negative"),
        ("src,dst,rtt_ms\na,b,120000\n", r":2: rtt_ms is 120000 ms; above 60000 the unit must be wrong"),
        ("src,dst,rtt_ms\na,b,1\na,b,1\n", r":3: a to b stands there twice"),
        ("src,dst,rtt_us\na,b,1\n", r":1: no column 'rtt_ms'"),
        ("region,a,b\na,,12\nc,1,2\n", r":3: no column for region 'c'"),
        ("region,a,b\na,,x\n", r":2: b is 'x'; it must be a number"),
        ("region,a,b\na,,12\na,,13\n", r":3: a to b stands there twice"),
        ("region,a,b\n", r":1: no round-trip times"),
    ],
)
def test_a_table_of_round_trips_that_cannot_be_is_refused(tmp_path, text, line):
    with refuse(line):
        read_rtt(write(tmp_path / "rtt.csv", text))


def test_a_pair_without_a_round_trip_is_named():
    rates = Rates({("east", "west"): [10.0], ("west", "east"): [10.0]})
    with refuse("none for east and west; did you mean 'est'"):
        assemble("two", rates, {("est", "west"): 1.0}, LABELS, None)
    with refuse("no round-trip time for east and west; give a table with --rtt"):
        assemble("two", rates, {}, LABELS, None)


def test_a_pair_measured_one_way_only_is_named():
    with refuse("profile two: no rate for west to east"):
        assemble("two", Rates({("east", "west"): [10.0]}), BOTH, LABELS, None)


# writing and reading back

NAMES = st.text("abcdefgXYZ0123456789._-", min_size=1, max_size=12).filter(lambda name: name[0].isalnum())
RATES = st.floats(1e-3, 1e6)
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=40)


@st.composite
def links(draw) -> Link:
    rtt_ms, impaired = draw(st.floats(0, 500)), draw(st.booleans())
    loss, jitter = (st.floats(0, 99), st.floats(0, rtt_ms / 2)) if impaired else (st.just(0.0), st.just(0.0))
    return Link(draw(RATES), rtt_ms, draw(loss), draw(jitter))


@st.composite
def profiles(draw) -> Profile:
    regions = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    pairs = {pair: draw(links()) for pair in permutations(regions, 2)}
    keys = st.sampled_from(["iperf", "ping", "iperf+ping"])
    figures = st.frozensets(st.sampled_from(["goodput_mbit", "rtt_ms"]))
    some = draw(st.lists(st.sampled_from(list(pairs)), unique=True))
    caps = st.builds(Cap, RATES, st.none() | RATES, st.just("iperf"))
    return Profile(
        name=draw(NAMES),
        title=draw(WORDS),
        measured=draw(WORDS),
        use=draw(WORDS),
        regions=tuple(dict.fromkeys(region for pair in pairs for region in pair)),
        lan=Link(draw(RATES), draw(st.floats(0, 5))),
        pairs=pairs,
        sources={"iperf": draw(WORDS), "ping": draw(WORDS), "a key": "quoted"},
        origins={pair: Origin(draw(keys), draw(figures)) for pair in pairs},
        spread={pair: Spread(*sorted((draw(RATES), draw(RATES)))) for pair in some},
        caps={region: draw(caps) for region in draw(st.lists(st.sampled_from(regions), unique=True))},
        notes=draw(WORDS),
        lan_source=draw(st.sampled_from(["", "iperf"])),
        lan_assumed=draw(st.booleans()),
    )


@settings(max_examples=40, deadline=None)
@given(made=profiles())
def test_what_is_saved_is_what_is_loaded(tmp_path_factory, made):
    path = store.save_profile(made, tmp_path_factory.mktemp("profiles"))
    assert profile.load(str(path)) == made


def profile_file(folder: Path, header: str, row: str) -> Path:
    """A profile of two regions; the row is that from a to b."""
    write(folder / "p.csv", f"{header}\n{row}\nb,a,5,40,s,{',' * (header.count(',') - 5)}\n")
    return write(
        folder / "p.toml", 'title = ""\nlan = {goodput_mbit = 1000, rtt_ms = 0.2}\n[sources]\ns = "measured"\n'
    )


IMPAIRED = ",".join(profile.COLUMNS + profile.IMPAIRMENT_COLUMNS)


def test_loss_and_jitter_of_a_direction_are_read_and_an_empty_cell_is_none(tmp_path):
    made = profile.load(str(profile_file(tmp_path, IMPAIRED, "a,b,5,40,s,loss_percent,1.5,20")))
    assert made.link("a", "b") == Link(5, 40, loss_percent=1.5, jitter_ms=20)
    assert made.link("b", "a") == Link(5, 40)
    assert made.link("a", "b").impaired and not made.link("b", "a").impaired
    slowed = made.scaled(3).link("a", "b")
    assert (slowed.loss_percent, slowed.jitter_ms) == (1.5, 60), "a lost packet stays one; jitter is a time"


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ("-1,0", r"p\.csv:2: loss_percent is -1; it must be at least 0 and below 100"),
        ("100,0", r"p\.csv:2: loss_percent is 100; it must be"),
        ("few,0", r"p\.csv:2: loss_percent is 'few'; it must be a number"),
        ("0,20.1", r"p\.csv:2: jitter_ms is 20\.1; it must be at least 0 and at most the one-way delay, 20 ms"),
        ("0,-1", r"p\.csv:2: jitter_ms is -1"),
    ],
)
def test_loss_and_jitter_that_cannot_be_are_refused(tmp_path, cells, line):
    path = profile_file(tmp_path, IMPAIRED, f"a,b,5,40,s,,{cells}")
    with refuse(line):
        profile.load(str(path))


def test_of_a_group_of_columns_none_may_be_missing(tmp_path):
    header = ",".join((*profile.COLUMNS, "loss_percent"))
    with refuse(r"p\.csv:1: columns must be .*assumed,loss_percent,jitter_ms, found .*assumed, loss_percent$"):
        profile.load(str(profile_file(tmp_path, header, "a,b,5,40,s,,1")))


def test_nothing_is_overwritten_unless_asked(tmp_path):
    rates = Rates({("east", "west"): [10.0], ("west", "east"): [20.0]})
    made = assemble("two", rates, BOTH, LABELS, Link(500.0, 0.1))
    path = store.save_profile(made, tmp_path)
    before = path.read_text()
    with refuse(r"two\.toml: there already; choose another --name, or say --replace"):
        store.save_profile(made, tmp_path)
    assert path.read_text() == before
    store.save_profile(made, tmp_path, replace=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["two.csv", "two.toml"]


@pytest.mark.parametrize("name", ["../two", "", ".two", "a b", "x" * 64])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    rates = Rates({("east", "west"): [10.0], ("west", "east"): [20.0]})
    with refuse("a name is up to 63 letters"):
        store.save_profile(assemble(name, rates, BOTH, LABELS, None), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    rates = Rates({("east", "west"): [10.0], ("west", "east"): [20.0]})
    write(tmp_path / "file", "")
    with refuse("file/two.* cannot be written"):
        store.save_profile(assemble("two", rates, BOTH, LABELS, None), tmp_path / "file")


# whatever a file holds


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, f"title = {'9' * 5000}", "\0", "title = 1979-01-01"])
def test_toml_that_is_no_profile_is_refused_in_one_line(tmp_path, text):
    with refuse(r"p\.toml: "):
        profile.load(str(write(tmp_path / "p.toml", text)))


@settings(max_examples=150, deadline=None)
@given(content=st.binary(max_size=200) | st.text('src,dt_0123.-\n"#{}[]:', max_size=120).map(str.encode))
def test_no_content_makes_a_reader_fail_otherwise_than_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "file.toml"
    path.write_bytes(content)
    readers = (
        lambda: iperf3.read(path),
        lambda: from_csv(path, "Mbit/s", None),
        lambda: read_rtt(path),
        lambda: profile.load(str(path)),
    )
    for reader in readers:
        with pytest.raises(InputError) as caught:
            reader()
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
