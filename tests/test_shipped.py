"""What comes with the testbed is found in any folder, and a file of one's own in its place comes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import shipped
from testbed.wan import profile


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_experiments_and_profiles_are_found_in_an_empty_folder(elsewhere: Path) -> None:
    assert shipped.find("experiments", "cifarnet.toml") == shipped.HERE.parents[1] / "experiments" / "cifarnet.toml"
    assert "cifarnet" in shipped.names("experiments", ".toml")
    assert profile.load("weightgrad-ec2").regions
    assert shipped.find("experiments", "nonesuch.toml") is None


def test_a_file_of_ones_own_comes_first_and_is_listed_beside_the_others(elsewhere: Path) -> None:
    own = elsewhere / "experiments"
    own.mkdir()
    for name in ("cifarnet", "mine"):
        (own / f"{name}.toml").touch()
    assert shipped.find("experiments", "cifarnet.toml") == Path("experiments", "cifarnet.toml")
    assert shipped.find("experiments", "vggnet.toml") not in (None, Path("experiments", "vggnet.toml"))
    assert {"cifarnet", "mine", "vggnet"} <= set(shipped.names("experiments", ".toml"))
