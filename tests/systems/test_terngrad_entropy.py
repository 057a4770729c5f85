"""TernGrad's option `entropy`: the same training in fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from harness import Played, network, play, quadratic_task

from testbed.layout import Layout
from testbed.record.events import Sent
from testbed.wan.plan import Roles
from testbed.wan.profile import Link

TREE = Roles(("a", "b"), 2, "c")
LAYOUT = Layout.of([("first.weight", (300, 200)), ("first.bias", (300,)), ("last.weight", (5, 300))])


def played(roles: Roles, **options: Any) -> Played:
    profile = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
    return play("terngrad", quadratic_task(roles, steps=3, layout=LAYOUT), profile, options)


def bytes_of_workers(run: Played) -> int:
    return sum(event.nbytes for event in run.of(Sent) if "/w" in event.node)


@pytest.mark.parametrize("kind", ["tree", "flat"])
@pytest.mark.parametrize("share_scales", [True, False])
def test_coded_trits_train_alike_in_fewer_bytes(kind: Any, share_scales: bool) -> None:
    roles = replace(TREE, kind=kind)
    plain = played(roles, share_scales=share_scales)
    coded = played(roles, share_scales=share_scales, entropy="on")
    assert torch.equal(plain.models["full"], coded.models["full"])
    saved = bytes_of_workers(plain) - bytes_of_workers(coded)
    trits = 12 * (12_000 + 60)  # of 4 workers' 3 messages
    assert 0.2 * trits < saved < 0.3 * trits
