"""WeightGrad (KDD 2020), part by part, with workers whose loss is a quadratic."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
import torch
from small_runs import SMALL, Played, each_system, network, play, quadratic_task

from testbed.codecs.base import Key
from testbed.layout import Layout
from testbed.message import Message
from testbed.record.events import Exchange, Guard, StepDone, Threshold
from testbed.roles.roles import Roles
from testbed.systems import Node
from testbed.systems.protocols.synchronizer import GradientSynchronizer
from testbed.systems.weightgrad import LPSState, WeightGrad, WeightGradOptions
from testbed.wan.profile import Link, Profile
from testbed.workloads.config import Training
from testbed.workloads.optimizer import Adam
from testbed.workloads.schedule import Constant, Polynomial

ROLES = Roles(("a", "b"), 2, "c")
FAST = network(("a", "b", "c"), lan=Link(1000, 0.2), wan=Link(100, 20))
FLOAT = Layout.of([("only.weight", (6, 8))])  # its only layer is the last one: nothing of it is quantized
NEVER = {"threshold_min": 1e9, "threshold_max": 1e9, "t_s": 1e9, "t_global_s": 1e9}
OFTEN = {"threshold_min": 0.1, "threshold_max": 1.0}


def slow(pair: tuple[str, str], mbit: float, rtt_ms: float = 20) -> Profile:
    return network(("a", "b", "c"), Link(1000, 0.2), Link(100, 20), {pair: Link(mbit, rtt_ms)})


def weightgrad(steps: int = 30, profile: Profile = FAST, rate: float = 0.05, **options: Any) -> Played:
    return play("weightgrad", quadratic_task(ROLES, steps, rate), profile, options)


def guards(played: Played, name: str) -> list[tuple[str, str, float | None]]:
    return [(event.node, event.peer, event.held_s) for event in played.of(Guard) if event.guard == name]


# What all regions agree on


@pytest.fixture
def agreed(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[torch.Tensor]]:
    """By LPS: weights + unexchanged update + contribution under way, after each mean was taken in."""
    seen: dict[int, list[torch.Tensor]] = {}
    original = GradientSynchronizer.reconcile

    def reconcile(self: GradientSynchronizer, message: Message) -> None:
        original(self, message)
        under_way, state = 0 if self.contribution is None else self.contribution, self._state
        seen.setdefault(id(state), []).append(state.weights + state.update + under_way)

    monkeypatch.setattr(GradientSynchronizer, "reconcile", reconcile)
    return seen


@pytest.mark.parametrize("aggregate", each_system(["serial", "average"], "serial"))
@pytest.mark.parametrize("exchange", each_system(["ternary", "deterministic-feedback"], "ternary"))
@pytest.mark.parametrize(
    "profile", [FAST, pytest.param(slow(("b", "c"), 0.01), marks=pytest.mark.slow)], ids=["fast", "one slow link"]
)
def test_regions_differ_only_by_what_they_have_not_exchanged(
    agreed: dict[int, list[torch.Tensor]], aggregate: str, exchange: str, profile: Profile
) -> None:
    """The invariant of `reconcile = "exact"`, also when a contribution misses its round."""
    played = weightgrad(profile=profile, aggregate=aggregate, exchange=exchange, t_global_s=0.2, **OFTEN)
    one, other = agreed.values()
    assert len(one) == len(other) == len(played.of(Exchange)) >= 5
    for here, there in zip(one, other, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(one[0], one[-1], atol=0.1)


def test_a_late_contribution_joins_the_next_round() -> None:
    played = weightgrad(profile=slow(("b", "c"), 0.01), t_global_s=0.2, t_s=1e3, t_local_s=1e3, **OFTEN)
    rounds = [event.included for event in played.of(Exchange)]
    assert rounds[0] == ["a"]
    assert any("b" in included for included in rounds[1:])
    assert ("c/gs", "b/lps", None) in guards(played, "T_global")


def test_all_is_exchanged_or_accounted_for_at_the_end() -> None:
    played = weightgrad(**OFTEN)
    sums = [state.weights + state.update for name, state in played.states.items() if name.endswith("lps")]
    torch.testing.assert_close(sums[0], sums[1], rtol=1e-5, atol=1e-5)


# Algorithms 3 and 4


def by_hand(aggregate: str, momentum: float, steps: int, rate: float) -> torch.Tensor:
    """One region, three workers, no quantization and no exchange."""
    task = quadratic_task(ONE, steps, rate, FLOAT)
    w = task.initial.clone()
    u = [torch.zeros_like(w) for _ in ONE.workers]
    for step in range(steps):
        gradients = [task.learner(k).gradient(w.clone(), step)[1] for k in range(3)]
        u = [momentum * u_k + g_k for u_k, g_k in zip(u, gradients, strict=True)]
        for change in u if aggregate == "serial" else [sum(u) / 3]:
            w = w - rate * change
    return w


ONE = Roles(("a",), 3, "c")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("aggregate", ["average", "serial"])
def test_algorithms_3_and_4(aggregate: str, momentum: float) -> None:
    """Algorithm 3 makes one update with the mean, Algorithm 4 one with each worker's gradient in turn."""
    task = quadratic_task(ONE, 6, 0.05, FLOAT)
    played = play("weightgrad", task, FAST, {"aggregate": aggregate, "momentum": momentum, **NEVER})
    torch.testing.assert_close(played.models["full"], by_hand(aggregate, momentum, 6, 0.05), rtol=1e-5, atol=1e-5)


