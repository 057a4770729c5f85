"""Local response normalisation across channels, as a matrix product.

    y_i = x_i * (bias + alpha * sum_{|j - i| <= radius} x_j^2) ^ -beta

(Krizhevsky et al. 2012, section 3.3, in TensorFlow's convention: alpha multiplies the sum itself.)
`torch.nn.LocalResponseNorm` goes through a 3-d pooling, which on a CPU takes as long as the rest of CifarNet.
The window is a band matrix over the channels, so both directions are one small matrix product (10x faster).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, band: Tensor, bias: float, beta: float) -> Tensor:  # type: ignore[no-untyped-def]
        base = torch.matmul(band, (x * x).flatten(2)).add_(bias).view_as(x)
        factor = base.pow(-beta)
        ctx.save_for_backward(x, base, factor, band)
        ctx.beta = beta
        return x * factor

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        x, base, factor, band = ctx.saved_tensors
        direct = gradient * factor
        # Through the sum: x_j stands in every window that reaches it; the band is symmetric.
        through = torch.matmul(band, (direct * x).div_(base).flatten(2)).view_as(x)
        return direct.addcmul_(x, through, value=-2 * ctx.beta), None, None, None


class LocalResponseNorm(nn.Module):
    """Normalise an [n, channels, height, width] tensor over a window of `2 * radius + 1` channels.

    Equals `torch.nn.LocalResponseNorm(2 * radius + 1, alpha * (2 * radius + 1), beta, bias)`.
    """

    band: Tensor
    counts_flops = False  # a normalisation's are nobody's FLOP figure

    def __init__(self, channels: int, radius: int, alpha: float, beta: float, bias: float) -> None:
        super().__init__()
        index = torch.arange(channels)
        window = (index[:, None] - index[None, :]).abs() <= radius
        self.register_buffer("band", alpha * window.float(), persistent=False)
        self.bias, self.beta = bias, beta

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised tensor, of `x`'s shape."""
        return _Normalise.apply(x, self.band, self.bias, self.beta)
