"""ISGQ's quantizers: what values they take, what error they leave, in how many bytes, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from elsewhere import PLACES
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs.base import Key
from testbed.codecs.factors import Dithered, FactorCodec, LloydMax, MinimumError, Unquantized, multiply
from testbed.codecs.factors.points import COLUMNS, Product, lloyd_max, lloyd_max_with_zero
from testbed.errors import CodecError
from testbed.gpu.standin import DEVICE, standin
from testbed.layout import Factors, Layout

KEY = Key(seed=0, stream=0, step=0)
SAMPLES = 16
NET = Layout.of(
    [
        ("conv.weight", (2, 1, 3, 3)),
        ("a.weight", (40, 30)),
        ("a.bias", (40,)),
        ("b.weight", (20, 40)),
        ("b.bias", (20,)),
        ("c.weight", (5, 20)),
    ]
)
CODECS: dict[str, Callable[[Layout, int], FactorCodec]] = {
    "naive": LloydMax,
    "beside": lambda layout, samples: LloydMax(layout, samples, zero_beside=True),
    "two bits": lambda layout, samples: LloydMax(layout, samples, levels=4),
    "mse": MinimumError,
    "dithered": Dithered,
    "fine": lambda layout, samples: Dithered(layout, samples, levels=20),
    "unquantized": Unquantized,
}
on_devices = pytest.mark.parametrize("place", PLACES)
Place = Callable[[], AbstractContextManager[torch.device]]
every_codec = pytest.mark.parametrize("make", CODECS.values(), ids=CODECS.keys())
MUTATED = [
    pytest.param(make, marks=() if name == "fine" else pytest.mark.slow, id=name) for name, make in CODECS.items()
]


def one_layer(inputs: int, outputs: int, bias: bool = False) -> Layout:
    return Layout.of([("w.weight", (outputs, inputs)), *([("w.bias", (outputs,))] if bias else [])])


def relu_factors(seed: int, layout: Layout = NET, samples: int = SAMPLES, scale: float = 1e-3) -> list[Factors]:
    """What a network with ReLUs gives: a dense first X, then X and the Delta before it zero at the same places."""
    random = torch.Generator().manual_seed(seed)
    factors: list[Factors] = []
    x = torch.randn(samples, layout.linear[0].inputs, generator=random)
    for layer in layout.linear:
        delta = scale * torch.randn(samples, layer.outputs, generator=random)
        following = torch.randn(samples, layer.outputs, generator=random).relu()
        last = layer is layout.linear[-1]
        factors.append((x, delta if last else delta * (following != 0)))
        x = following
    return factors


def quantized(codec: FactorCodec, factors: list[Factors], key: Key = KEY) -> list[Factors]:
    return codec.decode(codec.encode(factors, key), key)


# --- what travels ------------------------------------------------------------------------------------------------


def test_the_linear_layers_are_found_with_their_biases() -> None:
    found = [(x.name, x.inputs, x.outputs, x.bias.name if x.bias else None) for x in NET.linear]
    assert found == [("a", 30, 40, "a.bias"), ("b", 40, 20, "b.bias"), ("c", 20, 5, None)]
    assert [(layer.name, layer.offset) for layer in NET.rest] == [("conv.weight", 0)]


@pytest.mark.parametrize(("levels", "error"), [(2, 1 - 2 / np.pi), (4, 0.11748), (8, 0.03454)])
def test_the_error_on_normal_signals_is_max_s(levels: int, error: float) -> None:
    """Max 1960, table I."""
    x = torch.randn(64, 3000, generator=torch.Generator().manual_seed(1))
    [(found, _)] = quantized(LloydMax(one_layer(3000, 1), 64, levels), [(x, torch.ones(64, 1))])
    assert float((found - x).square().mean() / x.square().mean()) == pytest.approx(error, rel=0.02)
    assert found.unique().numel() == levels


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([2, 3, 4, 8]), st.booleans())
def test_zeros_stay_and_values_are_the_means_of_their_bins(seed: int, levels: int, beside: bool) -> None:
    factors = relu_factors(seed)
    for pair, found in zip(factors, quantized(LloydMax(NET, SAMPLES, levels, beside), factors), strict=True):
        for number, (signal, values) in enumerate(zip(pair, found, strict=True)):
            points = [float(point) for point in values.unique() if point != 0]
            relu = number == 0 and bool((signal >= 0).all())
            assert bool((values[signal == 0] == 0).all())
            if beside or not relu:
                assert torch.equal(values == 0, signal == 0)
            assert len(points) <= (levels - 1 if relu and not beside else levels)
            tops = [float(signal[values == point].max()) for point in points]
            assert tops == sorted(tops)  # bins are intervals
            for point in points:
                assert point == pytest.approx(float(signal[values == point].double().mean()), rel=1e-5)


def test_a_signal_of_one_sign_with_few_zeros_keeps_both_levels() -> None:
    """A sigmoid's output: with zero as a level nothing of it would be left."""
    x = torch.rand(64, 100, generator=torch.Generator().manual_seed(0)) + 0.1
    x[0, 0] = 0
    [(found, _)] = quantized(LloydMax(one_layer(100, 1), 64), [(x, torch.ones(64, 1))])
    assert found.unique().numel() == 3


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [9, COLUMNS + 1])
def test_the_product_is_measured_as_defined(width: int, bias: bool) -> None:
    """`Product` never forms G; this does (eq. 6)."""
    random = np.random.default_rng(0)
    x, delta = random.normal(size=(6, width)).astype(np.float32), random.normal(size=(6, 4)).astype(np.float32)
    x_bins, delta_bins = random.integers(0, 3, x.shape), random.integers(0, 3, delta.shape)
    alpha, beta = random.normal(size=2), random.normal(size=2)
    one = 0.5 if bias else 0.0
    wide, wide_found = x, np.append(0, alpha)[x_bins]
    if bias:
        ones = np.full((6, 1), one)
        wide, wide_found = np.hstack([x, ones]), np.hstack([wide_found, ones])
    difference = delta.T @ wide - np.append(0, beta)[delta_bins].T @ wide_found
    expected = (difference**2).sum() + 3.0 * difference.sum() ** 2 / difference.size
    product = Product(x, delta, x_bins, delta_bins, 2, one, 3.0)
    assert product.loss(alpha, beta) == pytest.approx(expected, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([2, 4]), st.booleans(), st.floats(0, 10), st.sampled_from([1e-20, 1, 1e9])
)
def test_algorithm_1_brings_the_product_nearer(seed: int, levels: int, bias: bool, weight: float, scale: float) -> None:
    """Each half-step minimises eq. 6 over half of the points, so it never ends above where it started."""
    layout = one_layer(30, 20, bias)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, 30, generator=random).relu()
    delta = scale * (torch.randn(SAMPLES, 20, generator=random) + x[:, :20])  # correlated, as Lemma 1 has it

    def loss(codec: FactorCodec) -> float:
        [(found_x, found_delta)] = quantized(codec, [(x, delta)])
        ones = torch.ones(SAMPLES, int(bias))
        wide, found = torch.hstack([x, ones]).double(), torch.hstack([found_x, ones]).double()
        difference = (delta.double().T @ wide - found_delta.double().T @ found) / scale
        return float(difference.square().sum() + weight * difference.sum() ** 2 / difference.numel())

    naive = loss(LloydMax(layout, SAMPLES, levels))
    once, twice = (loss(MinimumError(layout, SAMPLES, levels, rounds=n, bias_weight=weight)) for n in (1, 2))
    assert once <= naive * (1 + 1e-4)
    assert twice <= once * (1 + 1e-4)
    assert once < naive


