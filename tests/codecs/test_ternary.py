"""TernGrad's codec: its bytes, its values, its statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.codecs import Key, Ternary
from testbed.errors import CodecError
from testbed.layout import Layout

KEY = Key(seed=0, stream=0, step=0)
# Sizes at and around every block boundary: 5 x 1024 elements, bytes of five digits, one element, none.
SIZES = [0, 1, 2, 4, 5, 6, 1023, 1024, 5119, 5120, 5121, 5124, 10_240, 12_345]


def one_layer(size: int) -> Layout:
    return Layout.of([("w.weight", (size,)), ("last.weight", (1,))])


def draw(codec: Ternary, layer: torch.Tensor, key: Key = KEY) -> np.ndarray:
    """Encode and decode one layer (followed by a float element); the layer's values."""
    vector = torch.cat([layer, torch.zeros(1)])
    return codec.decode(codec.encode(vector, key))[:-1].numpy()


def normal(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_the_exact_bytes_of_cifarnets_message(cifarnet: Layout, gradient: torch.Tensor) -> None:
    assert cifarnet.size == 1_068_298
    codec = Ternary(cifarnet)
    scales, floats, trits = codec.encode(gradient, KEY)
    assert scales.nbytes == 32  # 8 ternary tensors
    assert floats.nbytes == 7_720  # fc3: 1,930 float32
    assert trits.nbytes == 960 + 13 + 20_480 + 13 + 176_948 + 77 + 14_746 + 39 == 213_276
    assert codec.nbytes == 221_028
    assert Ternary(cifarnet, float_last=False).nbytes == 40 + 213_276 + 384 + 2
    assert Ternary(cifarnet, layerwise=False).nbytes == 4 + 7_720 + 213_276


def test_the_format_digit_by_digit() -> None:
    codec = Ternary(one_layer(7), clip=None)
    vector = torch.tensor([2.0, -2.0, 0.0, 2.0, 2.0, 0.0, -2.0, 0.5])
    scales, floats, trits = codec.encode(vector, KEY)  # elements of +-scale or zero leave nothing to chance
    assert scales.tolist() == [2.0]
    assert floats.tolist() == [0.5]
    # Two bytes; byte j holds elements j, j + 2, j + 4, j + 6: [+, 0, +, -] and [-, +, 0].
    assert trits.tolist() == [1 + 0 * 3 + 1 * 9 + 2 * 27, 2 + 1 * 3 + 0 * 9]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 2**32), st.sampled_from([None, 0.5, 2.5]), st.booleans())
def test_each_layer_decodes_to_zero_or_its_scale_with_the_elements_sign(
    size: int, seed: int, clip: float | None, layerwise: bool
) -> None:
    layout = Layout.of([("a.weight", (size,)), ("a.bias", (3,)), ("last.weight", (2, 2)), ("last.bias", (2,))])
    codec = Ternary(layout, clip=clip, layerwise=layerwise)
    vector = normal(layout.size, seed % 1000)
    buffers = codec.encode(vector, Key(seed, 1, 2))
    decoded = codec.decode(buffers)
    assert torch.equal(decoded[size + 3 :], vector[size + 3 :])
    for position, layer in enumerate(codec.ternary):
        part, scale = decoded[layer.slice], codec.scale_of(buffers[0], position)
        assert set(part.abs().tolist()) <= {0.0, float(scale)}
        assert bool(((part == 0) | (part.sign() == vector[layer.slice].sign())).all())


def test_sigma_and_scale_are_those_of_the_definition(cifarnet: Layout, gradient: torch.Tensor) -> None:
    limits = Ternary(cifarnet).limits(gradient)
    for layer, limit in zip(cifarnet, limits.clip, strict=False):
        values = gradient[layer.slice].double()
        expected = min(2.5 * values.std(unbiased=False), values.abs().max())
        assert limit == pytest.approx(float(expected), rel=1e-6)
    unclipped = Ternary(cifarnet, clip=None).limits(gradient)
    assert unclipped.clip.tolist() == [gradient[x.slice].abs().max() for x in list(cifarnet)[:8]]
    whole = Ternary(cifarnet, layerwise=False).limits(gradient)
    assert whole.scales.tolist() == [max(limits.clip)]
    assert np.array_equal(whole.clip, limits.clip)


@pytest.mark.parametrize("mean", [0.0, 1.0, 100.0, 1e4])
@pytest.mark.parametrize("factor", [1e-30, 1e-12, 1.0, 1e15, 1e30])
def test_sigma_survives_large_means_and_extreme_scales(mean: float, factor: float) -> None:
    values = ((normal(20_000) + mean) * factor).float()
    sigma = values.double().std(unbiased=False)
    limit = Ternary(one_layer(20_000)).limits(torch.cat([values, torch.zeros(1)])).clip[0]
    assert limit == pytest.approx(float(min(2.5 * sigma, values.abs().max())), rel=1e-5)


