"""What the tests of sparse codecs share: an awkward layout, vectors with every kind of float, bytes."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from testbed.codecs.base import Buffers
from testbed.layout import Layout

# None, one, around a selection block of 64, no multiple of anything, and one large enough to be sampled.
SIZES = {"a.weight": 1, "b.weight": 0, "c.weight": 63, "d.weight": 64, "e.bias": 65, "f.weight": 9001, "last.bias": 5}
LAYOUT = Layout.of([(name, (size,) if name.endswith("bias") else (1, size)) for name, size in SIZES.items()])


def vector(seed: int, filled: float = 0.5, spread: float = 0.0) -> torch.Tensor:
    """Normal values in a fraction of the places; `spread` orders of magnitude about 1, to denormal and huge."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(LAYOUT.size) * 10.0 ** random.uniform(-spread, spread * 0.8, LAYOUT.size)
    values[random.random(LAYOUT.size) >= filled] = 0
    return torch.from_numpy(values.astype(np.float32))


vectors = st.builds(vector, st.integers(0, 2**32), st.sampled_from([0, 0.001, 0.1, 1]), st.sampled_from([0, 2, 45]))


def nbytes(buffers: Buffers) -> int:
    return sum(buffer.nbytes for buffer in buffers)
