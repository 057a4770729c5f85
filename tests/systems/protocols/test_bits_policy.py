"""MQGrad's agent against the paper's equations (Cui et al., section 3.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.systems.protocols.bits_policy import (
    MAX_BITS,
    MIN_BITS,
    BitsPolicy,
    Network,
    PolicyOptions,
    PolicyState,
    reward,
    slope,
)

LOSSES = [2.3, 2.2, 2.25, 2.0, 1.9, 2.1, 1.7, 1.8, 1.6, 1.5, 1.55]


def fresh(**options: Any) -> tuple[BitsPolicy, PolicyState]:
    policy = BitsPolicy(PolicyOptions(**options), seed=1, stream=6)
    return policy, policy.start()


def live(policy: BitsPolicy, state: PolicyState, losses: list[float], step_s: float = 0.5) -> list[tuple[int, int]]:
    """Let the agent see a loss a step; (n_t, bits in use) after each decision."""
    decided = []
    for step, loss in enumerate(losses):
        policy.observe(state, loss, step)
        if policy.decides_at(step):
            policy.decide(state, step, step * step_s)
            decided.append((state.trusted, state.bits))
    return decided


def random_network(seed: int = 0) -> Network:
    network = Network.initial(5, seed)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (network.output, network.output_bias):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return network


def test_losses_are_smoothed_by_equation_1() -> None:
    policy, state = fresh(alpha=0.1)
    live(policy, state, LOSSES)
    expected = [LOSSES[0]] * 5
    for loss in LOSSES[1:]:
        expected.append(0.1 * loss + 0.9 * expected[-1])
    assert state.smoothed.tolist() == pytest.approx(expected[-5:])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_the_slope_is_that_of_the_regression(values: list[float]) -> None:
    beta, _ = np.polyfit(np.arange(1, len(values) + 1), values, 1)
    assert slope(torch.tensor(values, dtype=torch.float64)) == pytest.approx(beta, abs=1e-9)


def test_the_reward_is_equation_2() -> None:
    falling = torch.tensor([2.0, 1.9, 1.8, 1.7, 1.6], dtype=torch.float64)
    assert reward(falling, 2.5, 300) == pytest.approx(0.1 * 300 / 2500)
    assert reward(falling.flip(0), 2.5, 300) == pytest.approx(-0.1 * 300 / 2500)
    assert reward(falling, 0.0, 300) == pytest.approx(0.1 * 300)  # a time cost of at least 1 ms


@pytest.mark.parametrize("bits", range(MIN_BITS, MAX_BITS + 1))
def test_learning_follows_the_gradient_of_one_output(bits: int) -> None:
    network, losses = random_network(), torch.linspace(1.1, 0.8, 5, dtype=torch.float64)
    names = ("hidden", "hidden_bias", "output", "output_bias")
    before = {name: getattr(network, name).clone().requires_grad_() for name in names}
    Network(**before).values(losses)[bits - MIN_BITS].backward()
    network.learn(losses, bits, 0.3)
    for name in names:
        torch.testing.assert_close(getattr(network, name), before[name].detach() + 0.3 * before[name].grad)


def test_a_decision_is_one_step_of_sarsa() -> None:
    """v <- v + eta * (r + discount * Q(s', a') - Q(s, a)) * dQ(s, a)/dv, worked by hand at the output's bias."""
    policy, state = fresh(epsilon=0.0, eta=0.2, discount=0.5, alpha=0.5)
    state.network = random_network()
    for step in range(5):
        policy.observe(state, LOSSES[step], step)
        if step == 0:
            assert policy.decide(state, 0, 0.0) is None
    policy.observe(state, LOSSES[5], 5)
    seen, taken, before = state.seen.clone(), state.bits, state.network.output_bias.clone()
    present = float(state.network.values(seen)[taken - MIN_BITS])
    values = state.network.values(state.smoothed / LOSSES[0])
    earned = policy.decide(state, 5, 3.0)
    assert earned == pytest.approx(-300 * slope(state.smoothed) / 3000)
    following = float(values[state.bits - MIN_BITS])
    change = torch.zeros_like(before)
    change[taken - MIN_BITS] = 0.2 * (earned + 0.5 * following - present)
    torch.testing.assert_close(state.network.output_bias, before + change)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_trusted_bits_never_fall_and_bits_stay_in_range(seed: int, epsilon: float) -> None:
    policy, state = fresh(epsilon=epsilon, period=2)
    policy = BitsPolicy(policy.options, seed, 0)
    state.network = replace(random_network(seed), hidden=Network.initial(2, seed).hidden)
    losses = np.random.default_rng(seed).uniform(0.5, 3, 80).tolist()
    decided = live(policy, state, losses)
    trusted = [n for n, _ in decided]
    assert trusted == sorted(trusted)
    assert all(MIN_BITS <= n <= bits <= min(n + 1, MAX_BITS) for n, bits in decided)


def test_where_the_network_prefers_more_bits_they_rise_one_a_period_to_eight() -> None:
    policy, state = fresh(epsilon=0.0, eta=1e-9)
    state.network.output_bias.copy_(torch.arange(7))
    decided = live(policy, state, [2.0] * 50)
    assert [bits for _, bits in decided] == [3, 4, 5, 6, 7, 8, 8, 8, 8, 8]


def test_a_network_that_knows_nothing_keeps_the_bits() -> None:
    policy, state = fresh(epsilon=0.0)
    assert live(policy, state, [2.0] * 30) == [(2, 2)] * 6


def test_a_chance_step_lasts_one_period() -> None:
    policy, state = fresh(epsilon=0.1, eta=1e-9)
    state.network.output_bias[0] = 1.0
    decided = live(policy, state, [2.0 - 0.001 * step for step in range(1000)])
    raised = [bits == 3 for _, bits in decided]
    assert {n for n, _ in decided} == {2}
    assert 8 <= sum(raised) <= 34  # 200 decisions, 20 expected, deviation 4.2


def test_the_agent_learns_to_raise_bits_that_pay() -> None:
    """Losses that fall only with 4 bits or more, and rise below: the network ends there or above."""
    policy, state = fresh(alpha=1.0, eta=0.5, epsilon=0.2, discount=0.5)
    loss = 2.0
    for step in range(3000):
        policy.observe(state, loss, step)
        if policy.decides_at(step):
            policy.decide(state, step, 0.01 * step)
        loss += -0.0002 if state.bits >= 4 else 0.0002
    assert state.trusted >= 4
