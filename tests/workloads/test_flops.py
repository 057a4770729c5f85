"""Operations of a forward pass: by hand, as torch's own counter has them, and without importing a compiler."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from testbed.workloads.flops import forward_flops

IMAGE = torch.zeros(1, 3, 16, 16)
TOKENS = torch.zeros(1, 10, 32)


class Uncounted(nn.Linear):
    counts_flops = False


class Fails(nn.Linear):
    counts_flops = False

    def forward(self, inputs: Tensor) -> Tensor:
        raise ValueError("no")


class Einsum(nn.Linear):
    def forward(self, inputs: Tensor) -> Tensor:
        return torch.einsum("nti,oi->nto", inputs, self.weight) @ self.weight


NETS = {
    "convolutions": (
        nn.Sequential(nn.Conv2d(3, 8, 3, groups=1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=4)),
        IMAGE,
    ),
    "transposed": (nn.ConvTranspose2d(3, 5, 3, stride=2), IMAGE),
    "linear": (nn.Linear(32, 7), TOKENS),
    "products": (Einsum(32, 6), TOKENS),
    "attention": (nn.MultiheadAttention(32, 4, batch_first=True), TOKENS),
    "transformer": (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), TOKENS),
    "recurrent": (nn.GRU(32, 8, batch_first=True), TOKENS),
}


class Queries(nn.Module):
    """Attention asked by its own input."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, inputs: Tensor) -> Tensor:
        return self.attention(inputs, inputs, inputs)[0]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cpu", "meta"])
@pytest.mark.parametrize("name", NETS)
def test_it_is_what_torchs_own_counter_says_of_a_pass_in_training(name: str, where: str) -> None:
    net, inputs = NETS[name]
    net = deepcopy(Queries(net) if isinstance(net, nn.MultiheadAttention) else net).to(
        where
    )  # in place, as modules are
    with FlopCounterMode(display=False) as counter:
        net.train()(inputs.to(where))
    assert forward_flops(net, inputs.to(where)) == counter.get_total_flops() > 0
    assert not net.training


def test_what_says_that_it_does_not_count_is_left_out() -> None:
    assert forward_flops(nn.Sequential(nn.Linear(32, 8), Uncounted(8, 8), nn.Linear(8, 2)), TOKENS) == 2 * 10 * (
        256 + 16
    )


def test_it_leaves_a_network_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(32, 8), Fails(8, 8))
    fast = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(ValueError, match="no"):
        forward_flops(net, TOKENS)
    assert not net[1]._forward_hooks and not net[1]._forward_pre_hooks
    assert torch.backends.mha.get_fastpath_enabled() == fast


@pytest.mark.slow
def test_a_compiler_is_not_imported_for_it() -> None:
    lines = [
        "import sys, torch",
        "from testbed.workloads.flops import forward_flops",
        "net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 10))",
        "assert forward_flops(net, torch.zeros(1, 3, 16, 16)) > 0",
        "print(*sorted(name for name in ('torch._dynamo', 'sympy') if name in sys.modules))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