def test_the_accumulated_update_is_what_the_weights_have_changed_by() -> None:
    played = play("weightgrad", task := quadratic_task(ROLES, 10), FAST, NEVER)
    for name in ROLES.lpss:
        state = played.states[name]
        torch.testing.assert_close(task.initial - state.weights, state.update, rtol=1e-4, atol=1e-5)


def test_arrival_order_gives_the_same_up_to_rounding_when_updates_commute() -> None:
    played = [
        play("weightgrad", quadratic_task(ROLES, 10, layout=FLOAT), FAST, {"arrival_order": order, **NEVER})
        for order in (False, True)
    ]
    torch.testing.assert_close(played[0].models["full"], played[1].models["full"])


def test_its_own_rate_replaces_the_schedules_base_rate() -> None:
    one = weightgrad(steps=5, rate=0.05, **NEVER)
    other = play("weightgrad", quadratic_task(ROLES, 5, rate=0.5), FAST, {"rate": 0.05, **NEVER})
    assert torch.equal(one.models["full"], other.models["full"])


@pytest.mark.slow
def test_it_learns_and_the_regions_end_up_close() -> None:
    task = quadratic_task(ROLES, 60, 0.02)
    played = play("weightgrad", task, FAST, {"momentum": 0.0, **OFTEN})
    best = torch.stack([task.learner(k).target for k in range(4)]).mean(0)  # type: ignore[attr-defined]
    assert torch.dist(played.models["full"], best) < 0.4 * torch.dist(task.initial, best)
    assert set(played.models) == {"full", "quantized", *(f"{m}@{r}" for m in ("full", "quantized") for r in "ab")}


# Reconciliation to the paper's letter


def reconciled(
    options: Mapping[str, Any], mean: float, reference: float | None
) -> tuple[torch.Tensor, GradientSynchronizer]:
    """What becomes of weights of 1 with a contribution of 0.25 when a mean arrives, in float32."""
    task = quadratic_task(ROLES, 1, layout=FLOAT)
    system = WeightGrad(task, WeightGradOptions(**options))
    state = system.initial_state("a/lps")
    assert isinstance(state, LPSState)
    state.weights = torch.ones(FLOAT.size)
    nowhere: Any = None  # nothing is sent
    synchronizer = GradientSynchronizer(nowhere, task, state, system.options, system.updates)
    synchronizer.contribution = torch.full((FLOAT.size,), 0.25)
    synchronizer.reference = None if reference is None else torch.full((FLOAT.size,), reference)
    buffers = system.updates.encode(torch.full((FLOAT.size,), mean), state.residual, Key(0, 0, 0))
    synchronizer.reconcile(Message("mean", 1, buffers, (1.0,)))
    return state.weights, synchronizer


