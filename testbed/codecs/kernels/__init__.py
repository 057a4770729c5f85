"""The hot loops of the codecs on the CPU, and the backend for vectors there: numba, cut into chunks for threads.

A module has the loops of the codec of its name. What it offers to the codec takes a whole layer, as arrays; where a
codec works on devices, too, `testbed.codecs.device` has a module of the same name with the same functions. Loops that
are handed to threads work on a chunk of a layer and are named so.

Rules that every loop here follows:

1. **32-bit lanes.** Arithmetic on bits uses the operators of `lanes`, never Python's.
2. **Planar blocks.** A packed byte holds elements that lie a segment apart, never neighbours (but in `codes`), so that
   loading, coding and storing are all contiguous. A ternary block has 5 segments, a block of bit planes 8; a segment
   has `SEGMENT` elements, in the last block of a run just enough to hold the rest.
3. **Counter-based random numbers.** A draw is a function of (key, index of the packed byte in its layer's run,
   segment) and of nothing else: no state, the same bytes for any number of threads.
4. **Whole runs.** A loop works on what it is handed, on one thread, without Python objects and without an allocation
   but for a layer's tail; `threads` cuts large layers into chunks of a fixed size, so results do not depend on the
   number of threads.

Loops are compiled for the signatures declared with them, inputs as read-only arrays (which takes writable ones too),
by `compiled.warm_up`; numba keeps them on disk.
"""

from testbed.codecs.kernels import absent

absent.step_in()

from testbed.codecs.kernels import (  # noqa: E402 - numba, which all of these import, may be missing
    adaptive,
    bins,
    blockwise,
    codes,
    dgc,
    e3m0,
    elias,
    entropy,
    factors,
    half,
    levels,
    onebit,
    qsgd,
    rice,
    sparse,
    ternary,
    threshold,
    topk,
    uniform,
    vectors,
)

absent.step_out()

__all__ = [
    "adaptive",
    "bins",
    "blockwise",
    "codes",
    "dgc",
    "e3m0",
    "elias",
    "entropy",
    "factors",
    "half",
    "levels",
    "onebit",
    "qsgd",
    "rice",
    "sparse",
    "ternary",
    "threshold",
    "topk",
    "uniform",
    "vectors",
]
