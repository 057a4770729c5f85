"""The exact bytes of CifarNet's messages (1,068,298 parameters, the last layer's 1,930 in float32).

A message is a header frame and its buffers, each frame with ZMTP's 2 bytes (up to 255) or 9. A header is
MessagePack: 1 byte, the kind (1 + its letters), the step (1 byte up to 127), the numbers (1, and 9 for each).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import network, play, quadratic_task

from testbed.message import Message
from testbed.roles.roles import Roles, kind_of
from testbed.systems import Node
from testbed.wan.profile import Link
from testbed.workloads import Model
from testbed.workloads.models import base as models

ROLES = Roles(("a", "b"), 4, "c")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 0.2), wan=Link(100, 20))
CIFARNET = models.layout(Model(name="cifarnet").build(10))

SCALES = 8 * 4 + 2  # eight ternary tensors
FLOATS = 1_930 * 4 + 9
TRITS = 213_276 + 9  # five a byte, each tensor rounded up
HEADER = 2 + 1 + 1 + 1 + 1  # frame, array, kind's length, step, numbers; and the kind's letters
MARKER = HEADER + len("boundary")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Play two steps of a system; returns {(from, to, kind): bytes}, each of which must always be the same."""

    def measure(system: str, **options: Any) -> dict[tuple[str, str, str], int]:
        found: dict[tuple[str, str, str], set[int]] = {}
        original = Node.send

        async def send(node: Node, peer: str, message: Message) -> None:
            found.setdefault((kind_of(node.name), kind_of(peer), message.kind), set()).add(message.nbytes)
            await original(node, peer, message)

        monkeypatch.setattr(Node, "send", send)
        play(system, quadratic_task(ROLES, steps=2, layout=CIFARNET), PROFILE, options)
        return {key: nbytes for key, [nbytes] in found.items() if key[2] != "boundary"}

    return measure


def test_cifarnet_has_the_size_that_is_stated() -> None:
    assert CIFARNET.size == 1_068_298
    assert [layer.size for layer in CIFARNET if layer.last] == [1_920, 10]


def test_baseline(sizes: Any) -> None:
    vector = 1_068_298 * 4 + 9
    assert sizes("baseline") == {
        ("worker", "lps", "gradient"): vector + HEADER + 8,
        ("lps", "gs", "sum"): vector + HEADER + 3,
        ("gs", "lps", "mean"): vector + HEADER + 4,
        ("lps", "worker", "mean"): vector + HEADER + 4,
    }
    assert vector + HEADER + 8 == 4_273_215


def test_terngrad(sizes: Any) -> None:
    """1.6 bits an element up, ceil(log2(2n + 1)) for n = 4 workers over the WAN, for N = 8 back."""
    ternary = SCALES + FLOATS + TRITS + HEADER + 7
    up = SCALES + FLOATS + 1_066_368 // 8 * 4 + 9 + HEADER + 6
    down = SCALES + FLOATS + 1_066_368 // 8 * 5 + 9 + HEADER + 6
    assert (ternary, up, down) == (221_061, 540_968, 674_264)
    assert sizes("terngrad") == {
        ("worker", "lps", "scales"): SCALES + HEADER + 6,
        ("lps", "gs", "scales"): SCALES + HEADER + 6,
        ("gs", "lps", "scales"): SCALES + HEADER + 6,
        ("lps", "worker", "scales"): SCALES + HEADER + 6,
        ("worker", "lps", "ternary"): ternary,
        ("lps", "gs", "levels"): up,
        ("gs", "lps", "levels"): down,
        ("lps", "worker", "levels"): down,
    }


def test_terngrad_without_its_parts_sends_floats(sizes: Any) -> None:
    """Without shared scales servers add floats; without localization parameters come back."""
    vector = 1_068_298 * 4 + 9
    one_scale = sizes("terngrad", share_scales=False, localize=False, layerwise=False)
    assert one_scale == {
        ("worker", "lps", "ternary"): 4 + 2 + FLOATS + TRITS + HEADER + 7,
        ("lps", "gs", "sum"): vector + HEADER + 3,
        ("gs", "lps", "parameters"): vector + HEADER + 10,
        ("lps", "worker", "parameters"): vector + HEADER + 10,
    }


def test_weightgrad(sizes: Any) -> None:
    """Ternary both ways; in the weights biases are float, too, so four tensors are ternary."""
    update = SCALES + FLOATS + TRITS + HEADER
    weights = 4 * 4 + 2 + (1_930 + 704) * 4 + 9 + 213_134 + 9 + HEADER + 7
    assert (update + 8, update + 11, weights) == (221_062, 221_065, 223_719)
    found = sizes("weightgrad", threshold_max=1.0)
    assert found == {
        ("worker", "lps", "gradient"): update + 8,
        ("lps", "worker", "weights"): weights,
        ("lps", "gs", "significant"): update + 11,
        ("gs", "lps", "request"): HEADER + 7,
        ("gs", "lps", "mean"): update + 4 + 9,
        ("lps", "gs", "ack"): HEADER + 3,
    }


@pytest.mark.slow
def test_weightgrad_with_deterministic_feedback_sends_updates_like_weights(sizes: Any) -> None:
    found = sizes("weightgrad", threshold_max=1.0, exchange="deterministic-feedback")
    assert found["lps", "gs", "significant"] == found["lps", "worker", "weights"] + 4


def test_a_long_run_pays_for_its_step_numbers() -> None:
    assert [Message("gradient", step).nbytes for step in (127, 128, 50_000)] == [14, 15, 16]


def test_the_mean_is_of_what_was_sent() -> None:
    """Bytes are one thing; with everything in float, the baseline's mean is the gradients' mean."""
    task = quadratic_task(ROLES, steps=1, rate=1.0)
    played = play("baseline", task, PROFILE)
    targets = torch.stack([task.learner(k).target for k in range(8)])  # type: ignore[attr-defined]
    torch.testing.assert_close(played.models["full"], targets.mean(0), rtol=0, atol=1e-5)
