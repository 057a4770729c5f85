"""What a user may get wrong: exit code 2, one line on standard error, and in it the words that mend it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import plain, toml

from testbed.cli import main

WRONG = [
    # words of the command line
    ("runn mine.toml", "command 'runn' is unknown; did you mean 'run'?"),
    ("sandbox --help", "command 'sandbox' is unknown"),
    ("", "COMMAND"),
    ("profile shw lan", "did you mean 'show'?"),
    ("run mine.toml --sytems baseline", "--sytems is unknown; did you mean --systems?"),
    ("run mine.toml extra", "extra is unknown (testbed run --help)"),
    ("run mine.toml --seeds one", "'one' is not a list of whole numbers, e.g. 0,1,2"),
    ("run mine.toml --seeds ,", "',' names none; leave the option out for all"),
    ("run mine.toml --systems ,", "',' names none; leave the option out for all"),
    ("sensitivity mine.toml --axes ,", "',' names none; leave the option out for all"),
    ("bench costs --size 1K", "--size 1000: the costs are timed on vectors of at least 2,000 elements"),
    ("bench codecs --budget 8m", "--budget is unknown"),
    ("run mine.toml --jobs 0", "'0' is not a whole number from 1"),
    ("run mine.toml -- python train.py", "only `testbed exec` takes a command after --"),
    # experiments, runs and profiles that are not there
    ("run", "name an experiment, e.g. testbed run cifarnet"),
    ("run cifarnt", "did you mean 'cifarnet'?"),
    ("run nowhere.toml", "or give the path of a .toml file"),
    ("plan cifarnt", "did you mean 'cifarnet'?"),
    ("tune cifarnt", "did you mean 'cifarnet'?"),
    ("run mine.toml --scale papr", "no [scale.papr]"),
    ("plot nowhere", "no run in nowhere"),
    ("compare results/mine/ru", "no run in results/mine/ru; near it: results/mine/run"),
    ("report results/mien/run", "no run in results/mien/run; near it: results/mine"),
    ("bytes results/mine/run", "run.json: says nothing of the run's model; put the file back"),
    ("clean --out reslts", "--out reslts: no such folder; name the one that holds results"),
    ("compare results/swept/series", "results/swept/series: no run to compare; name one that has begun"),
    ("explain results", "no run in results: it needs a folder results/<target>/<run-id>"),
    ("timeline results/mine", "it holds 1; the last is results/mine/run"),
    ("run --resume nowhere", "no run in nowhere"),
    ("run --resume results", "no run in results"),
    ("run mine.toml --resume results/mine/run", "give either an experiment or --resume RUN, not both"),
    ("run --resume results/mine/run --sweep a=1,2", "--sweep cannot go with --resume"),
    ("profile show weightgrad-ec", "did you mean 'weightgrad-ec2'?"),
    # keys and values
    ("run mine.toml --set training.step=5", "--set training.step: unknown key; did you mean 'training.steps'?"),
    ("run mine.toml --set steps=5", "--set steps: unknown key; did you mean 'training.steps'?"),
    ("run mine.toml --set run.steps=5", "--set run.steps: unknown key; did you mean 'training.steps'?"),
    ("run mine.toml --set topolgy.kind=flat", "--set topolgy: unknown key; did you mean 'topology'?"),
    (
        "run mine.toml --systems baseline --set systems.terngrad.float_last=true",
        "--set systems.terngrad.float_last: terngrad is not among the systems that are played; known: baseline",
    ),
    ("plan swept.toml", "a series of 2 runs; set its swept keys to take one of them: topology.wan_factor"),
    ("run mine.toml --set training.steps", "--set training.steps: write it as key.path=value"),
    ("run mine.toml --seeds 1,1", "--seeds run.seeds: a seed is named twice"),
    ("run mine.toml --trace nowhere/it.csv", "--trace topology.trace: nowhere/it.csv: No such file or directory in /"),
    ("run mine.toml --trace outagee", "--trace topology.trace: no trace 'outagee'; did you mean 'outage'? known: "),
    ("trace show outages.csv", "no trace 'outages.csv'; did you mean 'outage'?"),
    (
        "run mine.toml --timing-only --sizes weightgrad=2",
        "--sizes compute.sizes.weightgrad is 2.0: expected float <= 1",
    ),
    (
        "run mine.toml --timing-only --sizes weightgrad",
        "'weightgrad' is neither a run's folder nor like dgc=0.002,gaia=",
    ),
    ("run mine.toml --set cluster.nodes.us-west-1=a", "--set cluster.nodes.us-west-1 is 'a': expected array, got str"),
    ("run mine.toml --set run.seeds=1 --sweep run.seeds=1,2", "run.seeds is given by --set and by --sweep: which"),
    ("run mine.toml --set run.seeds=1 --seeds 1,2", "run.seeds is given by --set and by --seeds: which of them?"),
    ("run mine.toml --set training.steps=many", "--set training.steps is 'many': expected int"),
    ("run mine.toml --set topology.kind=ring", "--set topology.kind is 'ring'; known: flat, tree"),
    ("run mine.toml --set topology.profile=lna", "--set topology.profile: no profile 'lna'; did you mean 'lan'?"),
    ("run mine.toml --set topology.regions=us-west-1,us-eats-1", "did you mean 'us-east-1'?"),
    ("run mine.toml --set systems.weightgrad.t_locl_s=1", "did you mean 'systems.weightgrad.t_local_s'?"),
    ("run mine.toml --systems weightgard", "did you mean 'weightgrad'?"),
    ("run mine.toml --set model.name=tiney", "did you mean 'tiny'?"),
    ("run mine.toml --set compute.device=m61", "did you mean 'm60'?"),
    ("run mine.toml --fabric virtul", "did you mean 'virtual'?"),
    ("run mine.toml --plugin ./nowhere.py", "nowhere.py: no such file"),
    ("run mine.toml --fault boom", "boom"),
    ("run mine.toml --faults faults.toml", "error: faults.toml: faults[0]: no region 'nowhere' in this run"),
    ("run mine.toml --faults kind.toml", "error: kind.toml: faults[0]: unknown kind of fault 'partitoin'"),
    ("run faulty.toml --fault boom", "error: --fault faults[0]: unknown kind of fault 'boom'"),
    ("exec lan --hosts us-west-1=1 --faults kind.toml -- true", "error: kind.toml: faults[0]: unknown kind of fault"),
    # programs, benches, plans
    ("exec lan --hosts us-west-1=1 true -v", "true is unknown; a command stands after --, e.g. -- true -v"),
    ("bench codecs --threads 0", "--threads: '0' is not a whole number from 1"),
    ("bench codecs --rounds 0", "--rounds: '0' is not a whole number from 1"),
    ("bench codecs --only nosuch", "known: '1-bit with feedback', 'E3M0',"),
    ("plan --model resnet-50 --regions us-west-1,mars --profile lan", "--regions: profile lan has no region 'mars'"),
    # sweeps
    ("run mine.toml --sweep training.steps", "--sweep training.steps: write it as key.path=a,b"),
    ("run mine.toml --sweep training.step=4,5", "--sweep training.step: unknown key; did you mean 'training.steps'?"),
    ("run mine.toml --sweep training.steps=4,-1", "--sweep training.steps is -1: expected int >= 1"),
    ("run mine.toml --sweep training.steps=4,4", "two of its runs would be called 'steps=4'; leave one of them out"),
    ("run mine.toml --sweep run.fabric=virtual,mininet", "the runs of a series share their fabric"),
    ("run mine.toml --sweep training.steps=4,5 --sweep training.steps=6,7", "given twice; name all its values at once"),
    # what compare and plot are asked for
    ("plot results/mine/run --kind los", "did you mean 'loss'?"),
    ("compare results/mine/run --plot side.gif", "--plot side.gif: must end in .png or .pdf"),
    # measurements of one's own
    ("profile import iperf3 a__b.json --name mine", "a__b.json measured a to b; the way back needs a log of its own"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an experiment, a run that has recorded nothing, and one log of two that are needed."""
    (tmp_path / "mine.toml").write_text(toml(plain()))
    (tmp_path / "kind.toml").write_text("[[faults]]\nkind = 'partitoin'\n")
    (tmp_path / "faulty.toml").write_text(toml(plain()) + "faults = ['slow */w0 factor=3 at 0s']\n")
    fault = "[[faults]]\nkind = 'partition'\nregions = ['nowhere']\nat_s = 1\nfor_s = 1\n"
    (tmp_path / "faults.toml").write_text(fault)
    (tmp_path / "swept.toml").write_text(toml(plain()) + '\n[sweep]\n"topology.wan_factor" = [1.0, 0.5]\n')
    run = tmp_path / "results" / "mine" / "run"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"target": "mine", "systems": ["baseline"], "seeds": [0]}')
    series = tmp_path / "results" / "swept" / "series"
    series.mkdir(parents=True)
    asked = {"target": "mine", "fabric": "virtual", "device": "cpu", "command": [], "notes": [], "points": {"a=1": {}}}
    (series / "series.json").write_text(json.dumps(asked))
    rate = {"seconds": 10, "bytes": 125_000_000, "bits_per_second": 1e8}
    start = {"protocol": "TCP", "reverse": 0, "num_streams": 1}
    log = {
        "start": {"connected": [{"local_host": "10.0.0.1", "remote_host": "10.0.0.2"}], "test_start": start},
        "intervals": [],
        "end": {"sum_sent": rate, "sum_received": rate},
    }
    (tmp_path / "a__b.json").write_text(json.dumps(log))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line or "nothing" for line, _ in WRONG])