def test_unbiased_for_the_clipped_gradient() -> None:
    """Mean over many draws against clip(x): z-scores of a standard normal, element by element."""
    size, draws = 6000, 1000
    x = normal(size)
    codec = Ternary(one_layer(size))
    scale = float(codec.limits(torch.cat([x, torch.zeros(1)])).scales[0])
    clipped = x.clamp(-scale, scale).double().numpy()
    total = np.zeros(size)
    for step in range(draws):
        total += draw(codec, x, Key(0, 0, step))
    deviation = np.sqrt(np.maximum(scale * np.abs(clipped) - clipped**2, 0) / draws)
    certain = deviation < 1e-3 * scale  # as large as the scale: always kept
    assert np.allclose(total[certain] / draws, clipped[certain], atol=1e-2 * scale)
    z = (total / draws - clipped)[~certain] / deviation[~certain]
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    assert abs(z.std() - 1) < 0.05
    assert np.abs(z).max() < 5.5


@pytest.mark.parametrize("laplace", [False, True])
@pytest.mark.parametrize("clip", [None, 2.5])
def test_nmse_is_the_theorys(laplace: bool, clip: float | None) -> None:
    """E||t - x||^2 = sum(s|c| - 2cx + x^2) for c = clip(x), within 1 %."""
    size = 300_000
    x = normal(size, 3)
    if laplace:
        x = torch.from_numpy(np.random.default_rng(3).laplace(size=size).astype(np.float32))
    codec = Ternary(one_layer(size), clip=clip)
    s = float(codec.limits(torch.cat([x, torch.zeros(1)])).scales[0])
    values = x.double().numpy()
    c = values.clip(-s, s)
    theory = (s * np.abs(c) - 2 * c * values + values**2).sum()
    measured = ((draw(codec, x).astype(np.float64) - values) ** 2).sum()
    assert measured == pytest.approx(theory, rel=0.01)


def test_the_same_key_gives_the_same_bytes_for_any_number_of_threads() -> None:
    size = 3_000_017
    codec = Ternary(one_layer(size))
    vector = normal(size + 1)
    threads = torch.get_num_threads()
    messages = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            messages.append(codec.encode(vector, KEY))
            assert torch.equal(codec.decode(messages[-1]), codec.decode(messages[0]))
    finally:
        torch.set_num_threads(threads)
    for message in messages[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(message, messages[0], strict=True))


def test_a_large_layer_is_drawn_as_its_rest_would_be_alone() -> None:
    """Chunks, blocks and the padded rest agree on format and counter: certain values come back in place."""
    size = 1_024_000 * 2 + 5120 + 3
    x = torch.where(normal(size) > 0, 1.0, -1.0)
    x[::7] = 0
    assert np.array_equal(draw(Ternary(one_layer(size), clip=None), x), x.numpy())


@pytest.mark.parametrize(
    "other", [Key(1, 0, 0), Key(0, 1, 0), Key(0, 0, 1), Key(2**31, 0, 0)], ids=["seed", "stream", "step", "bit"]
)
def test_another_key_draws_independently(other: Key) -> None:
    size = 200_000
    x = torch.full((size,), 0.5)
    x[0] = 1.0
    codec = Ternary(one_layer(size), clip=None)
    first, second = draw(codec, x) != 0, draw(codec, x, other) != 0
    agree = (first == second).mean()
    assert abs(agree - 0.5) < 5 * 0.5 / np.sqrt(size)
    shifted = max(abs((first[k:] == second[:-k]).mean() - 0.5) for k in (1, 2, 1024, 2048, 5120))
    assert shifted < 5 * 0.5 / np.sqrt(size - 5120)


def test_layers_of_one_message_draw_independently() -> None:
    size = 100_000
    layout = Layout.of([("a.weight", (size,)), ("b.weight", (size,)), ("c.weight", (1,))])
    vector = torch.full((layout.size,), 0.5)
    vector[0] = vector[size] = 1.0
    decoded = Ternary(layout, clip=None).decode(Ternary(layout, clip=None).encode(vector, KEY)) != 0
    agree = (decoded[:size] == decoded[size : 2 * size]).double().mean()
    assert abs(agree - 0.5) < 5 * 0.5 / np.sqrt(size)


@pytest.mark.parametrize("probability", [0.5, 0.1, 0.01])
def test_elements_draw_independently_of_each_other(probability: float) -> None:
    """Correlation at the distances at which digits share a byte, a hash, or are neighbours."""
    size = 1_024_000
    x = torch.full((size,), probability)
    codec = Ternary(one_layer(size), clip=None)
    shared = np.ones(1, np.float32)
    decoded = codec.decode(codec.encode(torch.cat([x, torch.zeros(1)]), KEY, scales=shared))[:-1].numpy()
    hit = (decoded != 0).astype(np.float64) - probability
    variance = probability * (1 - probability)
    assert abs(hit.mean()) < 5 * np.sqrt(variance / size)
    for distance in (1, 2, 3, 5, 1023, 1024, 1025, 2048, 3072, 4096, 5120):
        correlation = (hit[distance:] * hit[:-distance]).mean() / variance
        assert abs(correlation) < 5 / np.sqrt(size - distance)


