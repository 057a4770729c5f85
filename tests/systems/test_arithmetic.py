"""A system that is the baseline with k times fewer bytes is as much faster as bytes, rates and delays say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from own_parts import forget_after
from small_runs import network, play, quadratic_task

from testbed.codecs.base import Buffers, Key
from testbed.codecs.costs import Cost
from testbed.codecs.floats import Float32
from testbed.message import Message
from testbed.record.events import StepDone
from testbed.roles.compute import compute_model
from testbed.roles.roles import Roles
from testbed.systems.protocols.codec_system import CodecSystem
from testbed.wan.profile import Link

LAN, WAN = Link(1000, 0.4), Link(8, 30)  # Mbit/s, ms
STEPS = 4


class Shrunk(Float32):
    """Sends every k-th value in the place of k, so that a message is k times as small, and decodes it k-fold."""

    cost = Cost(encode=0.0, decode=0.0, add=1.5)  # what the baseline's costs

    def __init__(self, layout: Any, k: int) -> None:
        super().__init__(layout)
        self.k = k

    def encode(self, vector: torch.Tensor, key: Key | None = None) -> Buffers:
        return [vector.numpy()[:: self.k].copy()]

    def decode(self, buffers: Sequence[Any], out: torch.Tensor | None = None) -> torch.Tensor:
        whole = np.repeat(np.frombuffer(buffers[0], np.float32), self.k)[: self.layout.size]
        return torch.from_numpy(whole.copy())


@pytest.fixture
def shrunk(monkeypatch: pytest.MonkeyPatch) -> type[CodecSystem]:
    forget_after(monkeypatch)

    class Shrunken(CodecSystem):
        name = "shrunk"
        k = 4

        def codec(self, sender: str) -> Shrunk:
            return Shrunk(self.task.layout, self.k)

    return Shrunken


@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("kind", ["tree", "flat"])
def test_k_times_fewer_bytes(shrunk: Any, kind: Any, k: int) -> None:
    roles = Roles(("a", "b"), 2, "c", kind=kind)
    task = quadratic_task(roles, STEPS)
    shrunk.k = k
    profile = network(("a", "b", "c"), lan=LAN, wan=WAN)
    steps_s = {}
    for system in ("baseline", "shrunk"):
        ends = [event.time_s for event in play(system, task, profile).of(StepDone) if event.node == "a/w0"]
        steps_s[system] = (ends[-1] - ends[0]) / (STEPS - 1)
    assert steps_s["baseline"] == pytest.approx(expected_s(task, roles, 1), rel=1e-3)
    assert steps_s["shrunk"] == pytest.approx(expected_s(task, roles, k), rel=1e-3)


def expected_s(task: Any, roles: Roles, k: int) -> float:
    """A step by hand: every hop's bytes over its rate, shared by those who send at once, and its delays."""
    device = compute_model("m60").device
    assert device is not None
    nbytes = Message("gradient", 0, [np.zeros(-(-task.layout.size // k), np.float32)]).nbytes
    lan_s, wan_s = (8e-6 * nbytes / link.goodput_mbit for link in (LAN, WAN))
    lan_delay_s, wan_delay_s = LAN.delay_s, WAN.delay_s
    add = 12.0 * task.layout.size / (device.memory_gbyte_s * 1e9)
    launch_s = device.launch_ms / 1e3
    computing_s = device.seconds(task.gradient_work) + device.seconds(task.update_work)
    workers = roles.workers_per_region
    if roles.kind == "flat":
        # Both workers of a region share its WAN link, up and down; the LAN hops at either end are passed at once.
        hops_s = 2 * (max(workers * wan_s, len(roles.workers) * lan_s) + wan_delay_s + lan_delay_s)
        return computing_s + launch_s + (len(roles.workers) - 1) * add + hops_s
    inside_s = workers * lan_s + lan_delay_s  # all gradients through the LPS's own link; the answers as well
    across_s = max(wan_s, len(roles.regions) * lan_s) + wan_delay_s + lan_delay_s
    servers_s = 2 * launch_s + (workers - 1 + len(roles.regions) - 1) * add
    return computing_s + servers_s + 2 * inside_s + 2 * across_s
