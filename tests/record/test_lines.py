"""One event a line: what is written is read, what is damaged is left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.record import lines
from testbed.record.events import AnyEvent, Event, Exchange, Guard, LinkBytes, RunEnded, Sizes, StepDone

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(time_s=finite, step=st.integers(0, 2**31), loss=finite, node=st.text(max_size=20))
def test_what_is_encoded_is_decoded(time_s: float, step: int, loss: float, node: str) -> None:
    event = StepDone(time_s=time_s, node=node, step=step, loss=loss, compute_s=0.5)
    line = lines.encode(event)
    assert lines.decode(line) == event
    assert line.count(b"\n") == 1 and line.startswith(lines.STEP_PREFIX)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_read_as_nan(loss: float) -> None:
    event = lines.decode(lines.encode(StepDone(time_s=1.0, step=3, loss=loss, compute_s=0.5)))
    assert isinstance(event, StepDone) and math.isnan(event.loss) and event.step == 3


def test_every_event_can_be_read_back() -> None:
    assert set(get_args(AnyEvent)) == set(Event.__subclasses__())


def test_numpy_numbers_are_numbers() -> None:
    event = StepDone(time_s=np.float64(1.5), step=np.int64(3), loss=np.float32(2.0), compute_s=0.5)
    assert lines.decode(lines.encode(event)) == StepDone(time_s=1.5, step=3, loss=2.0, compute_s=0.5)


def test_no_bit_of_a_line_changes_unnoticed() -> None:
    event = StepDone(time_s=1.25, node="a/w0", step=3, loss=2.0, compute_s=0.5)
    line = lines.encode(event)
    for bit in range(8 * (len(line) - 1)):
        changed = bytearray(line)
        changed[bit // 8] ^= 1 << bit % 8
        assert lines.decode(bytes(changed)) in (None, event)


def test_a_line_of_an_older_record_has_no_checksum() -> None:
    old = b'{"event":"step","time_s":1.25,"node":"a/w0","step":3,"loss":2.0,"compute_s":0.5}\n'
    assert lines.decode(old) == StepDone(time_s=1.25, node="a/w0", step=3, loss=2.0, compute_s=0.5)


@pytest.mark.parametrize(
    "wire_bytes",
    [b"-1", b"9223372036854775808", b"1" * 5000, b"[" * 100_000 + b"]" * 100_000],
    ids=lambda text: text[:9],
)
def test_a_number_no_run_can_have_is_damage(wire_bytes: bytes) -> None:
    old = b'{"event":"link","time_s":1.0,"link":"a>b","interval_s":1.0,"more":null,"wire_bytes":%s}\n' % wire_bytes
    assert lines.decode(old) is None
    assert lines.decode(old.replace(b"wire_bytes", b"x", 1)) is None


@pytest.mark.parametrize("line", [b"", b"{", b"[]\n", b"null\n", b'{"event":"unheard-of"}\n', b'{"event":"step"}\n'])
def test_a_damaged_or_unknown_line_is_none(line: bytes) -> None:
    assert lines.decode(line) is None


def test_events_begin_as_the_prefixes_say() -> None:
    link = LinkBytes(time_s=1.0, interval_s=1.0, wire_bytes={"a>b": 3})
    assert lines.encode(link).startswith(lines.LINK_PREFIXES[0])


@pytest.mark.parametrize(
    ("old", "today"),
    [
        (
            b'{"event":"link","time_s":2.0,"link":"a>b","interval_s":1.0,"wire_bytes":7}\n',
            LinkBytes(time_s=2.0, interval_s=1.0, wire_bytes={"a>b": 7}),
        ),
        (
            b'{"event":"size","time_s":2.0,"node":"a/w0","step":3,"kind":"gradient","buffers":[4,8]}\n',
            Sizes(time_s=2.0, node="a/w0", kind="gradient", steps=[3], buffers=[[4, 8]]),
        ),
    ],
    ids=["link", "size"],
)
def test_an_older_record_has_each_on_a_line(old: bytes, today: LinkBytes | Sizes) -> None:
    assert lines.decode(old) == today
    assert lines.decode(lines.encode(today)) == today
    assert old.startswith(lines.LINK_PREFIXES) == isinstance(today, LinkBytes)


@pytest.mark.parametrize("links", [1, 10_000])
@pytest.mark.parametrize("before", [0, 3])
def test_the_last_event_is_found_however_long_its_line_is(tmp_path: Path, links: int, before: int) -> None:
    path = tmp_path / lines.FILE_NAME
    last = LinkBytes(time_s=2.0, interval_s=1.0, wire_bytes={f"a/w{k}>a": k for k in range(links)})
    whole = b"".join([*[lines.encode(Guard(time_s=1.0, guard="T"))] * before, lines.encode(last)])
    for torn in (b"", b'{"event":'):
        path.write_bytes(whole + torn)
        assert lines.last_event(path) == last


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / lines.FILE_NAME
    first = lines.encode(Guard(time_s=1.0, guard="T"))
    path.write_bytes(first + b'{"event":"gua')
    assert list(lines.whole_lines(path)) == [first]
    assert lines.is_torn(path)
    path.write_bytes(first)
    assert not lines.is_torn(path)


def test_the_last_event_is_found_behind_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / lines.FILE_NAME
    long = lines.encode(Exchange(time_s=1.0, round=1, included=["us-east-1"] * 2000, reason="significant"))
    end = RunEnded(time_s=2.0, step=9, how="failed", error="us-east-1/w0: out of memory")
    path.write_bytes(long * 10 + lines.encode(end))
    assert lines.last_event(path) == end
    path.write_bytes(b"")
    assert lines.last_event(path) is None
