"""WeightGrad: ternary gradients up, ternary weights down, significant updates across regions (KDD 2020).

Inside a region every step is synchronous: workers send ternary gradients (Algorithm 2), the LPS updates its
full-precision weights, with their mean (Algorithm 3) or with one after the other (Algorithm 4), and answers
with ternary weights. Across regions the LPS's Gradient Synchronizer (4.2, Appendix A.2) sends what it has
accumulated to the global server once that is significant. Where the paper leaves a choice:

1. `g_u`, the aggregated update, is in units of weight change (learning rate included). Its significance is
   S = ||g_u|| / ||eta * g_ref||, over the whole model, g_ref being the latest step's mean gradient (Algorithm
   3, line 7) or its largest worker gradient (Algorithm 4, line 8).
2. A round: the global server takes the first g_u as the round's opening, asks the other LPSs for theirs, waits
   for them up to T_global, and sends the mean of what came, ternarized, to all. With `pull = "background"` an LPS
   goes on with its steps meanwhile, as 4.2 B and rule 5 have it; with "blocking" it answers its workers only after
   the mean (Algorithm 3, line 9 read as a call that returns). A contribution that misses its round opens the next.
3. `reconcile = "exact"`: on the mean's arrival an LPS replaces its contribution by the mean, so that regions
   differ only by what they have not yet exchanged (and by float32's rounding). `"paper"`: lines 9-10 of
   Algorithm 3 (update with the mean) and lines 10-12 of Algorithm 4 (update with the difference to g_max when
   the mean is larger) to the letter.
4. G_thresh starts at ||g||_2 / ||g||_inf of the first g_ref and is multiplied each epoch by the change of the
   learning rate and of ||v|| (equation 13), v being the workers' momentum as the LPS sees it: the mean norm of
   their messages over the epoch; the first epoch has no ||v|| before it and changes nothing. It is clamped to
   [threshold_min, threshold_max], and comes to the lower end as a schedule's rate comes to zero.
5. T: an LPS sends at the latest T after its last exchange, and one that has waited longer than T for the mean
   stops answering its workers until it comes. T_local: when an LPS has not acknowledged a mean within T_local,
   the global server holds its sends to the others until it has. T_global: rounds are never further apart.
6. The last layer stays in float32 in gradients and in weights, biases in weights only (4.3).
7. Tolerance: a region that is left out of rounds (`protocols.rounds`) trains on by itself, and its Gradient
   Synchronizer goes on accumulating: rule 5's T holds its workers no longer than `patience_s`. When it is back it
   takes in the sum of the means it has missed, in float32, and its own g_u is part of the next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from testbed.codecs.base import Key
from testbed.codecs.costs import Priced
from testbed.codecs.floats import Float32
from testbed.codecs.resident import decoded_all, decoded_once
from testbed.codecs.sized import sized
from testbed.codecs.ternary import LOSS_AWARE, Ternary, ThresholdTernary
from testbed.errors import InputError
from testbed.gpu.moves import is_far, norms_of, numbers, of_largest, rows
from testbed.gpu.together import in_one_go
from testbed.message import Message
from testbed.roles.attendance import Attendance, answered, caught_up
from testbed.roles.compute import NOTHING, Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Knob, Options, System, Task
from testbed.systems.protocols.rounds import Missed, Rounds
from testbed.systems.protocols.synchronizer import GradientSynchronizer, Updates
from testbed.types import Fraction, Positive
from testbed.wan.plan import region_of
from testbed.workloads.optimizer import EMA, Optimizer


class WeightGradOptions(Options, frozen=True, forbid_unknown_fields=True):
    """WeightGrad's own settings; times are seconds on the run's clock.

    Parameters
    ----------
    aggregate : "serial" (Algorithm 4) or "average" (Algorithm 3)
    reconcile : "exact" or "paper", see the module's rule 3
    pull : "background" or "blocking": whether workers wait while their LPS waits for a mean, see rule 2
    exchange : "ternary" (stochastic, as the paper), or "deterministic-feedback": threshold ternary with error
        feedback (feeding back the stochastic ternary's error would diverge: its error exceeds the signal)
    rate : as of any system ("a smaller learning rate is maintained", 4.3)
    momentum : of the momentum correction at the workers
    clip : gradients are clipped to this many standard deviations of their layer before they are ternarized
    quantize_weights : ternary weights to the workers; off sends nothing smaller, for comparison
    arrival_order : apply gradients as they arrive (4.2 C) rather than by worker index, which repeats
    threshold_min, threshold_max : bounds of G_thresh
    epoch_steps : G_thresh is renewed this often; None: an epoch of the data
    t_s, t_local_s, t_global_s : the intervals T, T_local and T_global
    """

    aggregate: Literal["serial", "average"] = "serial"
    reconcile: Literal["exact", "paper"] = "exact"
    pull: Literal["background", "blocking"] = "background"
    exchange: Literal["ternary", "deterministic-feedback"] = "ternary"
    momentum: Fraction = 0.9
    clip: Positive = 2.5
    quantize_weights: bool = True
    arrival_order: bool = False
    threshold_min: Positive = 1.0
    threshold_max: Positive = 64.0
    epoch_steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    t_s: Positive = 20.0
    t_local_s: Positive = 10.0
    t_global_s: Positive = 60.0

    def __post_init__(self) -> None:
        if self.threshold_min > self.threshold_max:
            raise ValueError(f"threshold_min {self.threshold_min:g} is above threshold_max {self.threshold_max:g}")


@dataclass
class WorkerState:
    """`velocity` is u of the momentum correction; `weights` are the quantized ones the LPS sent."""

    step: int
    weights: torch.Tensor
    velocity: torch.Tensor


@dataclass
class LPSState:
    """An LPS and its Gradient Synchronizer; vectors are flat and in units of weight change where they are updates."""

    step: int
    weights: torch.Tensor  # full precision
    optimizer: Any  # the state of `training.optimizer`
    update: torch.Tensor  # g_u: applied since the last contribution
    residual: torch.Tensor  # what the exchange's quantizer left out (deterministic feedback)
    ema: EMA | None
    threshold: float | None = None  # G_thresh
    last_exchange_s: float = 0.0
    epoch_rate: float = 0.0  # learning rate when G_thresh was last renewed
    epoch_norm: float = 0.0  # ||v|| of the epoch before
    norm_sum: float | torch.Tensor = 0.0  # of this epoch, on the device
    norm_count: int = 0


@dataclass
class GlobalState:
    """The global server; `round` counts rounds opened."""

    round: int
    last_round_s: float
    residual: torch.Tensor


class WeightGrad(System):
    name = "weightgrad"
    alike = True
    tolerant = True
    returning = ("worker",)
    topologies = ("tree",)
    own_momentum = True
    options_type = WeightGradOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"threshold_max": Knob(choices=(4.0, 16.0, 64.0))}
    options: WeightGradOptions

    def __init__(self, task: Task, options: WeightGradOptions) -> None:
        super().__init__(task, options)
        self.gradients = self.coder(Ternary(task.layout, options.clip))
        self.weights = self.coder(ThresholdTernary(task.layout))
        self.floats = self.coder(Float32(task.layout))
        self.carrier = self.weights if options.quantize_weights else self.floats  # of weights to the workers
        aware = options.quantize_weights and self._optimizer().has_second_moments
        self.charged = Priced(task.layout, LOSS_AWARE) if aware else self.carrier  # what coding them costs
        if options.arrival_order and self.tolerance is not None:
            raise InputError("weightgrad: arrival_order: with a tolerance gradients are applied by worker index")
        feedback = options.exchange == "deterministic-feedback"
        self.updates = Updates(self.weights if feedback else self.gradients, self.floats, feedback)
        self.varying.add("significant")  # when such messages are sent depends on the data
        self.epoch_steps = options.epoch_steps or task.training.epoch_steps(task.images)

    def initial_state(self, name: str) -> WorkerState | LPSState | GlobalState:
        initial, zeros = self.task.initial, torch.zeros_like(self.task.initial)
        if name in self.task.roles.workers:
            quantized = self.weights.quantize(initial) if self.options.quantize_weights else initial.clone()
            return WorkerState(0, quantized, zeros)
        residual = zeros.clone() if self.updates.feedback else initial.new_empty(0)
        if name == self.task.roles.global_server:
            return GlobalState(0, 0.0, residual)
        decay = self.task.training.ema_decay
        ema = EMA.of(initial, decay) if decay is not None else None
        return LPSState(0, initial.clone(), self._optimizer().start(initial), zeros, residual, ema)

    # Worker (Algorithm 2)

    async def worker(self, node: Node, state: WorkerState) -> None:
        index = self.worker_index(node)
        learner = self.task.learner(index)
        async for step in node.steps(state):
            loss, gradient = await node.compute(self.task.gradient_work, learner.gradient, state.weights, step)
            key = Key(self.task.seed, index, step)
            charge = self.task.encoding(self.gradients, self.task.passes(3))  # u <- m * u + g: two read, one written
            buffers = await node.compute(charge, self._ternarized, state, gradient, key)
            request = Message("gradient", step, buffers)
            await node.send(node.lps, request)
            answer = await answered(node, request, self.tolerance)
            work = self.task.decoding(self.carrier, answer)
            state.weights = await node.compute(work, self._decode_weights, answer)
            state.step = answer.step
            if answer.step == step:  # else it was too late to count
                node.step_done(step, loss)
        self.end(node)

    async def rejoin(self, node: Node, state: WorkerState) -> None:
        told = await caught_up(node, self.tolerance)
        state.weights = await node.compute(self.task.decoding(self.carrier, told), self._decode_weights, told)
        state.step = told.step + 1

    @in_one_go("_ternarized_all", lambda system: sized(system.gradients))
    def _ternarized(self, state: WorkerState, gradient: torch.Tensor, key: Key) -> Sequence:
        """Momentum correction, clipping, ternarizing (4.3)."""
        state.velocity.mul_(self.options.momentum).add_(gradient)
        return self.gradients.encode(state.velocity, key)

    def _ternarized_all(self, asked: Sequence[tuple[WorkerState, torch.Tensor, Key]]) -> list[Sequence]:
        """`_ternarized` of several workers, on a device."""
        velocities = [state.velocity for state, _, _ in asked]
        torch._foreach_mul_(velocities, self.options.momentum)
        torch._foreach_add_(velocities, [gradient for _, gradient, _ in asked])
        return self.gradients.encode_all([(state.velocity, key) for state, _, key in asked])

    # Local parameter server (Algorithms 3 and 4)

    async def lps(self, node: Node, state: LPSState) -> None:
        synchronizer = GradientSynchronizer(node, self.task, state, self.options, self.updates, self.tolerance)
        node.spawn_server(synchronizer.serve())
        clients = self.attendance(node, partial(self._weights_message, node, state))
        async for step in node.steps(state):
            messages = await self._pull_gradients(node, clients, step)
            reference = await node.compute(self._applying(messages), self._apply, state, messages, step)
            await synchronizer.step_done(reference, step)
            await node.broadcast(clients.present, await self._weights_message(node, state, step))
            await clients.readmit(step)
        await clients.end(state.step - 1)

    async def _pull_gradients(self, node: Node, clients: Attendance, step: int) -> list[Message]:
        if self.options.arrival_order and self.tolerance is None:
            return [message async for _, message in node.gather(node.workers)]
        return await clients.collect(step)

    async def _weights_message(self, node: Node, state: LPSState, step: int) -> Message:
        charge = self.task.encoding(self.charged)
        return Message("weights", step, await node.compute(charge, self._weights_for_workers, state))

    def _applying(self, messages: Sequence[Message]) -> Work:
        """What `_apply` and the test of significance do.

        Every message is decoded; the mean and its norm (n + 1 passes; ||v|| of equation 13); an update with each
        gradient or with the mean, its norm and its part of g_u beside it (1 + 2 passes); the norms of g_u and of
        eta * g_ref.
        """
        decoding = sum((self.task.decoding(self.gradients, message) for message in messages), NOTHING)
        updates = len(messages) if self.options.aggregate == "serial" else 1
        passes = len(messages) + 1 + updates * (self._optimizer().passes + 3) + 2
        return decoding + self.task.passes(passes)

    def _apply(self, state: LPSState, messages: Sequence[Message], step: int) -> torch.Tensor:
        """Update the weights and g_u; return the weight change that g_ref made."""
        if self.task.timing_only:
            return state.update
        gradients = decoded_all(self.gradients, [message.buffers for message in messages])
        mean = rows(gradients).mean(0)
        if self.options.aggregate == "average":
            gradients = [mean]
        mean_norm, *norms = norms_of((mean, *gradients))
        state.norm_sum = state.norm_sum + (mean_norm.double() if is_far(mean) else mean_norm.item())
        state.norm_count += 1
        rate, changes = self.task.rate_at(step), []
        largest = None if is_far(mean) else norms.index(max(norms))  # on a device only the device knows
        for k, gradient in enumerate(gradients):
            change = state.weights.clone()
            self._optimizer().update(state.optimizer, state.weights, gradient, rate)
            change.sub_(state.weights)
            state.update.add_(change)
            if largest in (None, k):
                changes.append(change)
        reference = changes[0] if len(changes) == 1 else of_largest(changes, norms)
        if state.threshold is None:
            peak, norm = numbers(reference.abs().max(), torch.linalg.vector_norm(reference))
            state.threshold = self._clamped(norm / peak if peak else 1.0)
            state.epoch_rate = rate
        if state.ema is not None:
            state.ema.update(state.weights)
        if (step + 1) % self.epoch_steps == 0:
            self._renew_threshold(state, self.task.rate_at(step + 1))
        return reference

    def _renew_threshold(self, state: LPSState, rate: float) -> None:
        """Equation 13, once an epoch."""
        norm = float(state.norm_sum) / state.norm_count
        if state.epoch_norm and state.epoch_rate and state.threshold is not None:
            change = (rate / state.epoch_rate) * (norm / state.epoch_norm)
            state.threshold = self._clamped(state.threshold * change)
        state.epoch_rate, state.epoch_norm = rate, norm
        state.norm_sum, state.norm_count = 0.0, 0

    def _clamped(self, threshold: float) -> float:
        return min(max(threshold, self.options.threshold_min), self.options.threshold_max)

    # Global server

    async def global_server(self, node: Node, state: GlobalState) -> None:
        async def average(messages: Sequence[Message], number: int) -> Sequence:
            charge = self.task.encoding(self.updates.charged, self.task.adding(self.updates.codec, messages))
            return await node.compute(charge, self._average, state, messages, number)

        missed = Missed(node, self.task, self.updates.codec, self.floats)
        rounds = Rounds(node, state, self.options.t_local_s, self.options.t_global_s, average, self.tolerance, missed)
        async for peer, message in node.serve(node.lpss, rounds.busy):
            if message.kind == "ack":
                await rounds.acknowledged(peer)
            else:
                await rounds.contributed(peer, message)
        rounds.end()

    def _average(self, state: GlobalState, messages: Sequence[Message], number: int) -> Sequence:
        """The mean of the contributions, quantized like them."""
        mean = torch.stack([self.updates.decode(message) for message in messages]).mean(0)
        stream = self.task.roles.stream_of(self.task.roles.global_server)
        return self.updates.encode(mean, state.residual, Key(self.task.seed, stream, number))

    # The optimizer, and the quantizer of the weights

    def _optimizer(self) -> Optimizer:
        """The LPS's update; momentum is already in what the workers send."""
        return self.task.training.optimizer.without_momentum

    def _weights_for_workers(self, state: LPSState) -> Sequence:
        """Weights to ternary: loss-aware where the optimizer knows second moments (Appendix A, equation 4)."""
        if not self.options.quantize_weights:
            return self.floats.encode(state.weights)
        return self.weights.encode(state.weights, importance=self._optimizer().importance(state.optimizer))

    def _decode_weights(self, message: Message) -> torch.Tensor:
        return decoded_once(self.carrier, message.buffers)

    # Results

    def models(self, states: Mapping[str, LPSState]) -> dict[str, torch.Tensor]:
        """The quantized model, as workers get it, is the result; full precision, and each region's own, beside it."""
        regions = {region_of(name): states[name] for name in self.task.roles.lpss}
        full = torch.stack([state.weights for state in regions.values()]).mean(0)
        known = {region: self._optimizer().importance(state.optimizer) for region, state in regions.items()}
        importance = [each for each in known.values() if each is not None]
        mean = torch.stack(importance).mean(0) if importance else None
        models = {"quantized": self.weights.quantize(full, mean), "full": full}
        averages = [state.ema.average for state in regions.values() if state.ema is not None]
        if averages:
            models["ema"] = torch.stack(averages).mean(0)
        if len(regions) > 1:
            for region, state in regions.items():
                models[f"quantized@{region}"] = self.weights.quantize(state.weights, known[region])
                models[f"full@{region}"] = state.weights
        return models
