"""A network as a function of one flat weight vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from testbed.errors import InputError
from testbed.workloads.calibration import averaging, normalisations
from testbed.workloads.models.base import layout, trained


def logits(output: Tensor | object) -> Tensor:
    """A network's scores; many libraries' networks return them as the field `logits` of an object.

    Raises
    ------
    InputError
        It returned something else.
    """
    scores = getattr(output, "logits", output)
    if not isinstance(scores, Tensor):
        kind = type(output).__name__
        raise InputError(f"the model returned a {kind}; it must return a tensor, or an object with a tensor `logits`")
    return scores


class FlatModel:
    """A network whose parameters are views of one flat float32 vector.

    One instance serves all learners and evaluators of a process, so that 500 virtual workers do not hold 500
    networks; it is not for two threads at once.

    Parameters
    ----------
    build
        Makes the network. What is not trained (frozen parameters, buffers) is the same in every process: it is drawn
        with one fixed seed.
    device
        Where it computes.

    Attributes
    ----------
    layout, parameters
        How the parameters lie in the vector, and the views, in that order.
    module
        The network, in evaluation mode but within `training`.
    normalisations
        Its batch normalisations, to be calibrated before a test.
    """

    def __init__(self, build: Callable[[], nn.Module], device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.module = deepcopy(build()).to(self.device).eval()  # `build` may return the same one again
        self.layout = layout(self.module)
        self.normalisations = normalisations(self.module)
        for part in self.normalisations:
            part.track_running_stats = False  # in training; what a test takes, `calibrate` fills in
        self._flat = torch.empty(self.layout.size, device=self.device)
        self.parameters: list[Tensor] = [parameter for _, parameter in trained(self.module)]
        if self._in_place:
            for parameter, layer in zip(self.parameters, self.layout, strict=True):
                parameter.data = self._flat[layer.slice].view(layer.shape)
        else:
            self.parameters = self.views(self._flat)

    @property
    def _in_place(self) -> bool:
        """Whether the network's own parameters are the views; on a device it is given views of any vector."""
        return self.device.type == "cpu"

    def __call__(self, inputs: Tensor, parameters: Sequence[Tensor] | None = None) -> Tensor:
        """The network's scores for a batch, with other parameters than its own on a device."""
        if self._in_place:
            return logits(self.module(inputs))
        given = self.parameters if parameters is None else parameters
        named = {layer.name: parameter for layer, parameter in zip(self.layout, given, strict=True)}
        return logits(functional_call(self.module, named, (inputs,)))

    def views(self, weights: Tensor) -> list[Tensor]:
        """A flat vector as parameters of which derivatives can be taken."""
        return [weights[layer.slice].view(layer.shape).detach().requires_grad_() for layer in self.layout]

    def load(self, weights: Tensor) -> None:
        """Take over the values of a flat vector of `layout.size` elements (from any device)."""
        self._flat.copy_(weights)

    def calibrate(self, batches: Iterable[Tensor]) -> None:
        """Take the statistics that batch normalisation uses in a test from these inputs (`calibration`)."""
        with torch.no_grad(), averaging(self.normalisations):
            for inputs in batches:
                self(inputs)

    @contextmanager
    def training(self, random: np.random.Generator) -> Iterator[None]:
        """Within it the network drops values as `random` says, where it has dropout; outside it drops none.

        What is dropped depends on the kind of device too: torch draws otherwise on a GPU than on a CPU.
        """
        on_gpu = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=on_gpu):
            seed = int(random.integers(2**63))
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            self.module.train()
            try:
                yield
            finally:
                self.module.eval()