@pytest.mark.slow
def test_dithered_is_unbiased_and_its_error_does_not_depend_on_the_signal() -> None:
    """Theorem 2, P1: z-scores of the product, element by element; and each factor's error is uniform."""
    layout, draws = one_layer(30, 20), 1500
    [(x, delta)] = relu_factors(1, layout)
    codec = Dithered(layout, SAMPLES)
    exact = delta.double().T @ x.double()
    total, squares = torch.zeros_like(exact), torch.zeros_like(exact)
    errors = []
    for step in range(draws):
        [(found_x, found_delta)] = quantized(codec, [(x, delta)], Key(0, 0, step))
        product = found_delta.double().T @ found_x.double()
        total, squares = total + product, squares + product.square()
        errors.append(((found_x - x) / x.abs().max()).flatten())
    mean = total / draws
    deviation = ((squares / draws - mean.square()) / draws).sqrt()
    z = ((mean - exact) / deviation).flatten()
    assert abs(float(z.mean())) < 5 / z.numel() ** 0.5
    assert float(z.std()) == pytest.approx(1, abs=0.15)
    assert float(z.abs().max()) < 5
    error = torch.stack(errors).double()
    assert float(error.abs().max()) <= 0.5 + 1e-6
    assert float(error.var()) == pytest.approx(1 / 12, rel=0.01)
    assert abs(float(error.mean())) < 5 * (1 / 12 / error.numel()) ** 0.5
    by_element = error.var(0)
    small, large = by_element[x.flatten().abs() < 0.2].mean(), by_element[x.flatten().abs() > 1].mean()
    assert float(small) == pytest.approx(float(large), rel=0.02)


