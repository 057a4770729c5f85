"""The entropy coder: its forms, its bits against theory, and what it makes of malformed bytes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from testbed.codecs import Key, Ternary, ThresholdTernary
from testbed.codecs.adaptive import Adaptive
from testbed.codecs.kernels.entropy import TOTAL, quantize_counts
from testbed.codecs.lossless.entropy import (
    CODED,
    CONSTANT,
    PLAIN,
    STREAM,
    EntropyCoded,
    SymbolRuns,
    pack_symbols,
    unpack_symbols,
    worth_coding,
)
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(0, 0, 0)
LAYOUT = Layout.of([("a.weight", (60, 70)), ("a.bias", (60,)), ("b.weight", (3, 60)), ("b.bias", (3,))])


def skewed(size: int, alphabet: int, seed: int = 0) -> np.ndarray:
    """Symbols whose frequencies fall geometrically."""
    draws = np.random.default_rng(seed).geometric(8 / (alphabet + 8), size) - 1
    return np.minimum(draws, alphabet - 1).astype(np.uint8)


def entropy(symbols: np.ndarray) -> float:
    """Bits of all symbols under their own frequencies."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float((counts * np.log2(symbols.size / counts)).sum())


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.integers(1, 256))
def test_any_symbols_come_back(content: bytes, alphabet: int) -> None:
    symbols = (np.frombuffer(content, np.uint8).astype(int) % alphabet).astype(np.uint8)
    packed = pack_symbols(symbols, alphabet)
    assert packed.nbytes <= symbols.size + 1 or symbols.size == 0
    assert np.array_equal(unpack_symbols(packed, symbols.size, alphabet), symbols)
    assert np.array_equal(unpack_symbols(packed.tobytes(), symbols.size, alphabet), symbols)


@pytest.mark.parametrize("size", [2000, 2001, 2002, 2003, STREAM - 1, STREAM, STREAM + 1, 2 * STREAM + 7])
@pytest.mark.parametrize("alphabet", [2, 3, 243, 256])
def test_sizes_around_states_and_streams(size: int, alphabet: int) -> None:
    symbols = skewed(size, alphabet)
    packed = pack_symbols(symbols, alphabet)
    assert packed[0] == CODED
    assert np.array_equal(unpack_symbols(packed, size, alphabet), symbols)


@pytest.mark.parametrize("rare", [0, 1, 5])
def test_very_uneven_symbols(rare: int) -> None:
    """Words are then so few that most symbols are decoded after the last of them."""
    symbols = np.zeros(100_000, np.uint8)
    symbols[np.linspace(10, 99_990, rare, dtype=int)] = 7
    packed = pack_symbols(symbols, 243)
    assert packed[0] == (CODED if rare else CONSTANT)
    assert packed.nbytes < 150
    assert np.array_equal(unpack_symbols(packed, symbols.size, 243), symbols)


def test_the_three_forms() -> None:
    assert pack_symbols(np.full(9, 4, np.uint8), 5).tolist() == [CONSTANT, 4]
    assert pack_symbols(np.array([1, 0], np.uint8), 5).tolist() == [PLAIN, 1, 0]
    assert pack_symbols(np.empty(0, np.uint8), 5).tolist() == [PLAIN]
    random = np.random.default_rng(0).integers(0, 256, 50_000, np.uint8)
    assert pack_symbols(random, 256).nbytes == 50_001  # nothing to gain
    two = np.tile(np.array([0, 0, 0, 2], np.uint8), 1000)
    form, bitmap, low0, low2, high0, high2, *_ = pack_symbols(two, 3).tolist()
    assert (form, bitmap) == (CODED, 0b101)
    assert (low0 & 127 | high0 << 7, low2 & 127 | high2 << 7) == (3072, 1024)


@pytest.mark.parametrize("alphabet", [2, 16, 243])
def test_the_size_is_within_one_percent_of_the_entropy(alphabet: int) -> None:
    symbols = skewed(1_000_000, alphabet)
    packed = pack_symbols(symbols, alphabet)
    assert 8 * (packed.nbytes - 500) < 1.01 * entropy(symbols)
    assert 8 * packed.nbytes > 0.999 * entropy(symbols)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=256).filter(lambda counts: sum(c > 0 for c in counts) > 1))
