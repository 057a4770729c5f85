"""Pictures are drawn from the records alone, one column wide, and only those that the records have data for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from testbed.errors import InputError
from testbed.record import frames, lines
from testbed.record.events import Bits, Computed, Delivered, Evaluated, Event, Exchange, Faulted, StepDone, Threshold
from testbed.record.info import DataInfo, LinkInfo
from testbed.record.reader import load
from testbed.report import looks
from testbed.report.numbers.summary import aggregate, summarize
from testbed.report.pictures import draw, parts, write
from testbed.report.pictures.registry import drawn, gallery
from testbed.report.pictures.style import COLUMN

pytestmark = pytest.mark.slow

MakeRun = Callable[..., Path]
NETWORK = {
    "us-west-1>us-east-2": LinkInfo(goodput_mbit=119.0, rtt_ms=49.0),
    "us-east-2>us-west-1": LinkInfo(goodput_mbit=119.0, rtt_ms=49.0),
    "us-east-1>us-east-2": LinkInfo(goodput_mbit=327.0, rtt_ms=11.5),
    "us-east-2>us-east-1": LinkInfo(goodput_mbit=329.0, rtt_ms=11.5),
    "lan": LinkInfo(goodput_mbit=1000.0, rtt_ms=0.2),
}
PROBED = {"section": "goodput", "name": "us-west-1>us-east-2", "unit": "Mbit/s", "asked": 119.0, "measured": 118.0}
GATE = {"figures": [{**PROBED, "bound": "± 5 %", "ok": True}]}


def add(folder: Path, system: str, *events: Event) -> None:
    """Put events into the records of a finished system, all its seeds, before their last line."""
    for one in (folder / system).iterdir():
        add_to(one, *events)


def add_to(one: Path, *events: Event) -> None:
    """The same of one seed."""
    path = one / lines.FILE_NAME
    *before, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, *map(lines.encode, events), last]))
    frames.write(one)


@pytest.fixture
def whole(make_run: MakeRun) -> Path:
    """A run that has the data of every kind."""
    folder = make_run(systems=["baseline", "weightgrad", "mqgrad"], seeds=(0, 1, 2), network=NETWORK, gate=GATE)
    crossed = [
        Threshold(time_s=k + 1.0, node=f"{region}/lps", step=k, significance=5.0 + k, threshold=4.0)
        for k in range(4)
        for region in ("us-west-1", "us-east-1")
    ]
    rounds = [Exchange(time_s=k + 1.5, node="us-east-2/gs", round=k, included=[], reason="asked") for k in range(4)]
    add(folder, "weightgrad", *crossed, *rounds)
    add(folder, "mqgrad", *(Bits(time_s=1.0, node="us-east-2/gs", step=5 * k, bits=2 + k) for k in range(4)))
    for system in ("baseline", "weightgrad", "mqgrad"):
        cut = {"fault": 0, "kind": "cut", "about": "cut us-west-1=us-east-2"}
        met = (Faulted(time_s=1.0, **cut), Faulted(time_s=2.0, over=True, **cut))
        add(folder, system, Evaluated(time_s=1.0, step=1, model="full", loss=2.0, accuracy=0.2, images=10), *met)
        ends = {"peer": "us-west-1/w0", "node": "us-west-1/lps"}
        add(folder, system, Computed(time_s=0.5, node="us-west-1/w0", what="gradient", seconds=0.5))
        add(folder, system, Delivered(time_s=0.9, kind="gradient", sent_s=0.5, nbytes=100, **ends))
    return folder


def test_each_kind_is_drawn_where_its_data_are_and_only_there(whole: Path, make_run: MakeRun, tmp_path: Path) -> None:
    run = load(whole)
    paths = write([run], tmp_path / "whole", formats=["png"])
    assert [path.stem for path in paths] == [kind.name for kind in gallery()]
    bare = load(make_run("bare", systems=["terngrad"], target={}))
    paths = write([bare], tmp_path / "bare", formats=["png"])
    assert [path.stem for path in paths] == ["loss", "time"]


def test_a_picture_is_one_column_wide_and_the_same_each_time(whole: Path, tmp_path: Path) -> None:
    run = load(whole)
    first = write([run], tmp_path / "a", ["speedup"])
    with matplotlib.rc_context({"font.size": 30, "pdf.fonttype": 3}):
        again = write([load(whole)], tmp_path / "b", ["speedup"])
    assert [path.name for path in first] == ["speedup.png", "speedup.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert imread(first[0]).shape[1] == round(parts.WIDTH_INCHES * COLUMN.dpi)
    assert b"/FontFile2" in first[1].read_bytes()  # TrueType, whatever the user's matplotlibrc says


def test_the_bits_on_average_count_every_step(whole: Path) -> None:
    run = load(whole)
    steps = len(next(result for result in run.results if result.system == "mqgrad").steps)
    chosen = [2 + min(step // 5, 3) for step in range(steps)]
    title = draw(run, "bits").axes[0].get_title("left")
    assert title == f"MQGrad: {np.mean(chosen):.1f} bits on average"


def test_the_speedups_drawn_are_the_summarys_and_the_papers_stand_beside(whole: Path) -> None:
    run = load(whole)
    axes = draw(run, "speedup").axes[0]
    means = (
        summarize(run)
        .groupby("system", sort=False)["speedup_vs_baseline"]
        .apply(lambda each: each.prod() ** (1 / len(each)))
    )
    assert [bar.get_width() for bar in axes.patches] == pytest.approx(list(means))
    papers = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "D"]
    assert papers == [5.36]


def test_a_target_that_was_not_reached_has_no_bar(make_run: MakeRun) -> None:
    run = load(make_run(ends={"terngrad": (20, "interrupted")}))
    axes = draw(run, "speedup").axes[0]
    assert axes.patches[1].get_width() == 0 and "not reached" in [text.get_text() for text in axes.texts]


def test_a_seed_without_its_baseline_is_not_drawn_as_one_that_missed_the_target(make_run: MakeRun) -> None:
    run = load(make_run(systems=["baseline", "terngrad"], seeds=(0, 1), ends={("baseline", 1): (110, None)}))
    for kind in ("speedup", "ranking"):
        words = [text.get_text() for axes in draw(run, kind).axes for text in axes.texts]
        assert "not known" in words and not any("not reached" in each for each in words)


def test_bandwidth_is_the_profiles_with_what_the_gate_measured(whole: Path) -> None:
    axes = draw(load(whole), "bandwidth").axes[0]
    assert [bar.get_width() for bar in axes.patches] == [1000.0, 328.0, 119.0]
    assert [text.get_text() for text in axes.texts] == ["1,000", "328  LAN/3.05", "119  LAN/8.40"]
    assert [line.get_xdata()[0] for line in axes.lines] == [118.0]


def test_the_use_of_a_link_is_its_goodput_against_its_rate(whole: Path) -> None:
    figure = draw(load(whole), "wan")
    share = np.nanmean(figure.axes[0].images[0].get_array()[0])
    bytes_per_s = 17_200_000 / 4 / 1.9
    assert share == pytest.approx(100 * bytes_per_s * 8e-6 * 1448 / 1514 / 327.0, rel=0.02)


def test_the_parts_of_a_step_add_up_to_it(make_run: MakeRun) -> None:
    folder = make_run(systems=["baseline"])
    spent = {"compute_s": 0.15, "codec_s": 0.05, "lan_s": 0.2, "wan_s": 1.0}
    add(folder, "baseline", *(StepDone(time_s=1.9 * (k + 1), step=k, loss=1.0, **spent) for k in range(120)))
    axes = draw(load(folder), "time").axes[0]
    assert len(axes.patches) == 5
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(1.9)


def test_runs_with_more_workers_are_drawn_in_their_order(make_run: MakeRun, tmp_path: Path) -> None:
    shapes = {count: {"regions": ["a", "b"], "workers_per_region": count} for count in (5, 2, 3)}
    runs = [load(make_run(f"w{count}", topology=shape)) for count, shape in shapes.items()]
    (path,) = write(runs, tmp_path, formats=["png"])
    assert path.name == "workers.png" and path.stat().st_size > 10_000
    with pytest.raises(InputError, match=r"hold nothing for 'workers'.*that all runs have"):
        write([runs[0], load(make_run("other", systems=["gaia"]))], tmp_path)


def test_stand_in_data_is_marked_on_every_picture(make_run: MakeRun) -> None:
    run = load(make_run(seeds=(0, 1), network=NETWORK, data=DataInfo(dataset="CIFAR-10", stand_in=True)))
    made = [drawn(kind, [run], summarize(run)) for kind in gallery()]
    titles = [figure.get_suptitle() for figure in made if figure is not None]
    assert len(titles) >= 5 and set(titles) == {"STAND-IN DATA"}


@pytest.mark.parametrize(
    ("kinds", "formats", "said"), [(["sped"], ["png"], "speedup"), ([], ["gif"], "known: pdf, png")]
)
def test_what_is_not_known_is_refused_with_what_is(
    make_run: MakeRun, tmp_path: Path, kinds: list[str], formats: list[str], said: str
) -> None:
    run = load(make_run())
    with pytest.raises(InputError, match=said):
        write([run], tmp_path, kinds, formats)


# Machado, Oliveira and Fernandes (2009), severity 1.0, on linear RGB.
DEFICIENCIES = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(color: str, kind: str) -> np.ndarray:
    """CIE Lab (D65) of a colour as somebody with that deficiency sees it."""
    rgb = np.array(matplotlib.colors.to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(DEFICIENCIES[kind]) @ linear, 0, 1)
    f = np.cbrt(TO_XYZ @ seen / [0.9505, 1.0, 1.089])
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", DEFICIENCIES)
def test_no_two_systems_look_alike_to_anybody(kind: str) -> None:
    known = looks.known()
    assert len({one.marker for one in known.values()}) == len(known)
    for a in known.values():
        for b in known.values():
            if a.label < b.label and a.line == b.line:
                assert np.linalg.norm(lab(a.color, kind) - lab(b.color, kind)) > 8, (a.label, b.label)


def test_every_system_that_can_be_run_has_a_look() -> None:
    from testbed.systems import SYSTEMS

    assert set(SYSTEMS) <= set(looks.known())


def test_a_ranking_has_the_fastest_on_top_and_each_system_its_interval_and_accuracy(whole: Path) -> None:
    run = load(whole)
    together = aggregate(summarize(run)).set_index("system")
    figure = draw(run, "ranking")
    speedups, accuracies = figure.axes
    order = together["speedup_vs_baseline"].sort_values(ascending=False).index
    assert [label.get_text() for label in speedups.get_yticklabels()] == [looks.look(name).label for name in order]
    for axes, metric, scale in ((speedups, "speedup_vs_baseline", 1.0), (accuracies, "accuracy_vs_baseline", 100.0)):
        points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
        assert np.allclose(points, scale * together.loc[order, metric].to_numpy(dtype=float))
        spans = [tuple(line.get_xdata()) for line in axes.lines if line.get_marker() != "o" and line.get_alpha()]
        ends = scale * together.loc[order, [f"{metric}_low", f"{metric}_high"]].to_numpy(dtype=float)
        assert np.allclose(spans, ends[~np.isnan(ends).any(axis=1)])


def test_the_main_metric_stands_at_the_time_and_the_bytes_of_each_test(make_run: MakeRun) -> None:
    folder = make_run(systems=["baseline", "weightgrad"])
    at_s = [0.0, 1.0, 2.0, 3.0]
    for system, better in (("baseline", 0.0), ("weightgrad", 0.1)):
        tests = [
            Evaluated(time_s=t, step=k, model="full", loss=2.0, accuracy=0.2 * k + better, images=10, probe=True)
            for k, t in enumerate(at_s)
        ]
        add(folder, system, *tests)
    run = load(folder)
    left, right = draw(run, "metric").axes
    for number, (system, better) in enumerate((("baseline", 0.0), ("weightgrad", 0.1))):
        result = next(each for each in run.results if each.system == system)
        assert left.lines[number].get_xdata().tolist() == at_s[1:], "the model before the first step is nobody's"
        expected = [100 * (0.2 * k + better) for k in (1, 2, 3)]
        assert left.lines[number].get_ydata().tolist() == pytest.approx(expected)
        links = [link for link in result.link_bytes if "/" not in link]
        sent = [sum(result.link_bytes_until(t, links).values()) for t in at_s[1:]]
        assert right.lines[number].get_xdata().tolist() == [size for size in sent if size]
    with pytest.raises(InputError, match="hold nothing for 'metric'"):
        draw(load(make_run("bare", systems=["baseline"])), "metric")


def test_the_main_metric_is_the_mean_of_the_seeds_at_the_steps_that_all_were_tested_at(make_run: MakeRun) -> None:
    folder = make_run(systems=["baseline"], seeds=(0, 1, 2))  # the last was never tested
    for seed, steps, seconds in ((0, (1, 2, 3), 1.0), (1, (1, 2), 3.0)):
        tests = [
            Evaluated(
                time_s=seconds * k, step=k, model="full", loss=2.0, accuracy=0.2 * k + 0.1 * seed, images=10, probe=True
            )
            for k in steps
        ]
        add_to(folder / "baseline" / f"seed-{seed}", *tests)
    left, _ = draw(load(folder), "metric").axes
    assert left.lines[0].get_xdata().tolist() == [2.0, 4.0]
    assert left.lines[0].get_ydata().tolist() == pytest.approx([25.0, 45.0])
    assert left.get_ylabel().endswith("mean over seeds")


def test_a_seed_that_was_stopped_cuts_no_line_of_tests_short(make_run: MakeRun) -> None:
    ends: dict[str | tuple[str, int], tuple[int, str | None]] = {("baseline", 1): (20, "interrupted")}
    folder = make_run(systems=["baseline", "weightgrad"], seeds=(0, 1), ends={**ends, "weightgrad": (0, None)})
    for seed, last in ((0, 100), (1, 20)):
        tests = [
            Evaluated(time_s=1.9 * k, step=k, model="full", loss=2.0, accuracy=0.2 + seed, images=10, probe=True)
            for k in range(10, last + 1, 10)
        ]
        add_to(folder / "baseline" / f"seed-{seed}", *tests)
    for kind in ("accuracy", "metric"):
        line = draw(load(folder), kind).axes[0].lines[0]
        assert line.get_xdata()[-1] == pytest.approx(190.0)
        assert line.get_ydata().tolist() == pytest.approx([20.0] * 10)


def test_there_is_no_ranking_where_no_system_reached_the_target(make_run: MakeRun) -> None:
    with pytest.raises(InputError, match="hold nothing for 'ranking'"):
        draw(load(make_run(target={"loss": 0.1, "window": 10})), "ranking")