@pytest.mark.parametrize("levels", [1, 3, 127])
def test_only_bin_indexes_travel_and_another_key_reads_other_values(levels: int) -> None:
    factors = relu_factors(0)
    codec = Dithered(NET, SAMPLES, levels)
    points, _, _ = codec.encode(factors, KEY)
    assert points.tolist() == [float(part.abs().max()) for pair in factors for part in pair]
    right, wrong = (codec.decode(codec.encode(factors, KEY), key) for key in (KEY, Key(0, 0, 1)))
    assert not any(torch.equal(a[0], b[0]) for a, b in zip(right, wrong, strict=True))
    for pair, found in zip(factors, right, strict=True):
        for signal, values in zip(pair, found, strict=True):
            assert float((values - signal).abs().max()) <= float(signal.abs().max()) / levels * 0.500001


def test_multiplying_all_workers_at_once_is_the_mean_of_their_gradients() -> None:
    workers = [relu_factors(seed) for seed in range(3)]
    out = torch.full((NET.size,), 7.0)
    multiply(NET, workers, out)
    for number, layer in enumerate(NET.linear):
        mean = sum(f[number][1].T @ f[number][0] / SAMPLES for f in workers) / 3
        torch.testing.assert_close(out[layer.weight.slice].view(layer.weight.shape), mean, rtol=1e-4, atol=1e-7)
        if layer.bias is not None:
            bias = sum(f[number][1].mean(0) for f in workers) / 3
            torch.testing.assert_close(out[layer.bias.slice], bias, rtol=1e-4, atol=1e-7)
    assert out[:18].tolist() == [7.0] * 18  # the convolution's place


# --- factors that are not on the CPU ---------------------------------------------------------------------------------


def moved(factors: list[Factors], device: torch.device | str) -> list[Factors]:
    return [(x.to(device), delta.to(device)) for x, delta in factors]


@on_devices
@every_codec
@pytest.mark.parametrize(("samples", "scale"), [(0, 1.0), (1, 1e-40), (SAMPLES, 0.0), (SAMPLES, 1e-3), (SAMPLES, 1e30)])
def test_messages_are_the_same_to_the_byte_elsewhere(
    place: Place, make: Callable[[Layout, int], FactorCodec], samples: int, scale: float
) -> None:
    codec, factors = make(NET, samples), relu_factors(5, NET, samples, scale)
    expected = codec.encode(factors, KEY)
    with place() as device:
        found = codec.encode(moved(factors, device), KEY)
    assert [part.tobytes() for part in found] == [part.tobytes() for part in expected]


@every_codec
def test_factors_come_down_in_one_transfer(make: Callable[[Layout, int], FactorCodec]) -> None:
    factors = relu_factors(0)
    with standin() as counts:
        there = moved(factors, DEVICE)
        waits, launches = counts.waits, counts.launches
        make(NET, SAMPLES).encode(there, KEY)
        assert counts.waits - waits == 1
        assert counts.launches - launches == 1  # they are laid one after the other
        assert counts.down == 4 * SAMPLES * 155


@on_devices
@every_codec
def test_what_is_not_finite_is_named_elsewhere(place: Place, make: Callable[[Layout, int], FactorCodec]) -> None:
    factors = relu_factors(0)
    factors[2][0][1, 1] = float("nan")
    with place() as device, pytest.raises(CodecError, match=r"layer c\.weight, X: NaN or infinity"):
        make(NET, SAMPLES).encode(moved(factors, device), KEY)


