"""A figure is within its bound or it is not, and tables and records say which."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fidelity.values import Bound, Value, settled, table

MESSAGE = Bound(relative=0.02, absolute=1.0)
positive = st.floats(1e-3, 1e6)


@pytest.mark.parametrize(
    ("asked", "measured", "holds"),
    [
        (20.0, 20.9, True),  # 1 ms
        (20.0, 21.1, False),
        (20.0, 18.9, False),  # too fast is as wrong as too slow
        (500.0, 509.0, True),  # 2 %
        (500.0, 511.0, False),
    ],
)
def test_a_bound_is_the_larger_of_its_two_parts(asked: float, measured: float, holds: bool) -> None:
    assert MESSAGE.holds(asked, measured) is holds


@given(positive, positive)
def test_a_figure_is_ok_exactly_when_it_is_off_by_no_more_than_its_room(asked: float, measured: float) -> None:
    figure = Value("message", "a>b", "ms", asked, measured, MESSAGE)
    assert figure.ok == (figure.off <= 1) or math.isclose(figure.off, 1, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("bound", "asked", "measured", "holds", "text"),
    [
        (Bound(side="most"), 10.0, 3.0, True, "at most"),
        (Bound(side="most"), 10.0, 10.1, False, "at most"),
        (Bound(side="least"), 50_000.0, 60_000.0, True, "at least"),
        (Bound(side="least"), 50_000.0, 49_000.0, False, "at least"),
        (Bound(side="least"), 50_000.0, 0.0, False, "at least"),
    ],
)
def test_a_limit_is_kept_on_one_side(bound: Bound, asked: float, measured: float, holds: bool, text: str) -> None:
    assert bound.holds(asked, measured) is holds
    assert bound.text("s") == text
    assert Value("network up", "large", "s", asked, measured, bound).ok is holds


def answers(*values: float) -> Iterator[list[Value]]:
    """What a measurement finds each time it is made: one figure that varies, and one that is always good."""
    good = Value("trace", "a>b", "Mbit/s", 40, 40, MESSAGE)
    return iter([[Value("goodput", "a>b", "Mbit/s", 40, value, MESSAGE), good] for value in values])


@pytest.mark.parametrize(
    ("values", "last", "missed"),
    [((40.0,), 40.0, None), ((20.0, 40.0), 40.0, [20.0]), ((20.0, 21.0, 22.0), 22.0, [20.0, 21.0])],
)
def test_what_misses_is_measured_again_as_a_whole_and_the_record_keeps_it(
    values: tuple[float, ...], last: float, missed: list[float] | None
) -> None:
    source = answers(*values)
    varying, good = settled(lambda: next(source))
    assert varying.measured == last
    assert varying.record().get("missed_before") == missed
    assert "missed_before" not in good.record()
    assert next(source, None) is None, "no more often than needed"


def test_what_did_not_come_is_never_ok_and_is_null_in_the_record() -> None:
    figure = Value("goodput", "a>b", "Mbit/s", 40.0, None, Bound(relative=0.5), {"tool": "iperf3"})
    assert not figure.ok
    assert figure.off == math.inf
    assert figure.record() == {
        "section": "goodput",
        "name": "a>b",
        "unit": "Mbit/s",
        "asked": 40.0,
        "measured": None,
        "bound": "± 50 %",
        "ok": False,
        "tool": "iperf3",
    }


def test_bounds_in_words() -> None:
    assert MESSAGE.text("ms") == "± 2 % or 1 ms"
    assert Bound(absolute=2.0).text("ms") == "± 2 ms"


def test_a_table_has_a_line_for_each_figure_with_aligned_columns() -> None:
    figures = [Value("goodput", name, "Mbit/s", 1000.0, 12.3456, MESSAGE) for name in ("a>b", "longer>name")]
    head, *lines = table(figures).splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["a>b", "goodput", "1,000", "Mbit/s", "12.35"],
        ["longer>name", "goodput", "1,000", "Mbit/s", "12.35"],
    ]
    assert len({line.index("goodput") for line in lines} | {head.index("what")}) == 1
