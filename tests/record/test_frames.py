"""Events become frames: means over workers, bytes per second, to the byte."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.record import frames, lines
from testbed.record.events import Checkpointed, Evaluated, Event, LinkBytes, StepDone, Threshold
from testbed.record.recorder import Recorder


def parse(folder: Path, *events: Event) -> frames.Frames:
    path = folder / lines.FILE_NAME
    path.write_bytes(b"".join(map(lines.encode, events)))
    return frames.parse(path)


def done(step: int, worker: int, time_s: float, loss: float, compute_s: float = 1.0) -> StepDone:
    return StepDone(time_s=time_s, node=f"a/w{worker}", step=step, loss=loss, compute_s=compute_s)


def sent(end_s: float, interval_s: float, wire_bytes: int, link: str = "a>b") -> LinkBytes:
    return LinkBytes(time_s=end_s, interval_s=interval_s, wire_bytes={link: wire_bytes})


def test_a_step_is_the_mean_over_workers_and_ends_with_the_last(tmp_path: Path) -> None:
    events = done(0, 0, 1.5, 2.0, 0.5), done(0, 1, 1.25, 4.0, 1.0), done(1, 1, 2.0, 1.0)
    frame = parse(tmp_path, *events).steps
    measured = frame.drop(columns=["codec_s", "lan_s", "wan_s"])
    assert measured.to_dict("list") == {
        "step": [0, 1],
        "time_s": [1.5, 2.0],
        "loss": [3.0, 1.0],
        "compute_s": [0.75, 1.0],
        "workers": [2, 1],
    }


def test_where_a_step_went_is_the_mean_over_the_workers_that_said_so(tmp_path: Path) -> None:
    spent = {"codec_s": 0.25, "lan_s": 0.5, "wan_s": 2.0}
    told = StepDone(time_s=4.0, node="a/w0", step=0, loss=1.0, compute_s=0.5, **spent)
    frame = parse(tmp_path, told, msgspec.structs.replace(told, node="a/w1", wan_s=3.0), done(1, 0, 5.0, 1.0)).steps
    assert frame[["codec_s", "lan_s", "wan_s"]].to_numpy()[0].tolist() == [0.25, 0.5, 2.5]
    assert frame[["codec_s", "lan_s", "wan_s"]].iloc[1].isna().all()


def test_a_file_of_an_older_testbed_has_the_newer_columns_without_values(tmp_path: Path) -> None:
    steps = parse(tmp_path, done(0, 0, 1.0, 2.0)).steps
    frames.write(tmp_path)
    table = pq.read_table(tmp_path / "steps.parquet").drop_columns(["codec_s", "lan_s", "wan_s"])
    pq.write_table(table, tmp_path / "steps.parquet")
    pd.testing.assert_frame_equal(frames.read(tmp_path, "steps"), steps)
    assert frames.read(tmp_path, "steps", ["wan_s"])["wan_s"].isna().all()


def test_bytes_up_to_a_time_take_their_share_of_its_second(tmp_path: Path) -> None:
    parse(tmp_path, sent(2.0, 2.0, 200), sent(2.0, 1.0, 8, "b>a"))
    frames.write(tmp_path)
    assert frames.link_bytes_until(tmp_path, ["a>b", "b>a"], 1.25) == {"a>b": 125, "b>a": 2}
    assert frames.link_bytes_until(tmp_path, ["a>b"], 9.0) == {"a>b": 200}
    assert frames.link_totals(tmp_path) == {"a>b": 200, "b>a": 8}


def test_one_worker_that_diverged_is_not_averaged_away(tmp_path: Path) -> None:
    frame = parse(tmp_path, done(0, 0, 1.0, 2.0), done(0, 1, 1.0, math.inf), done(1, 0, 2.0, 2.0)).steps
    assert math.isnan(frame["loss"][0]) and frame["loss"][1] == 2.0


def test_bytes_fall_into_the_seconds_they_were_sent_in(tmp_path: Path) -> None:
    frame = parse(
        tmp_path, sent(0.5, 0.5, 100), sent(1.0, 0.5, 11), sent(2.5, 1.5, 300), sent(1.0, 1.0, 7, "b>a")
    ).links
    by_link = {link: group.set_index("second")["wire_bytes"].to_dict() for link, group in frame.groupby("link")}
    assert by_link == {"a>b": {0: 111, 1: 200, 2: 100}, "b>a": {0: 7}}


def test_an_idle_second_is_zero_and_one_before_the_measurement_is_absent(tmp_path: Path) -> None:
    frame = parse(tmp_path, sent(4.0, 1.0, 5), sent(7.0, 1.0, 6)).links
    assert frame.set_index("second")["wire_bytes"].to_dict() == {3: 5, 4: 0, 5: 0, 6: 6}


@settings(max_examples=60, deadline=None)
@given(
    intervals=st.lists(
        st.tuples(st.floats(0.001, 3.7), st.floats(0, 2.5), st.integers(0, 2**40)), min_size=1, max_size=30
    )
)
def test_no_byte_is_lost_or_made_up(
    tmp_path_factory: pytest.TempPathFactory, intervals: list[tuple[float, float, int]]
) -> None:
    events, now_s = [], 0.0
    for interval_s, pause_s, wire_bytes in intervals:
        now_s += pause_s + interval_s
        events.append(sent(now_s, interval_s, wire_bytes))
    frame = parse(tmp_path_factory.mktemp("run"), *events).links
    assert frame["wire_bytes"].sum() == sum(wire_bytes for *_, wire_bytes in intervals)
    assert (frame["wire_bytes"] >= 0).all()
    assert (np.diff(frame["second"]) == 1).all()


def test_a_second_of_a_long_pause_has_no_row(tmp_path: Path) -> None:
    """A link that was used at the begin and the end of ten million seconds takes no gigabytes."""
    frame = parse(tmp_path, sent(1.0, 1.0, 5), sent(9.9e6, 2.0, 8)).links
    assert frame.set_index("second")["wire_bytes"].to_dict() == {0: 5, 9_899_998: 4, 9_899_999: 4}


@pytest.mark.parametrize("damaged", [sent(1e15, 1.0, 5), sent(9e6, 8e6, 5), sent(5.0, 60.0, 5), sent(5.0, -1.0, 5)])
def test_times_no_run_can_have_are_refused_before_memory_is_asked_for(tmp_path: Path, damaged: LinkBytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"events\.jsonl: link a>b"):
            parse(tmp_path, sent(1.0, 1.0, 5), damaged)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10_000_000


def test_other_events_keep_their_fields_and_order(tmp_path: Path) -> None:
    threshold = Threshold(time_s=2.0, node="a/lps", step=3, significance=5.0, threshold=4.0)
    parse(tmp_path, done(0, 0, 1.0, 2.0), threshold, sent(1.0, 1.0, 5), Checkpointed(time_s=3.0, step=4))
    frame, unreadable = frames.other_events(tmp_path / lines.FILE_NAME)
    assert unreadable == 0
    assert list(frame["event"]) == ["threshold", "checkpointed"]
    assert frame["significance"][0] == 5.0 and pd.isna(frame["significance"][1])
    assert list(frame["step"]) == [3, 4] and frame["node"][0] == "a/lps"


def test_frames_come_back_from_parquet_as_they_were(tmp_path: Path) -> None:
    test = Evaluated(time_s=9.0, step=2, model="quantized", loss=1.5, accuracy=0.47, images=2000)
    with Recorder(tmp_path) as recorder:
        for event in (done(0, 0, 1.0, 2.0), sent(1.5, 1.5, 5), test):
            recorder.record(event)
    recorder.finish()
    parsed = frames.parse(tmp_path / lines.FILE_NAME)
    for name in frames.DTYPES:
        pd.testing.assert_frame_equal(frames.read(tmp_path, name), getattr(parsed, name), check_dtype=name == "steps")
    assert frames.link_totals(tmp_path) == {"a>b": 5}
    assert not list(tmp_path.glob("*.tmp"))


def test_metrics_are_columns_and_other_records_have_none_of_them(tmp_path: Path) -> None:
    parts = {"step": 2, "model": "full", "loss": 1.5, "images": 20}
    with Recorder(tmp_path) as recorder:
        recorder.record(Evaluated(time_s=9.0, **parts, metrics={"bits": 2.5, "accuracy_of_words": 0.1}))
        recorder.record(Evaluated(time_s=9.5, **parts, metrics={"bits": math.nan}))
    recorder.finish()
    for frame in (frames.parse(tmp_path / lines.FILE_NAME).evaluations, frames.read(tmp_path, "evaluations")):
        assert list(frame) == [*frames.DTYPES["evaluations"], "bits", "accuracy_of_words"]
        assert frame["bits"][0] == 2.5 and frame[["accuracy", "accuracy_of_words"]].isna().to_numpy().tolist() == [
            [True, False],
            [True, True],
        ]
        assert np.isnan(frame["bits"][1])
    plain, _, _ = lines.encode(Evaluated(time_s=9.0, accuracy=0.5, **parts)).rpartition(b',"crc"')
    assert plain == (b'{"event":"evaluated","time_s":9.0,"step":2,"model":"full","loss":1.5,"accuracy":0.5,"images":20')


def test_parquet_that_is_older_than_the_events_or_damaged_is_not_used(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(done(0, 0, 1.0, 2.0))
    recorder.finish()
    path = tmp_path / lines.FILE_NAME
    with path.open("ab") as file:
        file.write(lines.encode(done(1, 0, 2.0, 2.0)))
    assert frames.fault(tmp_path, "steps") == "out of date"
    path.unlink()
    assert frames.fault(tmp_path, "steps") == ""  # the events were thrown away to save space: the frame stands
    assert len(frames.read(tmp_path, "steps")) == 1
    (tmp_path / "steps.parquet").write_bytes(b"PAR1 nonsense")
    assert frames.fault(tmp_path, "steps") == "damaged"
    with pytest.raises(InputError, match=r"steps\.parquet: cannot be read"):
        frames.read(tmp_path, "steps")
    (tmp_path / "steps.parquet").unlink()
    assert frames.fault(tmp_path, "steps") == "missing"


def test_a_file_is_held_to_the_checksum_of_the_run_that_wrote_it(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(done(0, 0, 1.0, 2.0))
    checksums = recorder.finish()
    assert {name: frames.fault(tmp_path, name, checksums) for name in frames.DTYPES} == dict.fromkeys(frames.DTYPES, "")
    (tmp_path / lines.FILE_NAME).write_bytes(b"")  # what was lost of the events does not touch the frames
    assert frames.fault(tmp_path, "steps", checksums) == ""
    path = tmp_path / "steps.parquet"
    written = path.read_bytes()
    for place in range(0, len(written), 97):
        path.write_bytes(written[:place] + bytes([written[place] ^ 4]) + written[place + 1 :])
        assert frames.fault(tmp_path, "steps", checksums) == "damaged"


def test_a_page_is_held_to_its_checksum_where_the_run_had_not_ended(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        for step in range(400):
            recorder.record(done(step, 0, step + 1.0, math.sin(step)))
        recorder.finish()
    path = tmp_path / "steps.parquet"
    written = path.read_bytes()
    data = pq.ParquetFile(path).metadata.row_group(0).column(2)
    path.write_bytes(flipped(written, data.data_page_offset + data.total_compressed_size // 2))
    assert frames.fault(tmp_path, "steps") == "damaged"


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
