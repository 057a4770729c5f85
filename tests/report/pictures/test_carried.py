"""What a program on the WAN put on its links: tables, picture and page, of a record with known bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testbed.cli.command_line import main
from testbed.message import PAYLOAD_PER_WIRE
from testbed.record import program
from testbed.record.events import Capacity, Cut, Event, LinkBytes, Mark
from testbed.record.info import LinkInfo
from testbed.record.program import ProgramInfo
from testbed.record.recorder import Recorder
from testbed.report.numbers.carried import HEADS, HOST_HEADS, host_cells, link_cells, read, sentence
from testbed.report.page.program import write
from testbed.report.pictures.carried import draw

FULL = round(100e6 / 8 / PAYLOAD_PER_WIRE)  # bytes on the wire of a second at 100 Mbit/s
LINK, OTHER = "us-west-1>us-east-1", "us-east-1>us-west-1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """10 s: full for 2 s, at 20 Mbit/s for 2 s after a change, cut for 3 s, nothing after it."""
    events: list[Event] = [
        *(LinkBytes(time_s=k + 1.0, interval_s=1.0, wire_bytes={LINK: FULL}) for k in range(2)),
        Capacity(time_s=2.0, link=LINK, goodput_mbit=20.0),
        *(LinkBytes(time_s=k + 1.0, interval_s=1.0, wire_bytes={LINK: FULL // 5}) for k in (2, 3)),
        Cut(time_s=4.5, link=LINK),
        Mark(time_s=4.5, node="us-west-1/h0", text="<b>lost</b> $x$ | y"),
        Cut(time_s=7.0, link=LINK, healed=True),
        LinkBytes(time_s=2.0, interval_s=2.0, wire_bytes={"us-west-1/h0>us-west-1": 2 * FULL}),
        LinkBytes(time_s=2.0, interval_s=2.0, wire_bytes={"us-east-1>us-east-1/h0": 2 * FULL}),
    ]
    with Recorder(tmp_path) as recorder:
        for event in events:
            recorder.record(event)
        recorder.finish()
    stated = LinkInfo(goodput_mbit=100.0, rtt_ms=60.0)
    info = ProgramInfo(
        title="a <program>",
        command=["exec", "weightgrad-ec2", "--", "sh", "-c", "<script>alert(1)</script>"],
        programs={"us-west-1/h0": ["a"], "us-east-1/h0": ["a"]},
        profile="weightgrad-ec2",
        network={LINK: stated, OTHER: stated},
        hosts={"us-west-1/h0": "10.1.0.2", "us-east-1/h0": "10.2.0.2"},
        took_s=10.0,
        statuses={"us-west-1/h0": 3, "us-east-1/h0": 143, "us-east-1/h0.2": 0},
        told=["us-east-1/h0"],
        wan_bytes={LINK: 2 * FULL + 2 * (FULL // 5), OTHER: 0},
        wan_drops={LINK: 1234, OTHER: 0},
        gate={"skipped": True},
    )
    program.write(tmp_path, info)
    return tmp_path


def test_the_tables_are_the_records(folder: Path) -> None:
    carried = read(folder)
    assert carried.spans(LINK) == [(4.5, 7.0)]
    assert np.allclose(carried.rate(LINK), [100, 100, 20, 20, 10, 0, 0, 20, 20, 20])
    assert np.allclose(carried.mbit(LINK), [100, 100, 20, 20, 0, 0, 0, 0, 0, 0], rtol=1e-6)
    link = dict(zip(HEADS, link_cells(carried)[0], strict=True))
    assert link["mean goodput"] == "24.0 Mbit/s" and link["of its rate"] == "24.0 %"
    assert link["busy seconds"] == "4" and link["packets dropped"] == "1,234"
    hosts = [dict(zip(HOST_HEADS, cells, strict=True)) for cells in host_cells(carried)]
    assert [(host["sent"], host["received"]) for host in hosts] == [("26.1 MB", "0 B"), ("0 B", "26.1 MB")]
    assert [host["ended with"] for host in hosts] == ["3", "143, told to; 0"]
    assert sentence(carried.info) == "a <program> on 2 hosts took 10.0 s and failed on us-west-1-h0."


def test_a_cut_that_nobody_healed_lasts_to_the_end(folder: Path) -> None:
    carried = read(folder)
    del carried.cuts[-1]
    assert carried.spans(LINK) == [(4.5, 10.0)]


def test_the_picture_has_a_panel_for_each_link_that_carried_something(folder: Path) -> None:
    figure = draw(read(folder))
    assert figure is not None
    (panel,) = figure.axes
    assert panel.get_title(loc="left") == "us-west-1 → us-east-1"
    assert [text.get_text() for text in panel.texts] == ["<b>lost</b> $x$ | y"]


@pytest.mark.slow
def test_report_writes_the_page_from_the_record_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"written: {folder / 'report.html'}\n"
    page = (folder / "report.html").read_text()
    assert "<script>" not in page and "&lt;b&gt;lost&lt;/b&gt;" in page and "data:image/png" in page
    assert "NOT CHECKED" in page
    before = [path.read_bytes() for path in write(folder)]
    assert before == [path.read_bytes() for path in write(folder)], "the same record makes the same files"


def test_nothing_sent_is_said_and_not_drawn(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.finish()
    program.write(tmp_path, ProgramInfo(title="true", network={LINK: LinkInfo(goodput_mbit=1.0, rtt_ms=1.0)}))
    assert [path.name for path in write(tmp_path)] == ["summary.md", "report.html"]
    assert "Nothing crossed the WAN" in (tmp_path / "report.html").read_text()


def test_a_damaged_record_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "exec.json").write_text('{"hosts": 3}')
    assert main(["report", str(folder)]) == 2
    assert "exec.json: Expected `object`, got `int`" in capsys.readouterr().err
