"""The commands `testbed profile` and `testbed trace`, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.cli import main
from testbed.report.pictures import network_map
from testbed.wan import profile, store, trace
from testbed.wan.profile import Cap, Link, Origin, Profile, Spread

PNG = b"\x89PNG\r\n"


def iperf3_log(mbit: float, client: str, server: str) -> str:
    size = {"start": 0, "end": 10, "seconds": 10, "bytes": mbit * 1e6 / 8 * 10, "bits_per_second": mbit * 1e6}
    start = {"connected": [{"local_host": client, "remote_host": server}], "test_start": {"protocol": "TCP"}}
    return json.dumps({"start": start, "intervals": [{"sum": size}], "end": {"sum_received": size}})


@pytest.fixture
def logs(tmp_path):
    """Logs of the two directions between 10.0.0.1 and 10.0.0.2, and of a test that failed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "there.json").write_text(iperf3_log(80, "10.0.0.1", "10.0.0.2"))
    (folder / "back.json").write_text(iperf3_log(60, "10.0.0.2", "10.0.0.1"))
    (folder / "down.json").write_text('{"start": {"connected": []}, "intervals": [], "end": {}, "error": "timed out"}')
    return folder


MAP = ["--map", "10.0.0.1=east", "--map", "10.0.0.2=west"]


def answer(capsys, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, output and errors of the command line."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments: str | Path) -> str:
    """The one line of an input error."""
    code, _, err = answer(capsys, *arguments)
    assert code == 2
    assert err.startswith("testbed: error: ")
    assert err.count("\n") == 1
    return err


def test_list_names_every_profile_with_its_regions(capsys):
    code, out, _ = answer(capsys, "profile", "list")
    assert code == 0
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:] if not line.startswith(" ")}
    assert rows == {name: str(len(profile.load(name).regions)) for name in profile.available()}
    for name in profile.available():
        it = profile.load(name)
        assert f"measured: {it.measured}\n" in out and f"for: {it.use}\n" in out


def test_a_trace_is_shown_and_checked(capsys, tmp_path):
    code, out, _ = answer(capsys, "trace", "show", "brownout")
    assert code == 0 and out.startswith("brownout: Synthetic: N. California's paths fade")
    assert "us-west-1>us-east-2: 6 changes, 11.9 to 119 Mbit/s, round trip 49 to 320 ms" in out
    assert "at 10 s  us-west-1>us-east-2  59.5 Mbit/s, round trip 80 ms" in out
    assert out.endswith("after the last, at 45 s, the run ends at 60 s\n") and "# end" not in out
    assert " more\nafter the last, " in answer(capsys, "trace", "show", "wanify-resampled")[1]
    code, out, _ = answer(capsys, "trace", "check", "outage", "--profile", "weightgrad-ec2")
    assert (code, out) == (0, "ok: outage: 4 changes of 2 links over 50 s\n")
    assert "no region 'us-west-1'" in refused(capsys, "trace", "check", "outage", "--profile", "residential")
    (tmp_path / "back.csv").write_text("time_s,src_region,dst_region,goodput_mbit\n5,a,b,1\n4,a,b,1\n")
    assert "back.csv:3: time goes back to 4 s" in refused(capsys, "trace", "check", tmp_path / "back.csv")


def test_show_prints_goodput_and_round_trip_of_every_pair(capsys):
    code, out, _ = answer(capsys, "profile", "show", "weightgrad-ec2")
    assert code == 0
    rows = [line.split() for line in out.splitlines()]
    assert ["us-west-1", "-", "99", "119*"] in rows
    assert ["us-east-2", "49", "11.4", "-"] in rows
    assert "LAN: 1000 Mbit/s, 0.2 ms (assumed)" in out
    assert "KDD 2020" in out


def test_show_prints_the_percentiles_where_there_are_any(capsys):
    _, out, _ = answer(capsys, "profile", "show", "wanify-8")
    assert "39.8-94.4" in out