@on_devices
def test_they_are_multiplied_where_the_gradient_is(place: Place) -> None:
    workers, out = [relu_factors(seed) for seed in range(3)], torch.zeros(NET.size)
    multiply(NET, workers, out)
    with place() as device:
        there, elsewhere = torch.zeros(NET.size, device=device), torch.zeros(NET.size, device=device)
        multiply(NET, workers, there)
        multiply(NET, [moved(factors, device) for factors in workers], elsewhere)
        torch.testing.assert_close(there.cpu(), out)
        assert torch.equal(elsewhere.cpu(), there.cpu())


def test_they_go_up_in_one_transfer_that_nobody_waits_for() -> None:
    with standin() as counts:
        out = torch.zeros(NET.size, device=DEVICE)
        multiply(NET, [relu_factors(seed) for seed in range(3)], out)
        assert (counts.ups, counts.waits) == (1, 0)
        assert counts.up == 3 * 4 * SAMPLES * 155


# --- how many bytes ------------------------------------------------------------------------------------------------


def test_exact_bytes() -> None:
    """Zeros alone: per signal its points, 4 bytes of size, and a run of form, constant, symbol."""
    zeros = [(torch.zeros_like(x), torch.zeros_like(delta)) for x, delta in relu_factors(0)]
    assert [part.nbytes for part in LloydMax(NET, SAMPLES, 4).encode(zeros, KEY)] == [6 * 4 * 4, 6 * 4, 6 * 3]
    assert [part.nbytes for part in Dithered(NET, SAMPLES).encode(zeros, KEY)] == [6 * 4, 6 * 4, 6 * 3]
    assert [part.nbytes for part in Unquantized(NET, SAMPLES).encode(zeros, KEY)] == [4 * SAMPLES * 155]


def test_a_relus_signals_cost_their_entropy_and_deltas_zeros_little() -> None:
    """One bit. The first X is normal; the second is cut at zero, and what is nearer to zero than to its level, below
    0.612 of its deviation (Max 1960, 3 levels), is zero with it: 73 % of all. Delta is zero where X was cut.
    """
    layout, samples = Layout.of([("a.weight", (500, 100)), ("b.weight", (10, 500))]), 128
    factors = relu_factors(3, layout, samples)
    _, sizes, runs = LloydMax(layout, samples).encode(factors, KEY)
    bits = 8 * sizes.view(np.uint32) / samples
    kept, near = 0.27, 0.73  # of X; of the latter 31 % were not cut, and have a Delta
    coded = 500 * (kept * 1 + near * (entropy(0.315) + 0.315))
    assert bits == pytest.approx([100, coded, 500 * entropy(kept), 10], rel=0.03, abs=1.5)
    assert runs.size == sizes.sum()
    _, sizes, _ = LloydMax(layout, samples, zero_beside=True).encode(factors, KEY)
    bits = 8 * sizes.view(np.uint32) / samples
    assert bits == pytest.approx([100, 250, 750, 10], rel=0.03, abs=1.5)  # Delta's zeros are known, and cost nothing
    x, delta = factors[0]
    loose = [(x, delta.abs() + 1e-9), factors[1]]  # somewhere not zero where the next X is
    found = quantized(LloydMax(layout, samples), loose)
    assert bool((found[0][1] != 0).all())


def entropy(p: float) -> float:
    """Bits of one thing or another."""
    return float(-p * np.log2(p) - (1 - p) * np.log2(1 - p))


# --- what is refused -------------------------------------------------------------------------------------------------


@every_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", [0, 1])
def test_what_is_not_finite_is_named(make: Callable[[Layout, int], FactorCodec], bad: float, part: int) -> None:
    factors = relu_factors(0)
    factors[1][part][3, 2] = bad
    with pytest.raises(CodecError, match=r"layer b\.weight, (X|Delta): NaN or infinity"):
        make(NET, SAMPLES).encode(factors, KEY)


@every_codec
def test_other_shapes_are_refused(make: Callable[[Layout, int], FactorCodec]) -> None:
    factors = relu_factors(0)
    with pytest.raises(CodecError, match=r"layer a\.weight, X: float32 \(17, 30\) expected"):
        make(NET, SAMPLES + 1).encode(factors, KEY)
    with pytest.raises(CodecError, match="factors of 3 linear layers expected, found 2"):
        make(NET, SAMPLES).encode(factors[:2], KEY)


