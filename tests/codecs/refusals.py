"""What decoders make of damaged messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from testbed.errors import CodecError


def refused(codec: Any, messages: Iterable[Any], finite: bool = True) -> int:
    """How many messages are refused; all others must decode to a vector of the model, `finite` where that is so."""
    count = 0
    for message in messages:
        try:
            decoded = codec.decode(message)
        except CodecError:
            count += 1
        else:
            assert decoded.shape == (codec.layout.size,)
            assert not finite or bool(torch.isfinite(decoded).all())
    return count