@pytest.mark.parametrize(
    ("options", "mean", "reference", "expected"),
    [
        ({"reconcile": "exact"}, 0.5, 0.1, 1 + 0.25 - 0.5),
        ({"reconcile": "paper", "aggregate": "average"}, 0.5, 0.1, 1 - 0.5),  # Algorithm 3, lines 9-10
        ({"reconcile": "paper", "aggregate": "serial"}, 0.5, 0.1, 1 - (0.5 - 0.1)),  # Algorithm 4, lines 10-12
        ({"reconcile": "paper", "aggregate": "serial"}, 0.1, 0.5, 1.0),  # a mean below g_max is not applied
    ],
)
def test_reconcile(options: dict[str, str], mean: float, reference: float, expected: float) -> None:
    weights, synchronizer = reconciled(options, mean, reference)
    torch.testing.assert_close(weights, torch.full_like(weights, expected))
    assert synchronizer.contribution is None
    assert synchronizer._settled.is_set()


@pytest.mark.parametrize("aggregate", each_system(["serial", "average"], "serial"))
def test_a_whole_run_with_the_papers_reconciliation(aggregate: str) -> None:
    played = weightgrad(reconcile="paper", aggregate=aggregate, **OFTEN)
    assert len(played.of(Exchange)) >= 5


# The threshold


def test_the_threshold_starts_at_the_ratio_of_the_norms() -> None:
    """G_thresh = ||g||_2 / ||g||_inf of the first mean gradient; in float32 that is the first step's change."""
    task = quadratic_task(ONE, 1, 0.05, FLOAT)
    played = play(
        "weightgrad",
        task,
        FAST,
        {**NEVER, "aggregate": "average", "momentum": 0.0, "threshold_min": 1e-9},
    )
    change = task.initial - played.models["full"]
    assert played.states["a/lps"].threshold == pytest.approx(float(change.norm() / change.abs().max()), rel=1e-4)


def test_the_threshold_follows_the_rate_and_the_momentum_each_epoch() -> None:
    """Equation 13, from one epoch to the next."""
    training = Training(steps=12, schedule=Polynomial(rate=0.05, power=1.0))
    task = quadratic_task(ROLES, 12, training=training)
    seen: list[tuple[float, float, float]] = []

    def between(states: Mapping[str, Any]) -> None:
        state = states["a/lps"]
        seen.append((state.threshold, state.epoch_rate, state.epoch_norm))

    options = {**NEVER, "threshold_min": 1e-9, "epoch_steps": 3}
    play("weightgrad", task, FAST, options, stops=[3, 6, 9], between=between)
    assert [rate for _, rate, _ in seen] == pytest.approx([0.05 * (1 - step / 12) for step in (3, 6, 9, 12)])
    for before, after in pairwise(seen[:3]):
        assert after[0] == pytest.approx(before[0] * (after[1] / before[1]) * (after[2] / before[2]))


def test_the_threshold_stays_in_its_bounds() -> None:
    played = weightgrad(threshold_min=2.0, threshold_max=2.5, epoch_steps=2, t_s=1e3)
    crossed = played.of(Threshold)
    assert crossed
    assert all(2.0 <= event.threshold <= 2.5 <= event.significance + 0.5 for event in crossed)
    assert all(event.significance >= event.threshold for event in crossed)


@pytest.mark.slow
def test_a_higher_threshold_exchanges_less() -> None:
    counts = [
        len(weightgrad(threshold_min=bound, threshold_max=bound, t_s=1e3).of(Exchange)) for bound in (1.0, 2.0, 4.0)
    ]
    assert counts[0] > counts[1] > counts[2] >= 1


