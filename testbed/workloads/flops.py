"""How many operations a network's forward pass takes, counted while it runs once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from testbed.errors import InputError

T = TypeVar("T")


def forward_flops(module: nn.Module, inputs: Tensor) -> int:
    """Count the floating-point operations of a forward pass of `module`, in evaluation mode, on `inputs`.

    A multiply-add is two operations. Convolutions, linear layers and the two products of attention count, as in the
    figures that papers give (attention whole, though a causal one needs half: Chowdhery et al. 2022, "PaLM", appendix
    B); normalisations do not, also where they are made of products (`models/lrn.py`, whose modules say
    `counts_flops = False`). The backward pass costs about twice as much again.
    """
    counter = _Counter()
    with counter.paused_in(module), counter, _plain_attention(), torch.no_grad():
        module.eval()(inputs)
    return counter.total


def by_shapes(work: Callable[[torch.device], T], otherwise: torch.device) -> T:
    """What `work` finds of a network on a device without memory, or where the network looks at values, on another."""
    try:
        with (meta := torch.device("meta")):
            return work(meta)
    except (RuntimeError, InputError):  # of an operation that has no form there: what it is of itself, the other says
        return work(otherwise)


class _Counter(TorchDispatchMode):
    """Sums up torch's own figures; its `FlopCounterMode` has the same ones after importing a compiler for 1.6 s."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self._paused = 0, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here: torch need not import what would see to it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        out = func(*args, **given)
        count = flop_registry.get(func._overloadpacket)
        if count is not None and not self._paused:
            self.total += count(*args, **given, out_val=out)
        return out

    @contextmanager
    def paused_in(self, module: nn.Module) -> Iterator[None]:
        """Leave out the parts of `module` that say so."""
        left_out = [part for part in module.modules() if not getattr(part, "counts_flops", True)]
        hooks = [part.register_forward_pre_hook(lambda *_: self._pause(1)) for part in left_out]
        hooks += [part.register_forward_hook(lambda *_: self._pause(-1)) for part in left_out]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _pause(self, by: int) -> None:
        self._paused += by


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Without fused kernels, of which nobody knows how many products are inside."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