@every_codec
@pytest.mark.parametrize("samples", [0, 1])
@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-38, 1.0, 1.1e38])
def test_extreme_signals_come_back_finite_and_in_shape(
    make: Callable[[Layout, int], FactorCodec], samples: int, scale: float
) -> None:
    factors = [(x.abs().clamp(max=3) * scale, d) for x, d in relu_factors(0, NET, samples, scale / 10)]
    for x, _ in factors:
        x[:, ::2] = 3 * scale  # near the end of float32's range in the last case, and beyond it with its dither
    for pair, found in zip(factors, quantized(make(NET, samples), factors), strict=True):
        for signal, values in zip(pair, found, strict=True):
            assert signal.shape == values.shape
            assert bool(values.isfinite().all())
            if scale == 0:
                assert not values.any()


@every_codec
def test_a_model_without_linear_layers_has_an_empty_message(make: Callable[[Layout, int], FactorCodec]) -> None:
    codec = make(Layout.of([("conv.weight", (2, 1, 3, 3))]), SAMPLES)
    assert sum(part.nbytes for part in codec.encode([], KEY)) == 0
    assert quantized(codec, []) == []


@pytest.mark.parametrize("make", MUTATED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_mutated_messages_are_refused_or_decode_to_finite_factors(
    make: Callable[[Layout, int], FactorCodec], data: st.DataObject
) -> None:
    codec = make(NET, SAMPLES)
    buffers = [bytearray(part.tobytes()) for part in codec.encode(relu_factors(0), KEY)]
    for _ in range(data.draw(st.integers(1, 4))):
        buffer = data.draw(st.sampled_from(buffers))
        if data.draw(st.booleans()) and buffer:
            buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
        elif data.draw(st.booleans()):
            del buffer[data.draw(st.integers(0, len(buffer))) :]
        else:
            buffer += data.draw(st.binary(max_size=8))
    if data.draw(st.integers(0, 9)) == 0:
        buffers.pop()
    try:
        found = codec.decode(buffers, KEY)
    except CodecError:
        return
    for layer, (x, delta) in zip(NET.linear, found, strict=True):
        assert x.shape == (SAMPLES, layer.inputs)
        assert delta.shape == (SAMPLES, layer.outputs)
        assert bool(x.isfinite().all() and delta.isfinite().all())


@pytest.mark.parametrize(
    "make", [lambda: LloydMax(NET, 1, 1), lambda: LloydMax(NET, 1, 17), lambda: Dithered(NET, 1, 128)]
)
def test_options_are_checked(make: Callable[[], FactorCodec]) -> None:
    with pytest.raises(CodecError, match="levels"):
        make()


def test_lloyd_max_of_few_values() -> None:
    for values in ([], [0.0], [2.0], [2.0, 2.0], [-1.0, 0.0, 5.0]):
        thresholds, points = lloyd_max(np.array(values, np.float32), 4)
        assert thresholds.shape == (3,)
        assert set(points.tolist()) - {0.0} == set(values) - {0.0}


@pytest.mark.parametrize("find", [lloyd_max, lloyd_max_with_zero])
def test_zeros_among_the_elements_change_nothing(
    find: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]],
) -> None:
    """Of sixteenths, so that sums are exact in any order."""
    x = np.abs(np.random.default_rng(0).normal(size=2000)).astype(np.float32) * 16 // 1 / 16
    among = np.zeros(2 * x.size, np.float32)
    among[::2] = x
    for found, expected in zip(find(among, 4), find(x[x != 0], 4), strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(("beside", "levels", "nmse"), [(False, 2, 0.190), (True, 2, 0.1175), (False, 3, 0.0799)])
def test_behind_a_relu_the_error_is_the_optimum_quantizers(beside: bool, levels: int, nmse: float) -> None:
    """Max 1960, table 1: a normal signal's with 3, 4 and 5 levels, whose positive half is {0, a}, {a, b}, {0, a, b}."""
    x = torch.randn(400, 1000, generator=torch.Generator().manual_seed(0)).relu_()
    codec = LloydMax(one_layer(1000, 1), 400, levels, zero_beside=beside)
    [(found, _)] = quantized(codec, [(x, torch.ones(400, 1))])
    assert float((found - x).square().sum() / x.square().sum()) == pytest.approx(nmse, abs=0.001)
    [(found, _)] = quantized(codec, [(-x, torch.ones(400, 1))])
    assert float((found + x).square().sum() / x.square().sum()) == pytest.approx(nmse, abs=0.001)