def test_show_prints_loss_and_jitter_where_there_are_any(capsys, tmp_path):
    pairs = {("a", "b"): Link(10, 40, loss_percent=0.25, jitter_ms=7), ("b", "a"): Link(10, 40)}
    origins = {pair: Origin("x") for pair in pairs}
    made = Profile("p", "t", ("a", "b"), Link(1, 1), pairs, sources={"x": "measured"}, origins=origins)
    _, out, _ = answer(capsys, "profile", "show", store.save_profile(made, tmp_path))
    assert "Loss, % of the packets" in out and "0.25" in out
    assert "Jitter, ± ms" in out
    assert "Loss" not in answer(capsys, "profile", "show", "weightgrad-ec2")[1]


def test_show_keeps_to_the_width_of_the_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = answer(capsys, "profile", "show", "skyplane-22")
    matrices = out.partition("LAN:")[0].splitlines()
    assert max(map(len, matrices)) <= 80
    heads = [word for line in matrices if line.startswith(" ") for word in line.split()]
    assert heads == 2 * list(profile.load("skyplane-22").regions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["weightgrad-ec2", "cluster-80mbit"])
def test_show_draws_a_heat_map(capsys, tmp_path, name):
    code, out, _ = answer(capsys, "profile", "show", name, "--png", tmp_path / "map.png")
    assert code == 0
    assert (tmp_path / "map.png").read_bytes().startswith(PNG)
    assert out.endswith(f"written: {tmp_path / 'map.png'}\n")


def test_a_picture_that_cannot_be_written_is_an_error(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot be written" in refused(
        capsys, "profile", "show", "weightgrad-ec2", "--png", tmp_path / "file" / "map.png"
    )


def test_a_matrix_marks_assumed_figures_and_leaves_unknown_ones_open():
    pairs = {("a", "b"): Link(10, 1.25), ("b", "a"): Link(2000, 1.25)}
    origins = {("a", "b"): Origin("x", frozenset({"goodput_mbit"})), ("b", "a"): Origin("x")}
    made = Profile("p", "t", ("a", "b"), Link(1, 1), pairs, origins=origins, spread={("a", "b"): Spread(8, 12.5)})
    assert [line.split() for line in network_map.lines(made, network_map.GOODPUT, 80)[1:]] == [
        ["a", "b"],
        ["a", "-", "10*"],
        ["b", "2000", "-"],
    ]
    assert [line.split() for line in network_map.spread_lines(made, 80)[2:]] == [["a", "-", "8-12.5"], ["b", "-", "-"]]


def test_check_accepts_what_is_shipped_and_refuses_in_one_line(capsys, tmp_path):
    code, out, _ = answer(capsys, "profile", "check", "weightgrad-ec2")
    assert (code, out) == (0, "ok: weightgrad-ec2: 3 regions, 6 directed pairs, 2 with an assumed figure\n")
    for suffix in (".toml", ".csv"):
        text = (Path(profile.FOLDER) / f"weightgrad-ec2{suffix}").read_text()
        (tmp_path / f"mine{suffix}").write_text(text.replace("us-west-1,us-east-2,119", "us-west-1,us-east-2,0"))
    assert "mine.csv:6: goodput_mbit is 0; a rate must be above 0" in refused(
        capsys, "profile", "check", tmp_path / "mine.toml"
    )
    assert "did you mean 'wanify-8'" in refused(capsys, "profile", "check", "wanify8")


CAPPED = '[caps.{region}]\nsource = "weightgrad"\n{what}\n'


def capped(folder: Path, **fields: str) -> Path:
    header = (Path(profile.FOLDER) / "weightgrad-ec2.toml").read_text()
    (folder / "capped.csv").write_text((Path(profile.FOLDER) / "weightgrad-ec2.csv").read_text())
    (folder / "capped.toml").write_text(header + "\n" + CAPPED.format(**fields))
    return folder / "capped.toml"


