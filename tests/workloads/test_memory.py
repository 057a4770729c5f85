"""Memory that is freed is kept for what comes next."""

import resource
import subprocess
import sys

import pytest

from testbed.workloads.memory import keep_freed

SCRIPT = """
import resource
import torch
from testbed.workloads.memory import keep_freed

assert keep_freed()
for _ in range(20):  # until the heap has a hole of the size: up to seven times, as small blocks come to lie
    torch.ones(10_000_000)  # 40 MB, which glibc would hand back each time
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not keep_freed(), reason="the C library is not glibc")
def test_the_system_gives_a_large_block_once() -> None:
    faults = subprocess.run([sys.executable, "-P", "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    blocks = int(faults) * resource.getpagesize() / (10_000_000 * 4)
    assert blocks < 5  # not each of the twenty
