"""The initial weights that are drawn here and not by torch."""

from __future__ import annotations

import pytest
import torch

from testbed.workloads.models.stack import truncated_normal_

FIRST = [-0.003832214744761586, 0.017994076013565063, -0.03910084068775177, 0.003576386719942093]  # as torch 2.13 draws


def test_truncated_normals_are_the_same_whatever_torch_is_installed() -> None:
    weight = torch.empty(64, 75)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        truncated_normal_(weight, 0.05)
    assert float(weight.abs().max()) <= 0.1
    assert float(weight.std()) == pytest.approx(0.05 * 0.8796, rel=0.02)  # of a normal cut off at two deviations
    assert weight.view(-1)[:4].tolist() == pytest.approx(FIRST, abs=1e-9)
