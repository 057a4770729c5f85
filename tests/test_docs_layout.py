"""The documentation's site fits a phone's, a laptop's and a desk's window, light and dark."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import browser
import pytest

from testbed.interpreter import PYTHON

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]
ROOT = Path(__file__).parents[1]


def test_every_page_of_the_documentation_fits_every_window(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [*PYTHON, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, timeout=120)
    pages = sorted(path.name for path in tmp_path.glob("*.html"))
    assert len(pages) > 20
    assert browser.faults(tmp_path, pages) == {}
    assert browser.faults(tmp_path, ["systems.html"], [400], browser.DARK) == {}
