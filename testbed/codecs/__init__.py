"""Tensors to bytes and back: pure functions of a vector, a layout and a key, exact in their bytes.

- `Float32`: the vector as it is
- `Half`: half precision, a power of two a layer
- `Ternary`: TernGrad, stochastic, a scale a layer; `BlockTernary`: a scale every 5,120 elements
- `ThresholdTernary`: WeightGrad, deterministic; `BlockThresholdTernary`: a scale every 5,120 elements
- `LevelSum`: sums of ternary messages on one scale, added as levels
- `OneBit`: signs and column means (1-bit SGD)
- `Uniform`: 1 to 8 bits an element between a layer's extremes
- `E3M0`: 4 bits, a sign and an exponent
- `QSGD`: buckets at random to levels of their norm
- `Adaptive`: bits that follow from the gradient's own statistics, entropy coded
- `EntropyCoded`: ternary or another codec's symbols, entropy coded
- `Sparse`: all that is not zero; `TopK`: the largest magnitudes; `Thresholded`: what reaches a threshold;
  `SparseMultiples`: the nearest multiples of a unit; `ChunkedTopK`: the largest of every chunk, in 2 bits
- `Statistical`: the mean of the bin that an element is in, 2, 4 or 8 bits
- `DGC`: Deep Gradient Compression, with a memory

`ErrorFeedback` makes a codec with a memory of any of them, `remembering` one whose memory may be empty. The codecs of a
linear layer's factors, for the gradient of a matrix, are in `testbed.codecs.factors`. Kernels are compiled when the
first codec is made, or before by `warm_up`.
"""

from testbed.codecs.adaptive import Adaptive
from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.blockwise import BlockTernary, BlockThresholdTernary
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.dgc import DGC
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.floats import Float32
from testbed.codecs.half import Half
from testbed.codecs.kernels.compiled import warm_up
from testbed.codecs.levels import Levels, LevelSum
from testbed.codecs.lossless.entropy import EntropyCoded
from testbed.codecs.lossless.planes import coded_levels, coded_qsgd, coded_uniform
from testbed.codecs.memory import ErrorFeedback, Remembering, remembering
from testbed.codecs.onebit import OneBit
from testbed.codecs.qsgd import QSGD
from testbed.codecs.registry import CODECS, codec
from testbed.codecs.sparse import Sparse
from testbed.codecs.statistical import Statistical
from testbed.codecs.ternary import Limits, Ternary, ThresholdTernary
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Uniform

__all__ = [
    "CODECS",
    "DGC",
    "E3M0",
    "QSGD",
    "Adaptive",
    "BlockTernary",
    "BlockThresholdTernary",
    "Buffers",
    "ChunkedTopK",
    "Codec",
    "EntropyCoded",
    "ErrorFeedback",
    "Float32",
    "Half",
    "Key",
    "LevelSum",
    "Levels",
    "Limits",
    "OneBit",
    "Remembering",
    "Sparse",
    "SparseMultiples",
    "Statistical",
    "Ternary",
    "ThresholdTernary",
    "Thresholded",
    "TopK",
    "Uniform",
    "codec",
    "coded_levels",
    "coded_qsgd",
    "coded_uniform",
    "remembering",
    "warm_up",
]