def test_a_shared_scale_keeps_the_mean_and_each_workers_own_clipping() -> None:
    size, draws = 2000, 1000
    x = normal(size)
    codec = Ternary(one_layer(size))
    vector = torch.cat([x, torch.zeros(1)])
    limits = codec.limits(vector)
    shared = limits.scales * np.float32(1.7)
    total = np.zeros(size)
    for step in range(draws):
        buffers = codec.encode(vector, Key(0, 0, step), shared, limits)
        assert np.array_equal(buffers[0], shared)
        total += codec.decode(buffers)[:-1].numpy()
    c = x.double().clamp(-float(limits.clip[0]), float(limits.clip[0])).numpy()
    deviation = np.sqrt((float(shared[0]) * np.abs(c) - c**2) / draws) + 1e-12
    z = (total / draws - c) / deviation
    assert abs(z.mean()) < 5 / np.sqrt(size)
    assert abs(z.std() - 1) < 0.1


def test_shared_scales_must_cover_the_workers_own() -> None:
    codec = Ternary(one_layer(50))
    vector = normal(51)
    own = codec.limits(vector).scales
    with pytest.raises(CodecError, match=r"layer w\.weight: the shared scale .* is below"):
        codec.encode(vector, KEY, own / 2)
    with pytest.raises(CodecError, match=r"layer w\.weight: a scale is finite"):
        codec.encode(vector, KEY, own * np.float32(np.inf))
    with pytest.raises(CodecError, match="1 shared scales expected"):
        codec.encode(vector, KEY, np.ones(3, np.float32))


def test_given_limits_spare_a_pass_and_change_nothing(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = Ternary(cifarnet)
    limits = codec.limits(gradient)
    plain, given_ = codec.encode(gradient, KEY), codec.encode(gradient, KEY, limits=limits)
    assert all(np.array_equal(a, b) for a, b in zip(plain, given_, strict=True))


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_a_zero_layer_has_scale_zero_and_decodes_to_zeros(value: float) -> None:
    codec = Ternary(one_layer(6000))
    vector = torch.full((6001,), value)
    scales, _, trits = codec.encode(vector, KEY)
    assert scales.tolist() == [0.0]
    assert not trits.any()
    assert not codec.decode(codec.encode(vector, KEY)).any()


@pytest.mark.parametrize("value", [1e-45, 1e-38, 1e-29, 1e-9, 0.1, 7.0, 1e18, 1e20, 3.4e38])
@pytest.mark.parametrize("size", [1, 5, 6000])
def test_a_layer_of_equal_values_is_left_unclipped_and_comes_back_whole(size: int, value: float) -> None:
    x = torch.full((size,), value)
    assert np.array_equal(draw(Ternary(one_layer(size)), -x), -x.numpy())


@pytest.mark.parametrize("factor", [1e-44, 1e-40, 1e-36, 1e-28, 1e-10, 1e10, 1e25, 1e37])
def test_tiny_and_huge_layers_keep_their_statistics(factor: float) -> None:
    size = 100_000
    x = (normal(size).clamp(-3, 3).double() * factor).float()
    codec = Ternary(one_layer(size))
    scale = float(codec.limits(torch.cat([x, torch.zeros(1)])).scales[0])
    decoded = draw(codec, x).astype(np.float64)
    assert set(np.abs(decoded)) == {0.0, scale}
    clipped = x.double().numpy().clip(-scale, scale)
    deviation = np.sqrt((scale * np.abs(clipped) - clipped**2).sum())
    assert abs((decoded - clipped).sum()) < 5 * deviation
    assert abs((decoded - clipped) @ np.sign(clipped)) < 5 * deviation


def test_the_largest_element_always_survives() -> None:
    random = np.random.default_rng(0)
    for top in 10 ** random.uniform(-37, 38, 200):
        x = torch.full((512,), float(np.float32(top)))
        assert np.array_equal(draw(Ternary(one_layer(512), clip=None), x), x.numpy())


def test_a_model_of_float_layers_only() -> None:
    layout = Layout.of([("w.weight", (3, 2)), ("w.bias", (3,))])
    codec = Ternary(layout)
    assert codec.nbytes == 36
    assert torch.equal(codec.decode(codec.encode(torch.arange(9.0), KEY)), torch.arange(9.0))


def test_options_are_checked() -> None:
    with pytest.raises(CodecError, match="clip"):
        Ternary(one_layer(3), clip=0.0)
