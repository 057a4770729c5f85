"""Ternary messages by kernels of their own on a GPU, where Triton can compile them: see `fused_kernels`.

Which elements and bytes a program works on is a row of a table on the device: a row for some thousand elements, where
torch's operations need a number for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from testbed.codecs.base import Key
from testbed.codecs.kernels.planar import SEGMENT
from testbed.codecs.kernels.ternary import TRITS
from testbed.codecs.ternary import Ternary
from testbed.codecs.trits import TritFormat
from testbed.errors import CodecError
from testbed.gpu.moves import rows, upload
from testbed.gpu.notes import note
from testbed.layout import Layer, Layout

STRETCH = 8192  # elements that one program measures: 32 KB on their way at once
PARTS = 2048  # stretches of a layer that are brought together at once
_BLOCK = TRITS * SEGMENT


@cache
def usable(device: torch.device) -> bool:
    """Whether kernels run on a device; it is tried, since Triton needs a compiler of C and a place for its files."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        _try(device)
    except Exception as error:  # whatever a compiler, a driver and a file system may say
        reason = str(error).strip().partition("\n")[0]
        note(f"ternary messages are made by torch's operations: Triton's kernels fail ({reason})")
        return False
    return True


def _try(device: torch.device) -> None:
    """Code and decode a vector that comes back as it was, all of its magnitudes being the scale.

    Twice, since kernels are launched in another way from the second time on; waits for the device as often.
    """
    codec = Ternary(Layout.of([("a.weight", (1, 9)), ("last.weight", (1, 2))]))
    kernels, x = TernaryKernels(codec, device), torch.ones(codec.layout.size, device=device)
    for _ in "12":
        _, clips, scales = kernels.measure(x.view(1, -1))
        floats, trits = kernels.pack(x.view(1, -1), [Key(0, 0, 0)], clips, scales)
        if not torch.equal(kernels.unpack([scales[0], floats[0], trits[0]]), x):
            raise RuntimeError("a vector came back as another")


class Launched:
    """A kernel, launched without Triton's search for one that is compiled for its arguments.

    None here is specialized for them, so that what the first launch compiled is right for all. The search takes the
    program longer than the launch.

    Parameters
    ----------
    constants : of the kernel, in its order
    options : of the compiler
    """

    def __init__(self, kernel: Any, constants: dict[str, Any], **options: Any) -> None:
        self._kernel, self._constants, self._options = kernel, constants, options
        self._compiled: Any = None

    def __call__(self, grid: tuple[int, int], *arguments: Any) -> None:
        """Launch it on the current device."""
        if self._compiled is None:  # for ever where Triton's interpreter plays it
            self._compiled = self._kernel[grid](*arguments, **self._constants, **self._options)
        else:
            self._compiled[(*grid, 1)](*arguments, *self._constants.values())


