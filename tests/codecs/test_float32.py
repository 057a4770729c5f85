"""Float32 carries every bit."""

from __future__ import annotations

import torch

from testbed.codecs import Float32
from testbed.layout import Layout


def test_the_message_is_the_vector(cifarnet: Layout, gradient: torch.Tensor) -> None:
    codec = Float32(cifarnet)
    [buffer] = codec.encode(gradient)
    assert codec.nbytes == buffer.nbytes == 4_273_192  # 4 * 1,068,298
    assert buffer.tobytes() == gradient.numpy().tobytes()
    assert torch.equal(codec.decode([buffer]), gradient)


def test_extreme_values_survive() -> None:
    layout = Layout.of([("w.weight", (6,))])
    vector = torch.tensor([3.4e38, -3.4e38, 1e-45, -1e-45, 0.0, -0.0])
    decoded = Float32(layout).decode(Float32(layout).encode(vector))
    assert decoded.numpy().tobytes() == vector.numpy().tobytes()


def test_a_model_without_parameters_has_an_empty_message() -> None:
    codec = Float32(Layout.of([]))
    assert codec.nbytes == 0
    assert codec.decode(codec.encode(torch.empty(0))).shape == (0,)
