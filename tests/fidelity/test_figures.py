"""A figure is within its bound or it is not, and tables and records say which."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.fidelity.figures import Bound, Figure, table

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
    figure = Figure("message", "a>b", "ms", asked, measured, MESSAGE)
    assert figure.ok == (figure.off <= 1) or math.isclose(figure.off, 1, rel_tol=1e-9)


def test_what_did_not_come_is_never_ok_and_is_null_in_the_record() -> None:
    figure = Figure("goodput", "a>b", "Mbit/s", 40.0, None, Bound(relative=0.5), {"tool": "iperf3"})
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
    figures = [Figure("goodput", name, "Mbit/s", 1000.0, 12.3456, MESSAGE) for name in ("a>b", "longer>name")]
    head, *lines = table(figures).splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["a>b", "goodput", "1,000", "Mbit/s", "12.35"],
        ["longer>name", "goodput", "1,000", "Mbit/s", "12.35"],
    ]
    assert len({line.index("goodput") for line in lines} | {head.index("what")}) == 1