def test_a_regions_cap_is_read_shown_and_scaled(capsys, tmp_path):
    path = capped(tmp_path, region="us-east-1", what="egress_mbit = 300")
    found = profile.load(str(path))
    assert found.caps == {"us-east-1": Cap(300.0, None, "weightgrad")}
    assert found.scaled(2).caps["us-east-1"].egress_mbit == 150.0
    _, out, _ = answer(capsys, "profile", "show", path)
    assert "cap of us-east-1: out 300 Mbit/s\n" in out


@pytest.mark.parametrize(
    ("region", "what", "line"),
    [
        ("us-east-9", "egress_mbit = 300", "caps.us-east-9: no region 'us-east-9' in the .csv; did you mean"),
        ("us-east-1", "egress_mbit = 0", "caps.us-east-1.egress_mbit is 0; a rate must be above 0"),
        ("us-east-1", "", "caps.us-east-1 caps nothing; set egress_mbit, ingress_mbit or both"),
        ("us-east-1", "egress = 5", "unknown field `egress`"),
    ],
)
def test_a_cap_that_cannot_be_is_refused(capsys, tmp_path, region, what, line):
    assert line in refused(capsys, "profile", "check", capped(tmp_path, region=region, what=what))


def test_import_iperf3_writes_a_profile_and_counts_failed_tests(capsys, tmp_path, logs):
    (tmp_path / "rtt.csv").write_text("src,dst,rtt_ms\neast,west,40\n")
    arguments = ["--rtt", tmp_path / "rtt.csv", "--name", "mine", "--out", tmp_path, "--source", "me, 2026, CC0"]
    code, out, _ = answer(capsys, "profile", "import", "iperf3", *sorted(logs.iterdir()), *MAP, *arguments)
    assert code == 0
    assert "1 failed test skipped; the first: " in out and "down.json:1: timed out" in out
    found = profile.load(str(tmp_path / "mine.toml"))
    assert found.pairs == {("east", "west"): Link(80, 40), ("west", "east"): Link(60, 40)}
    assert found.sources["rate"] == "me, 2026, CC0"
    assert found.lan_assumed and not found.assumed


def test_import_csv_takes_unit_round_trips_and_lan(capsys, tmp_path):
    (tmp_path / "rates.csv").write_text("src,dst,speed,rtt_ms\na,b,1.5,9\nb,a,2,9\n")
    options = ["--unit", "Gbit/s", "--column", "speed", "--name", "mine", "--out", tmp_path, "--lan-mbit", "2500"]
    code, _, _ = answer(capsys, "profile", "import", "csv", tmp_path / "rates.csv", *options)
    assert code == 0
    found = profile.load(str(tmp_path / "mine.toml"))
    assert found.pairs["a", "b"] == Link(1500, 9)
    assert (found.lan, found.lan_assumed) == (Link(2500, 0.2), False)


def test_a_refused_import_writes_nothing(capsys, tmp_path, logs):
    out = tmp_path / "out"
    there = logs / "there.json"
    refused(capsys, "profile", "import", "iperf3", there, *MAP, "--name", "mine", "--out", out)
    refused(capsys, "profile", "import", "iperf3", there, "--name", "mine", "--out", out)
    refused(capsys, "profile", "import", "csv", there, "--name", "mine", "--out", out)
    refused(capsys, "profile", "import", "iperf3", there, *MAP, "--map", "10.0.0.1=west", "--name", "x", "--out", out)
    assert not out.exists()


def test_an_imported_profile_is_not_overwritten(capsys, tmp_path):
    (tmp_path / "rates.csv").write_text("src,dst,goodput_mbit,rtt_ms\na,b,1,9\nb,a,2,9\n")
    command = ["profile", "import", "csv", tmp_path / "rates.csv", "--name", "mine", "--out", tmp_path]
    assert answer(capsys, *command)[0] == 0
    assert "there already" in refused(capsys, *command)
    assert answer(capsys, *command, "--replace")[0] == 0


TRACE = ["--profile", "weightgrad-ec2", "--name", "mine"]
PAIR = ["--pair", "us-west-1:us-east-1"]


