"""The protocol that codec systems share (`testbed.systems.protocols.codec_system`), on the virtual fabric."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import SMALL, network, play, quadratic_task

from testbed.codecs.base import Key
from testbed.codecs.costs import COPY, COSTS
from testbed.codecs.memory import ErrorFeedback
from testbed.codecs.ternary import ThresholdTernary
from testbed.record.events import Sent, StepDone
from testbed.roles.compute import Work, compute_model
from testbed.roles.roles import Roles
from testbed.systems import SYSTEMS, Node
from testbed.systems.baseline import Baseline
from testbed.systems.protocols.codec_system import CodecSystem
from testbed.wan.profile import Link

TREE = Roles(("a", "b"), 2, "c")
FLAT = replace(TREE, kind="flat")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))


@pytest.fixture(autouse=True)
def _forget_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that a test defines are gone after it."""
    for name in ("deciding", "fed"):
        monkeypatch.setitem(SYSTEMS._found, name, Baseline)  # to be deleted again


@pytest.mark.parametrize("system", ["baseline", "terngrad"])
def test_flat_and_tree_train_alike(system: str) -> None:
    tree, flat = (play(system, quadratic_task(roles, steps=6), PROFILE).models["full"] for roles in (TREE, FLAT))
    torch.testing.assert_close(tree, flat)


def test_every_worker_of_a_flat_run_sends_over_the_wan() -> None:
    flat = play("baseline", quadratic_task(FLAT, steps=3), PROFILE)
    peers = {(event.node, event.peer) for event in flat.of(Sent)}
    assert peers == {("c/gs", w) for w in FLAT.workers} | {(w, "c/gs") for w in FLAT.workers}
    assert FLAT.wan_pairs == TREE.wan_pairs


def test_the_decision_of_the_global_server_reaches_every_sender() -> None:
    told: list[tuple[float, ...]] = []
    reports: list[tuple[float, ...]] = []

    class Deciding(Baseline):
        name = "deciding"

        def report(self, loss: float) -> tuple[float, ...]:
            return (loss,)

        def decide(self, node: Node, policy: None, report: tuple[float, ...], step: int) -> tuple[float, ...]:
            reports.append(report)
            return (step + 0.5,)

        def told(self, memory: None, decision: tuple[float, ...]) -> None:
            told.append(decision)

    played = play("deciding", quadratic_task(TREE, steps=2), PROFILE)
    assert sorted(told) == [(0.5,)] * 7 + [(1.5,)] * 7  # 4 workers, 2 LPSs, the GS
    task = played.system.task
    losses = [task.learner(k).gradient(task.initial, 0)[0] for k in range(4)]
    assert reports[0] == pytest.approx((sum(losses) / 4,))


@pytest.mark.slow
def test_a_codec_of_its_own_makes_a_system() -> None:
    """Ternary both ways with feedback at every sender: the mean of what is sent follows the gradient's."""

    class Fed(CodecSystem):
        name = "fed"

        def codec(self, sender: str) -> ErrorFeedback:
            return ErrorFeedback(ThresholdTernary(self.task.layout))

    fed = play("fed", quadratic_task(TREE, steps=300, rate=0.05), PROFILE)
    plain = play("baseline", quadratic_task(TREE, steps=300, rate=0.05), PROFILE)
    distance = torch.linalg.vector_norm(fed.models["full"] - plain.models["full"])
    assert distance < 0.1 * torch.linalg.vector_norm(plain.models["full"])


@given(st.integers(0, 1000), st.integers(1, 5))
def test_error_feedback_loses_nothing(seed: int, messages: int) -> None:
    codec = ErrorFeedback(ThresholdTernary(SMALL))
    memory = codec.start()
    generator = torch.Generator().manual_seed(seed)
    total, sent = torch.zeros(SMALL.size), torch.zeros(SMALL.size)
    for step in range(messages):
        vector = torch.randn(SMALL.size, generator=generator)
        total += vector
        sent += codec.decode(codec.encode(vector, Key(0, 0, step), memory))
    torch.testing.assert_close(sent + memory.residual, total, rtol=1e-5, atol=1e-5)


def test_coding_is_counted_apart_from_computing() -> None:
    task = quadratic_task(TREE, steps=3)
    first, *others = [event for event in play("terngrad", task, PROFILE).of(StepDone) if event.node == "a/w0"]
    device = compute_model("m60").device
    assert device is not None
    ternary, total = COSTS["ternary"], COSTS["sum of levels"]
    copy = COPY * task.layout.size
    measuring, packing = (Work(coding_nbytes=copy * part) for part in (ternary.survey, ternary.encode - ternary.survey))
    update = Work(nbytes=12 * task.layout.size, coding_nbytes=copy * total.decode)
    updating_s = device.seconds(update)
    coding_s = device.seconds(measuring) + device.seconds(packing) + updating_s * update.coding_share
    assert [event.codec_s for event in (first, *others)] == pytest.approx([coding_s] * 3)
    computing_s = device.seconds(task.gradient_work) + updating_s * (1 - update.coding_share)
    assert first.compute_s == pytest.approx(computing_s)
