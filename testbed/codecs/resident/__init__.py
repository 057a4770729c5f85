"""Codecs whose messages stay on the device, so that nothing on the way of a step waits for it.

`placed` gives a codec its place. Where it has a twin here (`TWINS`), vectors and messages are on the device, and are
coded in one pass over all layers, to the same bytes as on the CPU. Where it has none, its messages are made on the
CPU, which each of them makes wait: that is noted, once a codec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from testbed.codecs.adaptive import Adaptive
from testbed.codecs.base import Buffers, WireBuffers
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.changes import Changes
from testbed.codecs.chunked import ChunkedTopK
from testbed.codecs.dct import Frequencies
from testbed.codecs.dgc import DGC
from testbed.codecs.e3m0 import E3M0
from testbed.codecs.floats import Float32
from testbed.codecs.half import Half
from testbed.codecs.levels import LevelSum
from testbed.codecs.memory import Around, Forgetful
from testbed.codecs.onebit import OneBit
from testbed.codecs.partial import Partial
from testbed.codecs.qsgd import QSGD
from testbed.codecs.resident.adaptive import AdaptiveResident
from testbed.codecs.resident.base import Resident
from testbed.codecs.resident.bins import StatisticalResident
from testbed.codecs.resident.blockwise import BlockThresholdTernaryResident
from testbed.codecs.resident.changes import ChangesResident
from testbed.codecs.resident.chunked import ChunkedResident, FrequenciesResident
from testbed.codecs.resident.e3m0 import E3M0Resident
from testbed.codecs.resident.floats import Float32Resident, HalfResident
from testbed.codecs.resident.onebit import OneBitResident
from testbed.codecs.resident.partial import PartialResident
from testbed.codecs.resident.qsgd import QSGDResident
from testbed.codecs.resident.sparse import SparseMultiplesResident, SparseResident, ThresholdedResident
from testbed.codecs.resident.ternary import LevelSumResident, TernaryResident, ThresholdTernaryResident
from testbed.codecs.resident.topk import DGCResident, TopKResident
from testbed.codecs.resident.uniform import UniformResident
from testbed.codecs.sparse import Sparse
from testbed.codecs.statistical import Statistical
from testbed.codecs.ternary import Ternary, ThresholdTernary
from testbed.codecs.threshold import SparseMultiples, Thresholded
from testbed.codecs.topk import TopK
from testbed.codecs.uniform import Uniform
from testbed.gpu.notes import note

Twin = Callable[[Any, torch.device], Resident]


def _levels(codec: LevelSum, device: torch.device) -> Resident:
    return LevelSumResident(codec, TernaryResident(codec.messages, device), device)


def _partial(codec: Partial, device: torch.device) -> Resident:
    return PartialResident(codec, placed(codec.codec, device), device)


TWINS: dict[type, Twin] = {
    Float32: Float32Resident,
    Half: HalfResident,
    Ternary: TernaryResident,
    ThresholdTernary: ThresholdTernaryResident,
    BlockThresholdTernary: BlockThresholdTernaryResident,
    LevelSum: _levels,
    Uniform: UniformResident,
    QSGD: QSGDResident,
    Adaptive: AdaptiveResident,
    Partial: _partial,
    OneBit: OneBitResident,
    E3M0: E3M0Resident,
    Statistical: StatisticalResident,
    Sparse: SparseResident,
    SparseMultiples: SparseMultiplesResident,
    Thresholded: ThresholdedResident,
    TopK: TopKResident,
    ChunkedTopK: ChunkedResident,
    Changes: ChangesResident,
    DGC: DGCResident,
    Frequencies: FrequenciesResident,
}
"""By the type of a codec for the CPU, what makes its twin on a device."""


def twin_of(codec: Any, device: torch.device) -> Resident:
    """The twin of a codec that has one, on any device, the CPU too."""
    return TWINS[type(codec)](codec, device)


def placed(codec: Any, device: torch.device) -> Any:
    """`codec` for vectors on a device."""
    if device.type == "cpu":
        return codec
    if isinstance(codec, Around) and (type(codec.codec) in TWINS or isinstance(codec, Forgetful)):
        return codec.around(placed(codec.codec, device))
    twin = TWINS.get(type(codec))
    return OnHost(codec, device) if twin is None else twin(codec, device)


def decoded_once(codec: Any, buffers: WireBuffers) -> Tensor:
    """What a message decodes to, not to be written to: on a device the same tensor for all who get the message."""
    return codec.shared(buffers) if isinstance(codec, Resident) else codec.decode(buffers)


def decoded_all(codec: Any, messages: Sequence[WireBuffers]) -> list[Tensor]:
    """What several messages decode to, not to be written to; on a device in one go where the codec can."""
    if isinstance(codec, Resident):
        return codec.shared_all(messages)
    return [codec.decode(buffers) for buffers in messages]


class OnHost:
    """A codec without a twin: vectors are on the device, its messages on the CPU.

    Parameters
    ----------
    codec : as on the CPU; what it does with vectors it does on the device where it can (`testbed.codecs.device`)
    device : where vectors are
    """

    def __init__(self, codec: Any, device: torch.device) -> None:
        self.codec, self.device, self.layout = codec, device, codec.layout
        inner = getattr(codec, "codec", codec)
        note(f"{type(inner).__name__} has no messages on the device: each is made on the CPU, and waits for the GPU")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codec, name)

    def encode(self, vector: Tensor, *rest: Any, **named: Any) -> Buffers:
        """As the codec does."""
        return self.codec.encode(vector, *rest, **named)

    def decode(self, buffers: WireBuffers, out: Tensor | None = None) -> Tensor:
        """Decode on the device."""
        room = torch.empty(self.layout.size, device=self.device) if out is None else out
        return self.codec.decode(buffers, room)
