"""ISGQ's compression gain and the sparsity of its factors on the paper's models, beside its table 3.

    python benchmarks/isgq_gain.py [--steps 200] [--models "fc lenet cifarnet"]

Trains each model for some steps in float32, then codes one worker's factors at batch 256, 128 and 64. The gain is the
float32 parameters' bits over the bits of a worker's message, header and framing included (isgq, section 5). Prints two
markdown tables. Data sets are looked for where experiments look for them; a stand-in is named as one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch

from testbed.codecs.base import Key
from testbed.codecs.factors import Dithered, FactorCodec, LloydMax
from testbed.codecs.ternary import Ternary
from testbed.layout import Factors, Layout
from testbed.message import Message
from testbed.workloads import Model, Workload
from testbed.workloads.config import Training
from testbed.workloads.data.base import load
from testbed.workloads.learner import Learner

BATCHES = (256, 128, 64)
PAPER = {"fc": (33, 67, 133), "lenet": (56, 105, 180), "cifarnet": (38, 65, 98)}  # 1-bit ISGQ
DATASETS = {"fc": "mnist", "lenet": "mnist", "cifarnet": "cifar10"}
TRAINING_BATCH, RATE, SAMPLES = 64, 0.05, 3  # SAMPLES: batches that a figure is the mean of


def learner(workload: Workload, batch: int) -> Learner:
    return workload.learner(np.arange(workload.dataset.train_examples), 0, batch, 0, Training())


def trained(workload: Workload, steps: int) -> tuple[torch.Tensor, float]:
    """Weights after `steps` steps of SGD, and the loss of the last."""
    weights, loss = workload.initial_weights(0), float("nan")
    worker = learner(workload, TRAINING_BATCH)
    for step in range(steps):
        loss, gradient = worker.gradient(weights, step)
        weights.add_(gradient, alpha=-RATE)
    return weights, loss


def message_bits(codec: FactorCodec, rest: Layout, factors: list[Factors], others: torch.Tensor, step: int) -> int:
    """Of a worker's whole message: factors, and ternary convolutions."""
    key = Key(0, 0, step)
    buffers = codec.encode(factors, key)
    if rest.size:
        buffers += Ternary(rest, float_last=False).encode(others, key)
    return 8 * Message("factors", step, buffers).nbytes


def gains(workload: Workload, weights: torch.Tensor, batch: int) -> list[float]:
    """Of one bit with zero as a level, with zero beside the levels, and dithered with K = 1."""
    layout, worker = workload.layout, learner(workload, batch)
    codecs = (LloydMax(layout, batch), LloydMax(layout, batch, zero_beside=True), Dithered(layout, batch))
    bits = np.zeros(len(codecs))
    for step in range(SAMPLES):
        _, others, factors = worker.factors(weights, step)
        bits += [message_bits(codec, layout.rest, factors, others, step) for codec in codecs]
    return list(32 * layout.size * SAMPLES / bits)


def zeros(workload: Workload, weights: torch.Tensor) -> Iterator[str]:
    """Per linear layer, the share of zeros in its X and its Delta."""
    _, _, factors = learner(workload, max(BATCHES)).factors(weights, 0)
    for layer, pair in zip(workload.layout.linear, factors, strict=True):
        x, delta = (float((part == 0).float().mean()) for part in pair)
        yield f"{layer.inputs}-{layer.outputs}: {x:.0%}, {delta:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="of training before factors are measured")
    parser.add_argument("--models", default=" ".join(PAPER))
    options = parser.parse_args()
    rows, sparsity = [], []
    for name in options.models.split():
        dataset = load(DATASETS[name], allow_download=False, on_notice=print)
        workload = Workload(Model(name=name), dataset)
        weights, loss = trained(workload, options.steps)
        for batch, paper in zip(BATCHES, PAPER[name], strict=True):
            one_bit, beside, dithered = gains(workload, weights, batch)
            difference = one_bit / paper - 1
            rows.append(
                f"| {name} | {batch} | {paper} | {one_bit:.1f} | {difference:+.0%} | {beside:.1f} | {dithered:.1f} |"
            )
        sparsity.append(f"| {name} | {dataset.note} | {loss:.2f} | {'; '.join(zeros(workload, weights))} |")
    print("| model | batch | paper | 1 bit | difference | zero beside | dithered, K = 1 |\n" + "|---" * 7 + "|")
    print("\n".join(rows))
    print("\n| model | data | loss | inputs-outputs: zeros in X, in Delta |\n|---|---|---|---|")
    print("\n".join(sparsity))


if __name__ == "__main__":
    main()