# T, T_local and T_global


def test_t_sends_an_update_that_is_not_significant() -> None:
    played = weightgrad(steps=40, t_s=0.5, t_global_s=1e3, threshold_min=1e9, threshold_max=1e9)
    times = [event.time_s for event in played.of(Exchange)]
    assert {event.reason for event in played.of(Exchange)} == {"interval"}
    assert len(times) >= 3
    assert all(0.5 <= after - before < 0.8 for before, after in pairwise(times))


def test_an_lps_that_waits_longer_than_t_stops_answering_its_workers() -> None:
    played = weightgrad(profile=slow(("c", "a"), 0.002), t_s=0.3, t_local_s=1e3, t_global_s=1e3, **OFTEN)
    held = [event for event in played.of(Guard) if event.guard == "T" and event.node == "a/lps"]
    assert {event.peer for event in held} == {"c/gs"}
    begins, ends = held[0::2], held[1::2]
    for begin, end in zip(begins, ends, strict=True):
        assert begin.held_s is None
        assert end.held_s == pytest.approx(end.time_s - begin.time_s)
        steps = [event for event in played.of(StepDone) if event.node.startswith("a/")]
        during = [event for event in steps if begin.time_s + 0.01 < event.time_s < end.time_s]
        assert during == []
        assert end.time_s > begin.time_s + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("aggregate", ["serial", "average"])
def test_a_blocking_pull_answers_the_workers_after_the_mean(aggregate: str) -> None:
    """The mean takes a round trip of 20 ms; in the background the workers' answer does not wait for it."""

    def answered_after(pull: str) -> list[float]:
        played = weightgrad(steps=30, pull=pull, aggregate=aggregate, t_s=1e3, **OFTEN)
        done = [event.time_s for event in played.of(StepDone) if event.node == "a/w0"]
        sent = [event.time_s for event in played.of(Threshold) if event.node == "a/lps"]
        assert len(done) == 30
        assert sent
        return [min(time for time in done if time > at) - at for at in sent]

    assert max(answered_after("background")) < 0.01
    assert min(answered_after("blocking")) >= 0.02


def test_t_local_holds_the_global_servers_sends_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """b takes seconds to receive a mean: until it has it, a receives nothing."""
    sent: list[float] = []
    original = Node.send

    async def send(node: Node, peer: str, message: Message) -> None:
        if (node.name, peer) == ("c/gs", "a/lps") and message.kind != "boundary":
            sent.append(node.now())
        await original(node, peer, message)

    monkeypatch.setattr(Node, "send", send)
    played = weightgrad(profile=slow(("c", "b"), 0.002), t_local_s=0.2, t_s=1e3, t_global_s=0.5, **OFTEN)
    events = [event for event in played.of(Guard) if event.guard == "T_local" and event.peer == "b/lps"]
    assert len(events) >= 2
    for begin, end in zip(events[0::2], events[1::2], strict=True):
        assert begin.held_s is None
        assert end.held_s == pytest.approx(end.time_s - begin.time_s)
        assert not [when for when in sent if begin.time_s < when < end.time_s]
    assert any(when >= events[1].time_s for when in sent), "what was held has been sent"


def test_t_global_opens_rounds_when_nothing_is_significant() -> None:
    played = weightgrad(steps=40, t_global_s=0.4, t_s=1e3, threshold_min=1e9, threshold_max=1e9)
    rounds = played.of(Exchange)
    assert {event.reason for event in rounds} == {"t-global"}
    assert all(event.included == ["a", "b"] for event in rounds)
    gaps = [after.time_s - before.time_s for before, after in pairwise(rounds)]
    assert len(gaps) >= 3
    assert all(gap < 0.4 + 0.1 for gap in gaps)