def test_what_is_wrong_is_one_line_that_says_what_to_do(
    folder: Path, line: str, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and error.startswith("testbed: error: ")
    assert words in error


HEAVY = ("torch", "ray", "numba", "pandas", "matplotlib")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("runn", marks=pytest.mark.slow),
        "run cifarnt",
        pytest.param("run mine.toml --set training.step=5", marks=pytest.mark.slow),
        pytest.param(
            "run mine.toml --set topology.regions=us-west-1 --sweep training.step=4,5", marks=pytest.mark.slow
        ),
        pytest.param("plan cifarnt", marks=pytest.mark.slow),
        pytest.param("plot nowhere", marks=pytest.mark.slow),
        pytest.param("run --resume nowhere", marks=pytest.mark.slow),
        pytest.param("compare results/mine/ru", marks=pytest.mark.slow),
    ],
)
def test_a_typo_waits_for_no_library(folder: Path, line: str) -> None:
    script = (
        f"import sys; from testbed.cli import main; print(main({line.split()!r}), *set({HEAVY!r}) & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2"], done.stdout


@pytest.mark.parametrize(("module", "status"), [("sandbox", 0), ("init", 1), ("probe", 1)])
def test_what_runs_inside_a_sandbox_does_nothing_when_it_is_asked_for_help(module: str, status: int) -> None:
    command = [sys.executable, "-P", "-m", f"testbed.emulation.{module}", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status and "sandbox" in done.stdout + done.stderr and "Traceback" not in done.stderr