def test_quantized_frequencies_keep_every_symbol_and_sum_up(counts: list[int]) -> None:
    padded = np.array(counts + [0] * (256 - len(counts)))
    frequencies = np.zeros(256, np.int64)
    quantize_counts(padded, frequencies)
    assert frequencies.sum() == TOTAL
    assert np.array_equal(frequencies > 0, padded > 0)


@pytest.mark.parametrize(("laplace", "most"), [(False, 1.23), (True, 1.14)])
def test_ternary_at_two_and_a_half_sigma(laplace: bool, most: float) -> None:
    """The trits' own entropy is 1.219 bit an element for a Gaussian vector, 1.123 for a Laplacian one."""
    layout = Layout.of([("w.weight", (1000, 1000)), ("last.weight", (1, 1))])
    draw = np.random.default_rng(0)
    values = draw.laplace(size=layout.size) if laplace else draw.normal(size=layout.size)
    vector = torch.from_numpy(values.astype(np.float32))
    codec = EntropyCoded(Ternary(layout))
    buffers = codec.encode(vector, KEY)
    assert 8 * sum(buffer.nbytes for buffer in buffers) / layout.size < most
    assert torch.equal(codec.decode(buffers), codec.codec.decode(codec.codec.encode(vector, KEY)))


@pytest.mark.parametrize("plain", [Ternary(LAYOUT), Ternary(LAYOUT, layerwise=False), ThresholdTernary(LAYOUT)])
@pytest.mark.parametrize("scale", [0.0, 1e-40, 1.0, 1e30])
def test_coding_changes_nothing_but_the_bytes(plain: Ternary | ThresholdTernary, scale: float) -> None:
    vector = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0)) * scale
    codec, message = EntropyCoded(plain), plain.encode(vector, KEY)
    packed = codec.encode(vector, KEY)
    assert all(np.array_equal(a, b) for a, b in zip(codec.unpack(packed), message, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(codec.pack(message), packed, strict=True))
    assert torch.equal(codec.decode(packed), plain.decode(message))
    assert sum(b.nbytes for b in packed) <= sum(b.nbytes for b in message) + len(plain.ternary)


def test_nan_is_refused_by_the_layers_name() -> None:
    vector = torch.zeros(LAYOUT.size)
    vector[0] = torch.nan
    with pytest.raises(CodecError, match=r"layer a\.weight: NaN"):
        EntropyCoded(Ternary(LAYOUT)).encode(vector, KEY)


def test_the_same_bytes_for_any_number_of_threads() -> None:
    symbols = skewed(3 * STREAM + 5, 243)
    packed = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        packed.append(pack_symbols(symbols, 243).tobytes())
        assert np.array_equal(unpack_symbols(packed[-1], symbols.size, 243), symbols)
    assert len(set(packed)) == 1


def test_runs_have_models_of_their_own() -> None:
    runs = SymbolRuns(243, ["first", "none", "second"], [5000, 0, 3000])
    symbols = np.concatenate([skewed(5000, 3), 200 + skewed(3000, 3)]).astype(np.uint8)
    assert np.array_equal(runs.unpack(runs.pack(symbols)), symbols)
    assert runs.pack(symbols).nbytes < pack_symbols(symbols, 243).nbytes
    with pytest.raises(CodecError, match=r"second: a symbol beyond 0 \.\. 242"):
        runs.pack(np.concatenate([symbols[:5000], np.full(3000, 243, np.uint8)]))
    with pytest.raises(CodecError, match="second: 3000 more bytes expected"):
        runs.unpack(bytes([CONSTANT, 0, PLAIN, PLAIN]))


def test_runs_of_one_stream_and_of_several_stand_in_one_buffer() -> None:
    """Those of one stream are read together; one of several, or one that is malformed, by itself."""
    lengths = [0, 1, 2000, STREAM + 5, 7, STREAM, 3000]
    runs = SymbolRuns(243, [f"run {k}" for k in range(len(lengths))], lengths)
    symbols = skewed(sum(lengths), 243)
    symbols[2001 : 2001 + STREAM] = 5
    packed = runs.pack(symbols)
    assert np.array_equal(runs.unpack(packed), symbols)
    apart = [
        unpack_symbols(pack_symbols(symbols[stop - size : stop], 243), size, 243)
        for size, stop in zip(lengths, np.cumsum(lengths), strict=True)
    ]
    assert np.array_equal(np.concatenate(apart), symbols)
    with pytest.raises(CodecError, match="run 6: its streams are not those of 3000 symbols"):
        runs.unpack(change(packed, packed.size - 1, packed[-1] ^ 1))


def change(packed: np.ndarray, place: int, value: int) -> bytes:
    content = bytearray(packed.tobytes())
    content[place] = value
    return bytes(content)


GOOD = pack_symbols(np.tile(np.array([0, 0, 0, 2], np.uint8), 1000), 3)  # 6 bytes of model, 4 of sizes, the stream
MALFORMED: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (lambda: b"", "1 more bytes expected, found 0"),
    "no bytes": (lambda: "text", "bytes expected, found str"),
    "form": (lambda: change(GOOD, 0, 3), "unknown form 3"),
    "one symbol": (lambda: change(GOOD, 1, 0b001), "fewer than two symbols"),
    "beyond the alphabet": (lambda: change(GOOD, 1, 0b1001), r"or of one beyond 0 \.\. 2"),
    "sum": (lambda: change(GOOD, 4, 25), "sum to 4096"),
    "frequency of 0": (lambda: bytes([CODED, 0b111, 0x80, 0x80, 0x00, 24, 8]), "at least 1"),
    "map cut off": (lambda: GOOD[:1].tobytes(), "a model that goes on beyond the end"),
    "model cut off": (lambda: GOOD[:3].tobytes(), "a model that goes on beyond the end"),
    "its rest cut off": (lambda: GOOD[:5].tobytes(), "a model that goes on beyond the end"),
    "short stream": (lambda: change(GOOD, 6, 7)[:-2], "at least 8"),
    "stream beyond the end": (lambda: change(GOOD, 9, 255), "more bytes expected"),
    "cut off": (lambda: GOOD[:-1].tobytes(), "more bytes expected"),
    "too long": (lambda: GOOD.tobytes() + b"0", "1 bytes too many"),
    "another state": (lambda: change(GOOD, 10, GOOD[10] ^ 1), "not those of 4000 symbols"),
    "plain beyond the alphabet": (lambda: bytes([PLAIN]) + bytes([3]) * 4000, r"beyond 0 \.\. 2"),
    "constant beyond the alphabet": (lambda: bytes([CONSTANT, 3]), r"beyond 0 \.\. 2"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_bytes_are_refused(case: str) -> None:
    assert unpack_symbols(GOOD, 4000, 3).size == 4000
    make, error = MALFORMED[case]
    with pytest.raises(CodecError, match=error):
        unpack_symbols(make(), 4000, 3, "w")


def test_another_number_of_symbols_is_refused() -> None:
    for count in (0, 1, 3999, 4001, STREAM + 1):
        with pytest.raises(CodecError):
            unpack_symbols(GOOD, count, 3)


def _mutants(good: list[np.ndarray], count: int) -> list[list[bytearray]]:
    random, mutants = np.random.default_rng(0), []
    for _ in range(count):
        bad = [bytearray(buffer.tobytes()) for buffer in good]
        target = bad[random.integers(len(bad))]
        for _ in range(random.integers(1, 4)):
            # The model at the front of a buffer is where a change matters most.
            place = random.integers(len(target)) if random.random() < 0.5 else random.integers(min(64, len(target)))
            target[place] = random.integers(256)
        if random.random() < 0.2:
            del target[random.integers(len(target)) :]
        mutants.append(bad)
    return mutants


@pytest.mark.parametrize("count", [2000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.full])])
@pytest.mark.parametrize(
    "codec",
    [EntropyCoded(Ternary(LAYOUT)), pytest.param(Adaptive(LAYOUT), marks=pytest.mark.slow)],
    ids=["ternary", "adaptive"],
)
def test_mutated_messages_give_an_error_or_a_finite_vector(codec: EntropyCoded | Adaptive, count: int) -> None:
    good = codec.encode(torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(1)), KEY)
    assert count / 10 < refused(codec, _mutants(good, count)) < count


def test_worth_coding_weighs_the_seconds_against_the_link() -> None:
    # 50,000 bytes less are 4 ms at 100 Mbit/s, 0.4 ms at 1,000.
    assert worth_coding(221_000, 171_000, 0.002, 100)
    assert not worth_coding(221_000, 171_000, 0.002, 1000)
    assert not worth_coding(1000, 1001, 0.0, 10)