def test_trace_import_mahimahi_loops_and_says_what_took_the_floor(capsys, tmp_path):
    (tmp_path / "phone").write_text("".join(f"{ms}\n" for ms in [*range(0, 1000, 2), *range(2000, 3001, 2)]))
    command = ["trace", "import", "mahimahi", tmp_path / "phone", *TRACE, *PAIR, "--out", tmp_path]
    code, out, _ = answer(capsys, *command)
    assert code == 0
    assert "1 of 3 rates were below the floor of 0.1 Mbit/s" in out
    path = tmp_path / "mine.csv"
    found = trace.load(path, profile.load("weightgrad-ec2").regions)
    assert found.period_s == 3.0
    assert [change.goodput_mbit for change in found.changes][:2] == [pytest.approx(500 * 1448 * 8e-6), 0.1]
    assert "floor of 0.1" in path.read_text()
    answer(capsys, *command, "--hold", "--replace")
    assert trace.load(path, ("us-west-1", "us-east-1")).period_s is None


def test_trace_import_iperf3_and_csv(capsys, tmp_path, logs):
    code, out, _ = answer(capsys, "trace", "import", "iperf3", logs / "there.json", *TRACE, *PAIR, "--out", tmp_path)
    assert code == 0 and "1 change over 10 s, then it holds" in out
    (tmp_path / "rates.csv").write_text("time_s,goodput\n0,10\n5,20\n")
    command = ["trace", "import", "csv", tmp_path / "rates.csv", "--profile", "wanify-8", *PAIR, "--out", tmp_path]
    assert answer(capsys, *command, "--name", "table", "--unit", "Mbit/s", "--loop", "10")[0] == 0
    assert trace.load(tmp_path / "table.csv", profile.load("wanify-8").regions).period_s == 10


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--pair", "us-west-1:us-east-9"], "profile weightgrad-ec2 has no region 'us-east-9'"),
        ([], "--pair SRC:DST"),
        ([*PAIR, "--interval", "nan"], "--interval nan: it must lie between"),
        ([*PAIR, "--floor", "0"], "--floor is 0; a rate must be above 0"),
        ([*PAIR, "--floor", "0.0001"], "--floor is 0.0001 Mbit/s; a rate must be at least 0.001"),
        ([*PAIR, "--loop", "1"], "--loop 1: the last change is at 1 s"),
        ([*PAIR, "--hold", "--loop", "9"], "give --hold or --loop, not both"),
    ],
)
def test_a_refused_trace_is_not_written(capsys, tmp_path, options, line):
    (tmp_path / "phone").write_text("0\n1000\n2000\n")
    command = ["trace", "import", "mahimahi", tmp_path / "phone", *TRACE, "--out", tmp_path / "out"]
    assert line in refused(capsys, *command, *options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pair", ["us-west-1", "a:a", ":b", "a:b/c"])
def test_a_pair_is_written_src_colon_dst(capsys, tmp_path, pair):
    assert main(["trace", "import", "mahimahi", "x", *TRACE, "--pair", pair]) == 2
    assert "is not SRC:DST, e.g. us-west-1:us-east-1" in capsys.readouterr().err


def test_measure_looks_at_its_options_before_it_measures(capsys, tmp_path):
    hosts = tmp_path / "hosts.toml"
    host = '[[hosts]]\nregion = "{0}"\naddress = "{0}"\ncommand = ["/nowhere/ssh"]\n'
    hosts.write_text(host.format("a") + host.format("b"))
    command = ["profile", "measure", hosts, "--out", tmp_path]
    assert "a name is up to" in refused(capsys, *command, "--name", "../x")
    assert "--lan-mbit is -1" in refused(capsys, *command, "--name", "x", "--lan-mbit", "-1")
    assert "/nowhere/ssh" in refused(capsys, *command, "--name", "x")


def test_the_commands_need_no_plotting_library_to_start():
    code = "import sys; from testbed.cli import main; main(['profile', 'list']); sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
