"""Ternary vectors that stay on the device: `testbed.codecs.ternary` and its sums, in one pass over all layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.blockwise import BlockThresholdTernary
from testbed.codecs.device.planar import shifted
from testbed.codecs.kernels.planar import SEGMENT
from testbed.codecs.kernels.ternary import DRAW_RANGE, MAX_TRIT_BYTE, TRITS
from testbed.codecs.levels import LevelSum
from testbed.codecs.resident import base, fused
from testbed.codecs.resident.base import Measures, Planes, Resident, Rows, extended, hashed, keys_of
from testbed.codecs.resident.fused import TernaryKernels, TritKernels
from testbed.codecs.sized import sized
from testbed.codecs.ternary import _ENLARGE, _ROUNDS, _TINY_SCALE, Ternary, ThresholdTernary
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError
from testbed.gpu.graphs import Pass
from testbed.gpu.moves import rows
from testbed.gpu.together import in_one_go
from testbed.layout import Layer

_DIGITS = np.array([0.0, 1.0, -1.0], np.float32)


class Limits(NamedTuple):
    """As `testbed.codecs.ternary.Limits`, on the device."""

    clip: Tensor
    scales: Tensor


class _Call(NamedTuple):
    """The arguments of `TernaryResident.encode`."""

    vector: Tensor
    key: Key
    scales: Tensor | None = None
    limits: Limits | None = None


class TritResident(Resident):
    """Where the digits of a ternary message lie, and how it becomes a vector.

    On a GPU, kernels of its own do that where there can be any (`testbed.codecs.resident.fused`); elsewhere, and for
    what these do not do, it is done by torch's operations, which look up in a table where each element is.

    Parameters
    ----------
    scaled, measures : what has a scale of its own, by default each ternary layer, and what measures it
    """

    _kernels: TritKernels | None
    _looks_up = True  # whether torch's operations are used beside kernels

    def __init__(
        self,
        codec: TritFormat,
        device: torch.device,
        scaled: Sequence[Layer] | None = None,
        measures: Measures | Rows | None = None,
    ) -> None:
        scaled = codec.ternary if scaled is None else scaled
        super().__init__(codec, device, scaled)
        self.one_scale = codec.one_scale
        self._sizes = self.moved(np.array([layer.size for layer in scaled], np.float64))
        # A message of trits is [bytes, 5] digits after one look-up; each element of the vector has its place in these.
        digits = np.arange(MAX_TRIT_BYTE + 1)[:, None] // 3 ** np.arange(TRITS) % 3
        self._values = self.moved(_DIGITS[digits])
        self.signs = self.moved(_DIGITS[digits].astype(np.int8))
        self._kernels = self._fused(scaled)
        if self._kernels is None or self._looks_up:
            self._lay_out(scaled, measures)

    def _fused(self, scaled: Sequence[Layer]) -> TritKernels | None:
        return TritKernels(self.codec, self.device, scaled) if fused.usable(self.device) else None

    def _lay_out(self, scaled: Sequence[Layer], measures: Measures | Rows | None) -> None:
        """The tables of torch's operations, of some numbers for each element."""
        nothing = self.layout.size
        sizes, starts = [layer.size for layer in scaled], [layer.offset for layer in scaled]
        lengths = [-(-size // TRITS) for size in sizes]
        owner, number = base.byte_owner(lengths)
        places = base.planar_places(sizes, starts, TRITS, nothing)
        self._owner = self.moved(owner)
        self._places = self.moved(places.reshape(-1))
        self._begun = self.moved(base.counters(number))
        self._measures = measures or Measures(scaled, nothing, self.device)
        floats = [np.arange(layer.offset, layer.end) for layer in self.codec.floats]
        self._floats = self.moved(np.concatenate([np.empty(0, np.int64), *floats]))
        self._powers = self.moved(3 ** np.arange(TRITS, dtype=np.uint8)[:, None])
        order = np.concatenate([np.empty(0, np.int64), *floats])
        self._sources = self.moved(base.sources(places.T, order, nothing))
        self._unpack = Pass(self._unpacked, nothing)

    def by_byte(self, scales: Tensor) -> Tensor:
        """Each byte's scale, of one a layer or of one for all."""
        return scales.expand(self._owner.shape) if self.one_scale else scales.index_select(0, self._owner)

    def by_layer(self, scales: Tensor) -> Tensor:
        """Each layer's."""
        return scales.expand(self._sizes.shape) if self.one_scale else scales

    def decode(self, buffers: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """See `Resident.decode`; a kernel decodes again what was decoded before, in half the time of a copy."""
        return super().decode(buffers, out) if self._kernels is None else self._kernels.unpack(buffers, out)

    def shared_all(self, messages: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """See `Resident.shared_all`; kernels decode all in one launch."""
        return super().shared_all(messages) if self._kernels is None else list(self._kernels.unpack_all(messages))

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        if self._kernels is not None:
            return self._kernels.unpack(buffers)
        (vector,) = self._unpack(*buffers)
        return vector

    def _unpacked(self, scales: Tensor, floats: Tensor, trits: Tensor) -> list[Tensor]:
        values = self._values.index_select(0, trits.to(torch.int32))
        values = values.mul_(self.by_byte(scales).view(-1, 1))
        return [torch.cat([values.view(-1), floats]).index_select(0, self._sources)]


class TernaryResident(TritResident):
    """TernGrad's stochastic ternary gradients."""

    codec: Ternary
    _kernels: TernaryKernels | None
    _looks_up = False

    def __init__(self, codec: Ternary, device: torch.device) -> None:
        super().__init__(codec, device)
        self._measure = Pass(self._measured, self.layout.size)
        self._pack = Pass(self._packed, self.layout.size)

    def _fused(self, scaled: Sequence[Layer]) -> TernaryKernels | None:
        return TernaryKernels(self.codec, self.device) if fused.usable(self.device) else None

    @in_one_go("limits_of")
    def limits(self, vector: Tensor) -> Limits:
        """What the vector says of the scales."""
        (found,) = self.limits_of([(vector,)])
        return found

    def limits_of(self, asked: Sequence[tuple[Tensor]]) -> list[Limits]:
        """What `limits` says of several vectors."""
        vectors = [self.checked(vector) for (vector,) in asked]
        if self._kernels is None:
            measured = [self._measure(x) for x in vectors]
            for tops, _, _ in measured:
                self.doubts.note(tops)
            return [Limits(clip, scales) for _, clip, scales in measured]
        tops, clips, scales = self._kernels.measure(rows(vectors))
        self.doubts.note(tops.amax(0))
        return list(map(Limits, clips.unbind(), scales.unbind()))

    @in_one_go("encode_all", sized)
    def encode(
        self, vector: Tensor, key: Key, scales: Tensor | None = None, limits: Limits | None = None
    ) -> list[Tensor]:
        """Clip, ternarize at random and pack; see `Ternary.encode`.

        Shared scales are taken as they come: that none is below this vector's own is not looked at.
        """
        (buffers,) = self.encode_all([(vector, key, scales, limits)])
        return buffers

    def encode_all(self, asked: Sequence[tuple[Any, ...]]) -> list[list[Tensor]]:
        """The messages that `encode` makes of several vectors, `asked` for with its arguments."""
        calls = [_Call(*each) for each in asked]
        missing = [(call.vector,) for call in calls if call.limits is None]
        measured = iter(self.limits_of(missing) if missing else [])
        own = [next(measured) if call.limits is None else call.limits for call in calls]
        shared = [each.scales if call.scales is None else call.scales for call, each in zip(calls, own, strict=True)]
        vectors, keys = [self.checked(call.vector) for call in calls], [call.key for call in calls]
        clips = [each.clip for each in own]
        if self._kernels is None:
            packed = [
                self._pack(x, torch.from_numpy(keys_of(key, self.codec.indexes)), clip, scales)
                for x, key, clip, scales in zip(vectors, keys, clips, shared, strict=True)
            ]
        else:
            alike = all(scales is shared[0] for scales in shared)
            scales = shared[0].view(1, -1) if alike else rows(shared)
            floats, trits = self._kernels.pack(rows(vectors), keys, rows(clips), scales)
            packed = [list(each) for each in zip(floats.unbind(), trits.unbind(), strict=True)]
        return [[scales, *buffers] for scales, buffers in zip(shared, packed, strict=True)]

    def _measured(self, x: Tensor) -> list[Tensor]:
        blocks = self._measures.blocks(extended(x))
        norms = torch.linalg.vector_norm(blocks, dim=1, dtype=torch.float64)
        sums, squares = self._measures.sums(blocks.sum(1, dtype=torch.float64), norms * norms).unbind()
        tops = self._measures.largest(torch.linalg.vector_norm(blocks, float("inf"), dim=1))
        clip = tops
        if self.codec.clip is not None:
            mean_square, mean = squares / self._sizes, sums / self._sizes
            variance = mean_square - mean * mean
            limit = torch.minimum(self.codec.clip * variance.clamp(min=0).sqrt(), tops.double()).float()
            clip = torch.where(variance > 1e-12 * mean_square, limit, tops)
        scales = clip.max().view(1) if self.one_scale and len(clip) else clip
        return [tops, clip, scales.clone()]

    def _packed(self, x: Tensor, keys: Tensor, clip: Tensor, shared: Tensor) -> list[Tensor]:
        enlarge, inverse, limit = self._rules(clip, self.by_layer(shared))
        values = extended(x).index_select(0, self._places).view(TRITS, -1)
        level = (values.abs() * enlarge.index_select(0, self._owner)) * inverse.index_select(0, self._owner)
        level = torch.minimum(level, limit.index_select(0, self._owner))
        drawn = _draws(hashed(self._begun, keys.index_select(0, self._owner))) < level
        return [x.index_select(0, self._floats), self._digits(drawn, values)]

    def _rules(self, clip: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What each layer is multiplied by, twice, and cut to; see `testbed.codecs.ternary._pack`."""
        enlarge = torch.where(scale < _TINY_SCALE, _ENLARGE, 1.0).float()
        scale, clip = scale * enlarge, clip * enlarge
        inverse = torch.where(scale > 0, (DRAW_RANGE / scale.double()).float(), 0.0)
        return enlarge, inverse, torch.where(clip < scale, clip * inverse, torch.inf)

    def _digits(self, chosen: Tensor, values: Tensor) -> Tensor:
        return _digits(chosen, values, self._powers)


def _draws(h: Tensor) -> Tensor:
    """31 random bits of each digit of a byte (float32 [5, bytes]); see `testbed.codecs.device.planar.streams`."""
    rows = [h, _swapped(h)]
    for factor in base.FACTORS:
        h = h * factor
        h = h ^ shifted(h, 16)
        rows += [h, _swapped(h)]
    return shifted(torch.stack(rows[:TRITS]), 1).to(torch.float32)


def _swapped(h: Tensor) -> Tensor:
    return (h << 16) | shifted(h, 16)


def _digits(chosen: Tensor, values: Tensor, powers: Tensor) -> Tensor:
    """The digits [5, bytes] packed: 0 where not chosen, else 1, or 2 where negative."""
    digits = chosen.to(torch.uint8) * (1 + (values < 0).to(torch.uint8))
    return (digits * powers).sum(0, dtype=torch.uint8)


class ThresholdTernaryResident(TritResident):
    """Deterministic ternary vectors."""

    def __init__(
        self,
        codec: ThresholdTernary | BlockThresholdTernary,
        device: torch.device,
        scaled: Sequence[Layer] | None = None,
        measures: Measures | Rows | None = None,
    ) -> None:
        super().__init__(codec, device, scaled, measures)
        self._plainly = Pass(self._plain, self.layout.size)
        self._weighted = Pass(self._plain, self.layout.size)

    def encode(self, vector: Tensor, key: Key | None = None, importance: Tensor | None = None) -> list[Tensor]:
        """Ternarize and pack; see `ThresholdTernary.encode`, whose look at an importance below 0 is left out."""
        x = self.checked(vector)
        if importance is None:
            tops, *buffers = self._plainly(x)
        else:
            tops, *buffers = self._weighted(x, importance.contiguous())
        self.doubts.note(tops)
        return buffers

    def quantize(self, vector: Tensor, importance: Tensor | None = None) -> Tensor:
        """What a receiver would decode."""
        return self.decode(self.encode(vector, importance=importance))

    def _plain(self, x: Tensor, importance: Tensor | None = None) -> list[Tensor]:
        whole, measures = extended(x), self._measures
        sizes = measures.blocks(whole).abs()
        tops = measures.largest(sizes.amax(1))
        (totals,) = measures.sums(sizes.sum(1, dtype=torch.float64))
        threshold = (0.7 * totals / self._sizes.clamp(min=1)).float()
        count, kept = self._above(sizes, None, threshold)
        alpha = (kept / count.clamp(min=1)).float()
        if importance is not None:
            weights = measures.blocks(extended(importance))
            alpha, threshold = self._loss_aware(sizes, weights, alpha, threshold)
        values = whole.index_select(0, self._places).view(TRITS, -1)
        chosen = values.abs() > threshold.index_select(0, self._owner)
        return [tops, alpha, x.index_select(0, self._floats), _digits(chosen, values, self._powers)]

    def _above(self, sizes: Tensor, weights: Tensor | None, threshold: Tensor) -> Tensor:
        """Of the elements above each layer's threshold: how many and their sum; or sum and mass by their weights."""
        keep = sizes > self._measures.of_block(threshold)
        if weights is None:
            counts = keep.sum(1, dtype=torch.float64)
            return self._measures.sums(counts, torch.where(keep, sizes, 0.0).sum(1, dtype=torch.float64))
        factor = torch.where(keep, weights, 0.0).double()
        return self._measures.sums((factor * sizes.double()).sum(1), factor.sum(1))

    def _loss_aware(self, sizes: Tensor, weights: Tensor, alpha: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
        """What the alternation reaches; where it has, further rounds change nothing."""
        total, mass = self._above(sizes, weights, threshold)
        for _ in range(_ROUNDS):
            alpha = torch.where(mass > 0, (total / mass).float(), alpha)
            threshold = torch.where(mass > 0, alpha / 2, threshold)
            total, mass = self._above(sizes, weights, threshold)
        return alpha, threshold


@dataclass(frozen=True)
class Levels:
    """As `testbed.codecs.levels.Levels`; `raised` int32 [8, bytes of a plane], 0 past a layer's end."""

    count: int
    scales: Tensor
    floats: Tensor
    raised: Tensor


class LevelSumResident(Resident):
    """Sums of ternary messages on shared scales; that the scales are the same is not looked at."""

    codec: LevelSum

    def __init__(self, codec: LevelSum, messages: TernaryResident, device: torch.device) -> None:
        floats = messages.codec.floats
        super().__init__(codec, device, floats[:1])
        self.workers, self._messages = codec.workers, messages
        layers = messages.codec.ternary
        sizes = [layer.size for layer in layers]
        self._planes = Planes(sizes, codec.bits, device)
        count = sum(sizes)
        # Elements of the ternary layers, one after the other, and where each lies among the digits of a message.
        order = np.concatenate(
            [np.empty(0, np.int64), *(np.arange(each.offset, each.end) for each in messages.codec.ternary)]
        )
        starts = np.cumsum([0, *sizes])[:-1].tolist()
        digits = base.planar_places(sizes, starts, TRITS, count).T.reshape(-1)
        among = np.append(base.inverse_of(digits, count), digits.size)  # behind the end: nothing
        places = self._planes.places
        self._among = self.moved(among[places.reshape(-1)])
        self._real = self.moved((places < count).astype(np.int32))
        widths = [sum(-(-part // 8) for part in _blocks(size)) for size in sizes]
        self._owner = self.moved(np.repeat(np.arange(len(sizes)), widths))
        self._add = Pass(self._added, self.layout.size)
        self._pack = Pass(lambda raised: [self._planes.pack(raised)], self.layout.size)
        self._open = Pass(lambda packed: [self._planes.unpack(packed)], self.layout.size)
        among_floats = [np.arange(each.offset, each.end) for each in floats]
        coded = np.append(order, -1)[np.minimum(places, count)]  # of each place of the planes
        coded[places >= count] = self.layout.size
        self._sources = self.moved(
            base.sources(coded, np.concatenate([np.empty(0, np.int64), *among_floats]), self.layout.size)
        )
        self._unpack = Pass(self._unpacked, self.layout.size)

    def sum(self, messages: Iterable[Sequence[Tensor]]) -> Levels:
        """Add ternary messages."""
        parts = list(messages)
        if not 0 < len(parts) <= self.workers:
            raise CodecError(f"a sum over {self.workers} workers is of 1 to {self.workers} messages, not {len(parts)}")
        floats, raised = self._add(torch.stack([part[1] for part in parts]), torch.stack([part[2] for part in parts]))
        return Levels(len(parts), parts[0][0], floats, raised)

    def _added(self, floats: Tensor, trits: Tensor) -> list[Tensor]:
        count, total = len(trits), torch.zeros_like(floats[0])
        for part in floats:
            total += part  # one after the other, from zero: the same bits as on the CPU
        signs = self._messages.signs.index_select(0, trits.view(-1).to(torch.int32))
        digits = signs.view(count, -1).sum(0, dtype=torch.int32)
        raised = extended(digits).index_select(0, self._among).view(self._real.shape)
        return [total, raised + count * self._real]

    def add(self, sums: Iterable[Levels]) -> Levels:
        """Add sums of smaller groups."""
        first, *others = list(sums)
        count, floats, raised = first.count, first.floats, first.raised
        for part in others:
            count, floats, raised = count + part.count, floats + part.floats, raised + part.raised
        return Levels(count, first.scales, floats, raised)

    def completed(self, levels: Levels) -> Levels:
        """The sum as if those whose messages are not in it had sent zeros."""
        missing = self.workers - levels.count
        return replace(levels, count=self.workers, raised=levels.raised + missing * self._real) if missing else levels

    def encode(self, levels: Levels) -> list[Tensor]:
        """Pack a complete sum."""
        if levels.count != self.workers:
            raise CodecError(f"a sum over {levels.count} of {self.workers} workers is not complete")
        (packed,) = self._pack(levels.raised)
        return [levels.scales, levels.floats, packed]

    def unpack(self, buffers: Sequence[Tensor]) -> Levels:
        """The inverse of `encode`."""
        (raised,) = self._open(buffers[2])
        return Levels(self.workers, buffers[0], buffers[1], raised)

    def _decoded(self, buffers: Sequence[Tensor]) -> Tensor:
        (vector,) = self._unpack(*buffers)
        return vector

    def _unpacked(self, scales: Tensor, floats: Tensor, packed: Tensor) -> list[Tensor]:
        step = (self._messages.by_layer(scales).double() / self.workers).index_select(0, self._owner)
        values = ((self._planes.unpack(packed) - self.workers).double() * step).float()
        return [torch.cat([values.view(-1), floats / self.workers]).index_select(0, self._sources)]


def _blocks(size: int) -> list[int]:
    """Elements of a layer's planar blocks."""
    full = 8 * SEGMENT
    return [full] * (size // full) + ([size % full] if size % full else [])
