"""Keeping every core busy while something is measured."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep

from testbed.fidelity.probes import cores
from testbed.interpreter import PYTHON

SETTLE_S = 0.5  # until the interpreters are up and running
WORK = "import numpy as np\na = np.ones((256, 256), np.float32)\nwhile True: a @ a"


@contextmanager
def every_core_busy() -> Iterator[int]:
    """One process per core that multiplies matrices, as training does; gives their number."""
    count = cores()
    command = [*PYTHON, "-c", WORK]
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    burners = [subprocess.Popen(command, env={**os.environ, **one_thread}) for _ in range(count)]
    try:
        sleep(SETTLE_S)
        yield count
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()
