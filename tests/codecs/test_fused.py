"""Kernels of a GPU where there is none: Triton's interpreter plays them.

It is chosen before Triton is imported, so that it has a process of its own; the cases are in `interpreted_kernels.py`.
What a GPU makes of the kernels is tested where there is one, by `test_resident.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from testbed.codecs.resident import fused
from testbed.gpu.standin import DEVICE

CASES = Path(__file__).parent / "interpreted_kernels.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_make_the_bytes_of_the_cpu() -> None:
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_without_a_gpu_there_are_none(device: str | torch.device) -> None:
    assert not fused.usable(torch.device(device))
