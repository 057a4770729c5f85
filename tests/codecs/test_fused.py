"""Triton's kernels make what torch's operations make, to the bit; without a GPU Triton interprets them."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fused_on_cpu.py")


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_make_the_bytes_of_torchs_operations() -> None:
    done = subprocess.run([sys.executable, "-P", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.split()
    assert len(lines) == 2 * 4, done.stdout  # of each size how much was compared, and nothing that differed
