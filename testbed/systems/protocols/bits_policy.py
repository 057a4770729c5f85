"""MQGrad's Markov decision process: how many bits the gradients get, learned while the training goes on.

Cui et al., "MQGrad: Reinforcement Learning of Gradient Quantization in Parameter Server", section 3.3. Where the paper
leaves something open, this was decided:

- The initial L_0 of equation 1 is the first loss, five times.
- Equation 3's arg max is the one found when the action was chosen, with the network of that moment. So n_t, the bits
  that the network trusts, never falls; a random step up lasts one period and the bits n_t + a_t go back by one
  after it, unless the network now wants it too. (Were such a step kept, chance alone would lead to 8 bits after
  some 60 periods.)
- At 8 bits the only action is 0.
- Algorithm 2 writes one gamma for the discount and equation 2 for the reward's scale, 300, with which no Q could
  converge. The discount is `discount`, 0.9.
- The network sees the losses divided by the run's first one, so that eta is a stable rate whatever a loss's size.
- Its output layer starts at zero, where all actions are worth the same and the bits stay, its hidden layer at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch

from testbed.codecs.base import Key
from testbed.systems.protocols.base import Options
from testbed.types import Positive

MIN_BITS, MAX_BITS = 2, 8
HIDDEN = 10  # nodes of the network's second layer
_EXPLORING, _INITIAL = 1 << 32, (1 << 32) + 1  # of a key: no model has so many layers

Part = Annotated[float, msgspec.Meta(ge=0, le=1)]


class PolicyOptions(Options, frozen=True, forbid_unknown_fields=True):
    """The paper's settings (4.1).

    Parameters
    ----------
    period : T, training steps between decisions
    epsilon : probability of the action that the network does not prefer
    eta : learning rate of the network
    alpha : weight of a new loss in the moving average
    gamma : scale of the reward
    discount : weight of what follows against the reward at hand
    """

    period: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 5
    epsilon: Part = 0.1
    eta: Positive = 0.1
    alpha: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.01
    gamma: Positive = 300.0
    discount: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9


@dataclass
class Network:
    """Q: the T smoothed losses in, a linear output for each number of bits; float64."""

    hidden: torch.Tensor  # [HIDDEN, T]
    hidden_bias: torch.Tensor  # [HIDDEN]
    output: torch.Tensor  # [7, HIDDEN]
    output_bias: torch.Tensor  # [7]

    @classmethod
    def initial(cls, period: int, seed: int) -> Network:
        """Hidden weights uniform within 1 / sqrt(T), an output of zero."""
        generator = torch.Generator().manual_seed(seed)
        weights = torch.rand(HIDDEN, period + 1, generator=generator, dtype=torch.float64)
        weights.mul_(2).sub_(1).div_(period**0.5)
        outputs = MAX_BITS - MIN_BITS + 1
        zeros = torch.zeros(outputs, HIDDEN, dtype=torch.float64)
        return cls(weights[:, :period].clone(), weights[:, period].clone(), zeros, zeros[:, 0].clone())

    def values(self, losses: torch.Tensor) -> torch.Tensor:
        """The value of each number of bits, 2 to 8 [7], at smoothed losses [T]."""
        active = torch.relu(self.hidden @ losses + self.hidden_bias)
        return self.output @ active + self.output_bias

    def learn(self, losses: torch.Tensor, bits: int, change: float) -> None:
        """Add `change` times the gradient of the value of `bits` at `losses` to the parameters."""
        k = bits - MIN_BITS
        inner = self.hidden @ losses + self.hidden_bias
        back = self.output[k] * (inner > 0)
        self.output[k] += change * torch.relu(inner)
        self.output_bias[k] += change
        self.hidden += change * torch.outer(back, losses)
        self.hidden_bias += change * back


@dataclass
class PolicyState:
    """The agent: s_t = [`trusted`, `smoothed`], the action taken in it, and the network."""

    network: Network
    smoothed: torch.Tensor  # [T], the losses of this period so far by equation 1, before them the last period's
    seen: torch.Tensor  # [T], what the network saw at the last decision
    trusted: int = MIN_BITS  # n_t
    preferred: int = 0  # the action of highest value
    action: int = 0  # a_t
    first_loss: float | None = None
    decided_s: float = 0.0  # when, on the run's clock

    @property
    def bits(self) -> int:
        """n_t + a_t, what gradients are quantized with."""
        return self.trusted + self.action


class BitsPolicy:
    """Chooses the bits every T steps by SARSA (Algorithm 2) with epsilon-greedy exploration.

    Parameters
    ----------
    options : the paper's settings
    seed, stream : key the network's first weights and each step's exploration, as in `testbed.codecs.base.Key`
    """

    def __init__(self, options: PolicyOptions, seed: int, stream: int) -> None:
        self.options = options
        self._seed, self._stream = seed, stream

    def start(self) -> PolicyState:
        """An agent that has seen nothing."""
        zeros = torch.zeros(self.options.period, dtype=torch.float64)
        seed = Key(self._seed, self._stream, 0).layer(_INITIAL)
        return PolicyState(Network.initial(self.options.period, seed), zeros, zeros.clone())

    def observe(self, state: PolicyState, loss: float, step: int) -> None:
        """Take in the loss over all workers of `step` (equation 1)."""
        if state.first_loss is None:
            state.first_loss = loss
            state.smoothed.fill_(loss)
        else:
            i, alpha = (step - 1) % self.options.period, self.options.alpha
            state.smoothed[i] = alpha * loss + (1 - alpha) * state.smoothed[i - 1]

    def decides_at(self, step: int) -> bool:
        """Whether a step is one at which the agent acts: m % T = 0."""
        return step % self.options.period == 0

    def decide(self, state: PolicyState, step: int, now_s: float) -> float | None:
        """Act: the reward of the last action (None when there was none), after choosing and learning."""
        assert state.first_loss is not None
        losses = state.smoothed / state.first_loss if state.first_loss else state.smoothed.clone()
        before, taken = state.seen, state.bits
        state.trusted += state.preferred
        state.preferred, state.action = self._choose(state, losses, step)
        earned = None
        if step:
            earned = reward(state.smoothed, now_s - state.decided_s, self.options.gamma)
            following = state.network.values(losses)[state.bits - MIN_BITS]
            present = state.network.values(before)[taken - MIN_BITS]
            error = earned + self.options.discount * float(following) - float(present)
            state.network.learn(before, taken, self.options.eta * error)
        state.seen, state.decided_s = losses, now_s
        return earned

    def _choose(self, state: PolicyState, losses: torch.Tensor, step: int) -> tuple[int, int]:
        """The action of highest value, and the one taken."""
        if state.trusted == MAX_BITS:
            return 0, 0
        keep, raise_ = state.network.values(losses)[state.trusted - MIN_BITS :][:2].tolist()
        preferred = int(raise_ > keep)
        chance = Key(self._seed, self._stream, step).layer(_EXPLORING) / 2**32
        return preferred, 1 - preferred if chance < self.options.epsilon else preferred


def slope(values: torch.Tensor) -> float:
    """Least-squares slope of values [n] over 1 .. n."""
    places = torch.arange(values.numel(), dtype=torch.float64)
    places -= places.mean()
    return float(places @ values / places.square().sum())


def reward(smoothed: torch.Tensor, seconds: float, gamma: float) -> float:
    """Equation 2: gamma times how fast the smoothed losses fall a step, per whole millisecond that the steps took."""
    return -gamma * slope(smoothed) / max(1, round(1000 * seconds))
