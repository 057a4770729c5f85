"""Elias codes of sparse small levels: gap, sign and magnitude of each that is not zero (QSGD, section 3.2).

The paper's theorems take Elias's omega code; gamma, used here, is no longer up to 15, where nearly all gaps and
magnitudes lie. The bits are laid out in `testbed.codecs.kernels.elias`.

The buffer: for each stream its bytes as a little-endian uint32, then the streams. A layer is cut into streams of
1,024,000 elements, which are coded on several threads; the last bits of a stream's last byte are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from testbed.codecs.base import stretches
from testbed.codecs.buffers import BufferPool
from testbed.codecs.kernels import elias as kernels
from testbed.codecs.kernels.compiled import warm_up
from testbed.codecs.kernels.threads import CHUNK, in_chunks
from testbed.errors import CodecError


class EliasStreams:
    """Levels of several layers as one buffer.

    Parameters
    ----------
    names : whose levels they are, for errors
    sizes : elements of each
    levels : s, the largest magnitude, at most 127
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int], levels: int) -> None:
        warm_up()
        self.levels = levels
        self._size = sum(sizes)
        self._layers = stretches(sizes)
        self._pool = BufferPool()
        self._streams = [
            (name, slice(start, min(start + CHUNK, place.stop)))
            for name, place in zip(names, self._layers, strict=True)
            for start in range(place.start, place.stop, CHUNK)
        ]

    def pack(self, raised: np.ndarray) -> np.ndarray:
        """Code raised levels (uint8 [sum of the sizes], each level plus s) layer by layer."""
        streams = [stream for place in self._layers for stream in self._code_layer(raised[place])]
        lengths = np.array([stream.size for stream in streams], np.uint32)
        parts = [lengths.view(np.uint8), *streams]
        return np.concatenate(parts, out=self._pool.take(sum(part.size for part in parts)))

    def unpack(self, buffer: Any) -> np.ndarray:
        """The inverse of `pack`.

        Raises
        ------
        CodecError : the bytes are not the streams of these layers; names the first layer that is malformed
        """
        data = _bytes(buffer)
        head = 4 * len(self._streams)
        if data.size < head:
            raise CodecError(f"levels: {len(self._streams)} lengths expected, found {data.size} bytes")
        places = stretches([head, *data[:head].copy().view(np.uint32).tolist()])[1:]
        if (places[-1].stop if places else 0) != data.size:
            raise CodecError(f"levels: {data.size} bytes are not those of the {len(self._streams)} streams")
        raised = self._pool.take(self._size)
        for (name, elements), place in zip(self._streams, places, strict=True):
            if not self._decode(data[place], raised[elements]):
                raise CodecError(
                    f"{name}: no Elias code of {elements.stop - elements.start} levels up to {self.levels}"
                )
        return raised

    def _code_layer(self, raised: np.ndarray) -> list[np.ndarray]:
        most = self._most_words(min(raised.size, CHUNK))
        words = self._pool.take(most * -(-raised.size // CHUNK), np.uint64)

        def code(start: int, stop: int) -> np.ndarray:
            here = words[start // CHUNK * most :][:most]
            bits = kernels.pack(raised[start:stop], here, self.levels)
            return here.view(np.uint8)[: -(-bits // 8)]

        return in_chunks(code, raised.size)

    def _most_words(self, size: int) -> int:
        """Words of a stream of so many elements; a gap of g takes at most g + 1 bits, so none takes more than this."""
        return ((2 * self.levels.bit_length() + 2) * size + kernels.MAX_CODE_BITS) // 64 + 1

    def _decode(self, data: np.ndarray, raised: np.ndarray) -> bool:
        """Fill `raised` from one stream; False when it is not its code."""
        if data.size > 8 * raised.size + 8:  # no code is as long
            return False
        words = self._pool.take(data.size // 8 + 4, np.uint64)
        words[data.size // 8 :] = 0  # behind the stream, too, which windows reach past
        words.view(np.uint8)[: data.size] = data
        bits = kernels.unpack(words, 8 * data.size, raised, self.levels)
        return bits >= 0 and -(-bits // 8) == data.size and not (bits % 8 and data[-1] >> bits % 8)


def _bytes(buffer: Any) -> np.ndarray:
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise CodecError(f"levels: bytes expected, found {type(buffer).__name__}") from error
    if not view.c_contiguous:
        raise CodecError("levels: contiguous bytes expected")
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