class TritKernels:
    """How a ternary message becomes a vector, in one launch.

    Parameters
    ----------
    scaled : what has a scale of its own, one after the other in a message: by default each ternary layer, which can
        be drawn, too
    """

    def __init__(self, codec: TritFormat, device: torch.device, scaled: Sequence[Layer] | None = None) -> None:
        from testbed.codecs.resident import fused_kernels  # triton is there only beside a torch for CUDA

        self._kernels: Any = fused_kernels
        self._codec, self._device = codec, device
        keyed = zip(codec.ternary, codec.indexes, strict=True) if scaled is None else ((each, 0) for each in scaled)
        blocks = [*_coded(keyed), *_copied(codec.floats)]
        self._count = len(blocks)
        self._blocks = upload(np.array(blocks, np.int64), device)
        self._sizes = list(codec.sizes())
        scales, floats, trits = self._sizes
        self._lengths = upload(np.array([codec.layout.size, scales // 4, floats // 4, trits], np.int64), device)
        self._unpack = Launched(self._kernels.unpack, {"one_scale": codec.one_scale, "lanes": SEGMENT})

    def unpack(self, buffers: Sequence[Tensor], out: Tensor | None = None) -> Tensor:
        """Write a message's vector into `out`, by default a fresh one [layout.size]."""
        scales, floats, trits = self._checked(buffers)
        fits = out is not None and out.is_contiguous() and out.dtype == torch.float32 and out.device == scales.device
        vector = out if fits else torch.empty(self._codec.layout.size, device=self._device)
        assert vector is not None
        if vector.numel() != self._codec.layout.size:
            raise CodecError(f"a vector of {self._codec.layout.size} elements expected, found {vector.numel()}")
        self._write(scales, floats, trits, vector.view(1, -1))
        return vector if out is None or fits else out.copy_(vector)

    def unpack_all(self, messages: Sequence[Sequence[Tensor]]) -> Tensor:
        """The vectors [messages, layout.size] of several messages."""
        scales, floats, trits = map(rows, zip(*map(self._checked, messages), strict=True))
        vectors = torch.empty((len(messages), self._codec.layout.size), device=self._device)
        self._write(scales, floats, trits, vectors)
        return vectors

    def _write(self, scales: Tensor, floats: Tensor, trits: Tensor, vectors: Tensor) -> None:
        """Decode messages, a row each, or one that is not in a row."""
        if self._count:
            with self._current():
                self._unpack((self._count, len(vectors)), scales, floats, trits, self._blocks, vectors, self._lengths)

    def _checked(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """A message's buffers; a kernel reads past the end of what is too short."""
        found = [buffer.nbytes for buffer in buffers]
        if found != self._sizes:
            raise CodecError(f"a message of buffers of {self._sizes} bytes expected, found {found}")
        return [buffer.contiguous() for buffer in buffers]

    def _current(self) -> AbstractContextManager[Any]:
        """Within it, the device is the one that kernels are launched on."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext()


class TernaryKernels(TritKernels):
    """How vectors, one or several, become stochastic ternary messages, in three launches."""

    _codec: Ternary

    def __init__(self, codec: Ternary, device: torch.device) -> None:
        super().__init__(codec, device)
        counts = [-(-layer.size // STRETCH) for layer in codec.ternary]
        firsts = np.cumsum([0, *counts])[:-1].tolist()
        sizes = [layer.size for layer in codec.ternary]
        self._stretches = upload(np.array(list(_stretches(codec.ternary)), np.int64), device)
        self._layers = upload(np.array(list(zip(firsts, counts, sizes, strict=True)), np.int64), device)

        whole = [codec.layout.size, len(codec.ternary), codec.scale_count, codec.float_size, codec.trit_bytes]
        self._own_scales, self._same_scales = (
            upload(np.array(each, np.int64), device) for each in (whole, [*whole[:2], 0, *whole[3:]])
        )
        self._measure = Launched(self._kernels.measure, {"lanes": STRETCH}, num_warps=8)
        # Not fused, a product is rounded before it is subtracted, as on the CPU.
        wide = {"num_warps": 8, "enable_fp_fusion": False}
        self._finish = Launched(self._kernels.finish, {"clip": codec.clip, "lanes": PARTS}, **wide)
        self._pack = Launched(self._kernels.pack, {"one_scale": codec.one_scale, "lanes": SEGMENT})

    def measure(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of vectors [n, elements]: the largest magnitudes [n, layers], those after clipping, and messages' scales."""
        count, layers, stretches = len(x), len(self._layers), len(self._stretches)
        made = torch.empty((3, count, layers), device=self._device)
        parts = torch.empty((count, stretches, 3), dtype=torch.float64, device=self._device)
        with self._current():
            if stretches:
                self._measure((stretches, count), x, x.shape[1], self._stretches, parts)
            if layers:
                self._finish((layers, count), parts, stretches, self._layers, made)
        tops, clips, scales = made.unbind()
        return tops, clips, clips.amax(1, keepdim=True) if self._codec.one_scale and layers else scales

    def pack(self, x: Tensor, keys: Sequence[Key], clips: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """The float layers and the trits of vectors [n, elements], a row each.

        Parameters
        ----------
        clips : [n, layers]
        scales : [n, scales of a message], or [1, scales of a message] of all
        """
        count, own = len(x), len(scales) > 1 or len(x) == 1
        scaled, layers = (count if own else 1, self._codec.scale_count), (count, len(self._codec.ternary))
        if scales.shape != scaled or clips.shape != layers:
            raise CodecError(f"{self._codec.scale_count} shared scales expected, found {scales.shape[1]}")
        floats = torch.empty((count, self._codec.float_size), device=self._device)
        trits = torch.empty((count, self._codec.trit_bytes), dtype=torch.uint8, device=self._device)
        halves = np.array([(key.state >> 32, key.state & 0xFFFFFFFF) for key in keys], np.uint32).view(np.int32)
        if self._count:
            rules = clips.contiguous(), scales.contiguous(), upload(halves, self._device)
            sizes = self._own_scales if own else self._same_scales
            with self._current():
                self._pack((self._count, count), x, self._blocks, *rules, floats, trits, sizes)
        return floats, trits


# --- tables; the columns are those of `fused_kernels` ---------------------------------------------------------------


def _coded(layers: Iterable[tuple[Layer, int]]) -> Iterator[tuple[int, ...]]:
    """A row for each planar block of ternary layers and their numbers in a key."""
    begun = 0
    for position, (layer, index) in enumerate(layers):
        for place in range(0, layer.size, _BLOCK):
            number, size = place // TRITS, min(_BLOCK, layer.size - place)
            yield position, layer.offset + place, size, begun + number, number, index
        begun += -(-layer.size // TRITS)


def _copied(layers: Sequence[Layer]) -> Iterator[tuple[int, ...]]:
    """A row for as many elements of float layers."""
    begun = 0
    for layer in layers:
        for place in range(0, layer.size, _BLOCK):
            yield -1, layer.offset + place, min(_BLOCK, layer.size - place), begun + place, 0, 0
        begun += layer.size


def _stretches(layers: Sequence[Layer]) -> Iterator[tuple[int, int]]:
    """A row for each stretch that is measured."""
    for layer in layers:
        for place in range(0, layer.size, STRETCH):
            yield layer.offset + place, min(STRETCH, layer.size - place)
