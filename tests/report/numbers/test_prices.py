"""Egress prices are facts with a source; a wrong file is refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.report.numbers.prices import prices, sources, unpriced
from testbed.wan import profile


def test_the_list_says_where_its_figures_come_from_and_when() -> None:
    said = "\n".join(sources())
    assert said.startswith("AWS list price, volume discounts and free tier not included.")
    assert "source: skyplane-project/skyplane" in said and "Apache-2.0" in said and "date:" in said


def test_all_pairs_of_the_wans_own_regions_have_a_price() -> None:
    for name in ("weightgrad-ec2", "wanify-8"):
        assert not unpriced({f"{a}>{b}": 1 for a, b in profile.load(name).pairs})


def test_a_pair_without_a_price_is_named_if_it_was_used() -> None:
    assert unpriced({"rack-1>rack-2": 5, "rack-2>rack-1": 0, "us-east-1>us-west-1": 5}) == ["rack-1>rack-2"]


@pytest.mark.parametrize(
    ("row", "said"),
    [("a,b,-1", "must not be negative"), ("a,b,much", "must be a number"), ("a b,c,1", "region's name")],
)
def test_a_wrong_price_is_refused_with_its_line(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_text(f"# source: me\nsrc_region,dst_region,usd_per_gb\n{row}\n")
    with pytest.raises(InputError, match=rf"prices.csv:3.*{said}"):
        prices(path)