@pytest.mark.parametrize("t_global_s", [0.001, 0.01, 0.019, 0.04])
def test_a_t_global_shorter_than_the_round_trip_still_ends(t_global_s: float) -> None:
    task = quadratic_task(ROLES, 6)
    played = play("weightgrad", task, FAST, {"t_global_s": t_global_s, "t_local_s": 0.005}, stops=[2, 4])
    assert all(played.states[name].step == 6 for name in (*ROLES.workers, *ROLES.lpss))


# Quantizers


def test_feedback_keeps_what_is_not_sent() -> None:
    """Sent + residual == accumulated, message after message."""
    system = WeightGrad(quadratic_task(ROLES, 1), WeightGradOptions(exchange="deterministic-feedback"))
    residual = torch.zeros(SMALL.size)
    accumulated, sent = torch.zeros(SMALL.size), torch.zeros(SMALL.size)
    generator = torch.Generator().manual_seed(0)
    for step in range(20):
        update = torch.randn(SMALL.size, generator=generator)
        buffers = system.updates.encode(update, residual, Key(0, 0, step))
        accumulated += update
        sent += system.updates.decode(Message("significant", step, buffers))
        torch.testing.assert_close(sent + residual, accumulated, rtol=1e-5, atol=1e-5)
    assert residual.norm() < accumulated.norm()


def test_workers_get_the_quantized_weights_or_on_request_the_full_ones() -> None:
    for quantize in (True, False):
        played = weightgrad(steps=3, quantize_weights=quantize, **NEVER)
        sent, full = played.states["a/w0"].weights, played.states["a/lps"].weights
        assert torch.equal(sent, full) is not quantize
        for layer in SMALL:
            values = sent[layer.slice].abs().unique()
            ternary = quantize and not layer.bias and not layer.last
            assert (len(values) == 2) is ternary, layer.name  # 0 and alpha


def test_the_last_layer_is_float_in_gradients_biases_only_in_weights() -> None:
    system = WeightGrad(quadratic_task(ROLES, 1), WeightGradOptions())
    assert [layer.name for layer in system.gradients.floats] == ["last.weight", "last.bias"]
    assert [layer.name for layer in system.weights.floats] == ["first.bias", "last.weight", "last.bias"]


def test_adam_gives_loss_aware_weights() -> None:
    """Appendix A, equation 4: the weights to the workers are weighted by the root of the second moments."""
    training = Training(steps=8, schedule=Constant(rate=0.05), optimizer=Adam())
    task = quadratic_task(ROLES, 8, training=training)
    played = play("weightgrad", task, FAST, NEVER)
    state = played.states["a/lps"]
    assert state.optimizer.updates == 2 * 8
    system = played.system
    assert isinstance(system, WeightGrad)
    aware = system.weights.quantize(state.weights, importance=state.optimizer.second.sqrt())
    assert torch.equal(played.states["a/w0"].weights, aware)
    assert not torch.equal(aware, system.weights.quantize(state.weights))
    assert torch.equal(played.models["quantized@a"], aware)  # what is reported is what workers have
    charge, plain = (system.task.encoding(codec)(()).coding_nbytes for codec in (system.charged, system.weights))
    assert charge > 5 * plain


def test_error_feedback_across_is_charged() -> None:
    task = quadratic_task(ROLES, 1)
    plain, fed = (
        WeightGrad(task, WeightGradOptions(exchange=exchange)).updates
        for exchange in ("ternary", "deterministic-feedback")
    )
    cost = [task.encoding(updates.charged)(()).coding_nbytes for updates in (plain, fed)]
    assert cost[1] > 2 * cost[0]


def test_the_moving_average_is_a_model_of_its_own() -> None:
    training = Training(steps=6, schedule=Constant(rate=0.05), ema_decay=0.5)
    played = play("weightgrad", quadratic_task(ROLES, 6, training=training), FAST, OFTEN)
    assert not torch.equal(played.models["ema"], played.models["full"])
