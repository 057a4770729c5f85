"""Planar blocks, bit planes and counter-based random numbers; see the rules of `testbed.codecs.kernels`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from testbed.codecs.kernels.planar import PLANES, R1, R2, R3, SEGMENT

_ROUNDS = tuple(int(factor) for factor in (R1, R2, R3))  # of the kernels' hash
Coder = Callable[[torch.Tensor, int], torch.Tensor]


def pack(x: torch.Tensor, segments: int, planes: int, code: Coder) -> torch.Tensor:
    """Cut rows into planar blocks and code these.

    Parameters
    ----------
    x : [rows, size]; the last block of a row is filled up with zeros
    segments : of a block
    planes : bytes that `code` makes of an element of all segments
    code : (blocks [rows, count, segments, width], number of the first of them) -> uint8 [rows, count, planes, width]

    Returns
    -------
    uint8 [rows, bytes]
    """
    rows, size = x.shape
    full = segments * SEGMENT
    count = size // full
    packed = [x.new_empty((rows, 0), dtype=torch.uint8)]
    if count:
        whole = x[:, : count * full].reshape(rows, count, segments, SEGMENT)
        packed.append(code(whole, 0).reshape(rows, count * planes * SEGMENT))
    rest = size - count * full
    if rest:
        width = -(-rest // segments)
        padded = x.new_zeros(rows, segments * width)
        padded[:, :rest] = x[:, count * full :]
        packed.append(code(padded.view(rows, 1, segments, width), count).reshape(rows, planes * width))
    return torch.cat(packed, 1)


def unpack(packed: torch.Tensor, size: int, segments: int, planes: int, code: Coder) -> torch.Tensor:
    """The inverse of `pack`: [rows, size] of what `code` makes of uint8 [rows, count, planes, width]."""
    rows, full = len(packed), segments * SEGMENT
    count = size // full
    used = count * planes * SEGMENT
    parts = []
    if count:
        whole = packed[:, :used].reshape(rows, count, planes, SEGMENT)
        parts.append(code(whole, 0).reshape(rows, count * full))
    rest = size - count * full
    if rest or not count:
        width = -(-rest // segments)
        last = packed[:, used : used + planes * width].reshape(rows, 1, planes, width)
        parts.append(code(last, count).reshape(rows, segments * width)[:, :rest])
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def rows_of(x: torch.Tensor, length: int) -> Iterator[torch.Tensor]:
    """Views of a vector as rows of this length, then of the shorter rest as one row; nothing of an empty vector."""
    whole = x.numel() // length
    if whole:
        yield x[: whole * length].view(whole, length)
    if x.numel() > whole * length:
        yield x[whole * length :].view(1, -1)


def quotient(a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    """a / b, rounded once, of at least one tensor: of a plain number torch may multiply by the reciprocal."""
    if not isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        a = b.new_full((1,), a)
    return a / (b if isinstance(b, torch.Tensor) else a.new_full((1,), b))


# --- bit planes ---------------------------------------------------------------------------------------------------


def pack_planes(levels: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the low bits of integers [n]; see `kernels.planar.pack_chunk`. Returns uint8 [bits * ceil(n / 8)]."""

    def code(blocks: torch.Tensor, first: int) -> torch.Tensor:
        return torch.cat([joined((blocks >> bit) & 1) for bit in range(bits)], 2)

    return pack(levels.view(1, -1), PLANES, bits, code).view(-1)


def unpack_planes(packed: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    """The inverse of `pack_planes`: int32 [size]."""

    def code(planes: torch.Tensor, first: int) -> torch.Tensor:
        rows, count, _, width = planes.shape
        levels = planes.new_zeros((rows, count, PLANES, width), dtype=torch.int32)
        for bit in range(bits):
            levels |= parted(planes[:, :, bit : bit + 1]).to(torch.int32) << bit
        return levels

    return unpack(packed.view(1, -1), size, PLANES, bits, code).view(-1)


def joined(flags: torch.Tensor) -> torch.Tensor:
    """Zeros and ones [rows, count, 8, width] as bytes [rows, count, 1, width], the first in the lowest bit."""
    return (flags.to(torch.uint8) << _places(flags)).sum(2, keepdim=True, dtype=torch.uint8)


def parted(bytes_: torch.Tensor) -> torch.Tensor:
    """The inverse of `joined`."""
    return (bytes_ >> _places(bytes_)) & 1


def _places(like: torch.Tensor) -> torch.Tensor:
    return torch.arange(PLANES, dtype=torch.uint8, device=like.device).view(PLANES, 1)


# --- random numbers: 32-bit lanes as int32, whose products wrap ---------------------------------------------------


def signed(bits: int) -> int:
    """The int32 with these 32 bits."""
    return (bits & 0x7FFFFFFF) - (bits & 0x80000000)


def shifted(h: torch.Tensor, places: int) -> torch.Tensor:
    """32 bits shifted to the right, zeros coming in."""
    return (h >> places) & (0xFFFFFFFF >> places)


def hashed(first: int, count: int, key: int, device: torch.device) -> torch.Tensor:
    """32 random bits (int32 [count]) for each counter from `first` on; see `kernels.planar.hashed`."""
    h = torch.arange(first, first + count, device=device).to(torch.int32)
    h = h ^ shifted(h, 17)
    h = (h * signed(_ROUNDS[0])) ^ signed(key)
    h = h ^ shifted(h, 11)
    h = h * signed(_ROUNDS[1])
    h = h ^ shifted(h, 15)
    h = h * signed(_ROUNDS[2])
    return h ^ shifted(h, 14)


def streams(first: int, count: int, key: int, device: torch.device) -> Iterator[torch.Tensor]:
    """32 random bits (int32 [count]) for each segment of a ternary block in turn; see `kernels.ternary.draw_block`."""
    h = hashed(first, count, key, device)
    yield h
    yield _swapped(h)
    for factor in _ROUNDS[:2]:
        h = h * signed(factor)
        h = h ^ shifted(h, 16)
        yield h
        yield _swapped(h)


def _swapped(h: torch.Tensor) -> torch.Tensor:
    return (h << 16) | shifted(h, 16)
