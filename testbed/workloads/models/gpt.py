"""A language model: a decoder-only transformer of any size.

The architecture and the initial weights are GPT-2's (Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners", section 2.3): each block normalises its input first (pre-norm), positions are learnt, weights are normals of
deviation 0.02, those that write into the residual stream divided by the root of the number of such layers. Only the
output layer is not tied to the embedding: the systems that keep a model's last layer in float32 (WeightGrad 4.3,
TernGrad 3.3) then do so to the scores alone, and with an alphabet of characters tying would save next to nothing.
"""

from __future__ import annotations

from math import sqrt
from typing import Annotated

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from testbed.types import Count
from testbed.workloads.models.base import Model, model

DEVIATION = 0.02


class GPTOptions(Model, frozen=True, forbid_unknown_fields=True):
    """The size of the model; about 12 * layers * width^2 parameters.

    Attributes
    ----------
    layers, heads
        Blocks, and the heads of attention in each.
    width
        Of a token's vector; a multiple of `heads`.
    context
        Tokens that the model looks at: the length of a training example.
    dropout
        Share of values dropped after the embedding, in attention and after each part of a block.
    """

    layers: Count = 4
    heads: Count = 4
    width: Count = 160
    context: Count = 128
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            fitting = max(1, round(self.width / self.heads)) * self.heads
            raise ValueError(f"width: {self.width} cannot be shared by {self.heads} heads; for example {fitting}")


class Attention(nn.Module):
    """Causal self-attention of several heads (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropped = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the vectors [n, tokens, width] of each token and those before it."""
        count, tokens, width = x.shape
        parts = self.query_key_value(x).view(count, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each [n, heads, tokens, width / heads]
        dropped = self.dropped if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropped, is_causal=True)
        return self.dropout(self.project(mixed.transpose(1, 2).reshape(count, tokens, width)))


class Block(nn.Module):
    """Attention and a layer of four times the width, each added to what it was given."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, tokens, width]."""
        x = x + self.attention(self.norm1(x))
        hidden = functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.project(hidden))


class GPT(nn.Module):
    """Scores of every token's successor, from the token and those before it."""

    def __init__(self, outputs: int, layers: int, heads: int, width: int, context: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(outputs, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs, bias=False)
        self._start(1 / sqrt(2 * layers))

    def _start(self, residual: float) -> None:
        """Fill in the initial weights; those that write into the residual stream are `residual` times as large."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                scale = residual if name.endswith("project") else 1.0
                nn.init.normal_(module.weight, std=DEVIATION * scale)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [n, tokens, outputs] of [n, tokens], at most `context` of them."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@model("gpt", input=lambda options: (options.context,), options=GPTOptions)
def gpt(outputs: int, layers: int, heads: int, width: int, context: int, dropout: float) -> nn.Module:
    """GPT-2 in miniature; with the default options and 65 characters 1,278,720 parameters."""
    return GPT(outputs, layers, heads, width, context, dropout)
