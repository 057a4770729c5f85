"""ISGQ: the factors of linear layers' gradients in place of the gradients (Abdi and Fekri, AAAI 2020).

A worker sends, for each linear layer, the quantized input and the quantized derivative by the output of every image
of its batch, whose product is the gradient; what else the model has, its convolutions, is coded directly (section 4).
Factors cannot be added up: those of several workers, one below the other, are the factors of their sum. So an LPS
passes its workers' messages on in one, and by default the global server does, too: each worker then multiplies all
of them, gets the very mean that the server would, and makes the update ("answer").

Weight decay is added at the worker's update, from its own weights, which all workers share: it is in no factor.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch

from testbed.codecs import costs
from testbed.codecs.base import Buffers, Codec, Key
from testbed.codecs.factors import Dithered, FactorCodec, LloydMax, MinimumError, Unquantized, multiply
from testbed.codecs.floats import Float32
from testbed.codecs.qsgd import QSGD
from testbed.codecs.sized import Sized
from testbed.codecs.ternary import Ternary
from testbed.errors import ProtocolError
from testbed.layout import Factors, Layout
from testbed.message import Message
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.systems.protocols.base import Knob, Options, System, Task
from testbed.systems.protocols.replica import Replica, ServerState

Coding = Literal["ternary", "qsgd", "float32"]


class ISGQOptions(Options, frozen=True, forbid_unknown_fields=True):
    """What all three forms share.

    Parameters
    ----------
    quantize : without it the factors travel in float32
    convolutions : how the gradients of all but the linear layers are coded: TernGrad's trits, or QSGD with one level
        and Elias codes, the two that the paper advises (end of section 4)
    answer : what comes back: all workers' factors, or the mean of the gradients, in float32 or ternary. Factors are the
        least and lose nothing more as long as there are fewer workers than a message is smaller than float32
    """

    quantize: bool = True
    convolutions: Coding = "ternary"
    answer: Literal["factors", "float32", "ternary"] = "factors"


class NaiveOptions(ISGQOptions, frozen=True, forbid_unknown_fields=True):
    """See `testbed.codecs.factors.LloydMax`.

    Parameters
    ----------
    bits : an element's; a quantizer has 2^bits levels
    zero_beside : zero is not one of the levels of a ReLU's output but comes beside them
    """

    bits: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1
    zero_beside: bool = False


class MSEOptions(NaiveOptions, frozen=True, forbid_unknown_fields=True):
    """See `testbed.codecs.factors.MinimumError`.

    Parameters
    ----------
    rounds : alternations of Algorithm 1
    bias_weight : lambda of eq. 6, times the number of elements of the layer's gradient
    """

    rounds: Annotated[int, msgspec.Meta(ge=1, le=100)] = 2
    bias_weight: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 1.0


class DitheredOptions(ISGQOptions, frozen=True, forbid_unknown_fields=True):
    """See `testbed.codecs.factors.Dithered`.

    Parameters
    ----------
    levels : K, levels on each side of zero
    """

    levels: Annotated[int, msgspec.Meta(ge=1, le=127)] = 1


class ISGQ(System):
    """The protocol; a form says how it quantizes factors."""

    alike = True
    sums_gradients = False  # factors of different examples cannot be added
    options: ISGQOptions

    def __init__(self, task: Task, options: ISGQOptions) -> None:
        super().__init__(task, options)
        self.workers = len(task.roles.workers)
        self.samples = task.training.worker_batch(self.workers)
        self.factors = self.factor_codec() if options.quantize else Unquantized(task.layout, self.samples)
        rest = {layer.name for layer in task.layout.rest}
        self.rest = [layer for layer in task.layout if layer.name in rest]
        self.others = self.coder(_codec(options.convolutions, task.layout.rest), "factors")
        self.mean = self.coder(
            _codec("float32" if options.answer == "factors" else options.answer, task.layout), "mean"
        )
        self.varying.add("factors")
        self._last: tuple[Message, torch.Tensor] | None = None  # a message, and its mean gradient

    @abstractmethod
    def factor_codec(self) -> FactorCodec:
        """What quantizes the factors."""

    # What computations cost

    @property
    def gradient_work(self) -> Work:
        """A gradient without the products that make the linear layers' own."""
        return Work(flops=max(0.0, self.task.gradient_flops - self._product_flops))

    def _encoding(self, made: Buffers) -> Work:
        """Quantizing and coding the factors, and coding what else there is."""
        cut = self.factors.buffers
        flops, nbytes = (
            self.factors.flops,
            costs.encoding(self.factors, self.factors.elements, costs.size_of(made[:cut])),
        )
        return self.task.encoding(self.others, Work(gemm_flops=flops, coding_nbytes=nbytes))(made[cut:])

    def _multiplying(self, message: Message) -> Work:
        """Decoding and multiplying the messages of all workers."""
        parts, cut = len(message.buffers) // self.workers, self.factors.buffers
        others = [buffer for place, buffer in enumerate(message.buffers) if place % parts >= cut]
        others_nbytes, rest = costs.size_of(others), self.workers * self.task.layout.rest.size
        nbytes, elements = costs.size_of(message.buffers) - others_nbytes, self.workers * self.factors.elements
        decoding = costs.decoding(self.factors, elements, nbytes) + costs.decoding(self.others, rest, others_nbytes)
        return Work(flops=self.workers * self._product_flops, coding_nbytes=decoding)

    def _answering(self, message: Message) -> Callable[[Message], Work]:
        """The same at the global server, and coding the mean."""
        return self.task.encoding(self.mean, self._multiplying(message))

    @property
    def _product_flops(self) -> float:
        return 2.0 * self.samples * sum(layer.weight.size for layer in self.task.layout.linear)

    # The roles

    def initial_state(self, name: str) -> Replica | ServerState:
        if name in self.task.roles.workers:
            return Replica.of(self.task, self.task.training.optimizer, name == self.task.roles.workers[0])
        return ServerState()

    async def worker(self, node: Node, state: Replica) -> None:
        index = self.worker_index(node)
        learner = self.task.learner(index)
        async for step in node.steps(state):
            loss, others, factors = await node.compute(self.gradient_work, learner.factors, state.weights, step)
            buffers = await node.compute(self._encoding, self._encode, index, step, others, factors)
            await node.send(node.server, Message("factors", step, buffers))
            answer = await node.recv(node.server)
            if answer.kind == "factors":
                mean = await node.compute(self._multiplying(answer), self._received, answer)
            else:
                mean = await node.compute(self.task.decoding(self.mean, answer), self.mean.decode, answer.buffers)
            await node.compute(self.task.update_work, self._update, state, mean, step)
            node.step_done(step, loss)

    async def lps(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            await node.send(node.server, _bundle(await node.collect(node.clients), step))
            await node.broadcast(node.clients, await node.recv(node.server))

    async def global_server(self, node: Node, state: ServerState) -> None:
        async for step in node.steps(state):
            answer = _bundle(await node.collect(node.clients), step)
            if self.options.answer != "factors":
                answer = await node.compute(self._answering(answer), self._mean_message, node, answer)
            await node.broadcast(node.clients, answer)

    # The math

    def _encode(self, worker: int, step: int, others: torch.Tensor, factors: Sequence[Factors]) -> list[Any]:
        """A worker's message: first the factors, then the rest, if there is any."""
        if self.task.sizes is not None:
            sender = self.task.roles.workers[worker]
            known = self.task.sizes.buffers(sender, step, "factors", self.task.layout.size)
            return [Sized(nbytes) for nbytes in known]
        buffers = self.factors.encode(factors, self._key(worker, step))
        if others.numel():
            buffers += self.others.encode(others, Key(self.task.seed, worker, step))
        return buffers

    def _key(self, worker: int, step: int) -> Key:
        """Of a worker's dither: other numbers than those of all roles' other draws."""
        return Key(self.task.seed, len(self.task.roles.all) + worker, step)

    def _received(self, message: Message) -> torch.Tensor:
        """What an answer of factors multiplies to, fresh; what many workers receive alike is multiplied once.

        But where computing is timed: there each takes the time that it would take by itself.
        """
        if self.task.seconds is None:
            return self._multiply(message)
        if self._last is None or self._last[0] is not message:
            self._last = message, self._multiply(message)
        return self._last[1].clone()

    def _multiply(self, message: Message) -> torch.Tensor:
        """The mean gradient [layout.size] of the messages of all workers, which come in the order of the workers."""
        if self.task.timing_only:
            return torch.empty_like(self.task.initial)
        parts, left = divmod(len(message.buffers), self.workers)
        if left:
            raise ProtocolError(f"{len(message.buffers)} buffers are not the messages of {self.workers} workers")
        mean, factors = torch.zeros_like(self.task.initial), []
        others = mean.new_zeros(self.task.layout.rest.size)
        for worker in range(self.workers):
            buffers = message.buffers[worker * parts : (worker + 1) * parts]
            cut = self.factors.buffers
            factors.append(self.factors.decode(buffers[:cut], self._key(worker, message.step)))
            if others.numel():
                others.add_(self.others.decode(buffers[cut:]))
        multiply(self.task.layout, factors, mean)
        others.div_(self.workers)
        for layer, part in zip(self.rest, others.split([layer.size for layer in self.rest]), strict=True):
            mean[layer.slice] = part
        return mean

    def _mean_message(self, node: Node, message: Message) -> Message:
        """The global server's answer where it is to be the mean."""
        key = Key(self.task.seed, self.task.roles.stream_of(node.name), message.step)
        return Message("mean", message.step, self.mean.encode(self._multiply(message), key))

    def _update(self, state: Replica, mean: torch.Tensor, step: int) -> None:
        if decay := self.task.training.weight_decay:
            mean.add_(state.weights, alpha=decay)
        state.update(self.task, mean, step, self.task.training.optimizer)

    def models(self, states: Mapping[str, Replica]) -> dict[str, torch.Tensor]:
        return states[self.task.roles.workers[0]].models()


class NaiveISGQ(ISGQ):
    name = "isgq-naive"
    options_type = NaiveOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"bits": Knob(choices=(1, 2, 3))}
    options: NaiveOptions

    def factor_codec(self) -> FactorCodec:
        return LloydMax(self.task.layout, self.samples, 2**self.options.bits, self.options.zero_beside)


class MSEISGQ(ISGQ):
    name = "isgq-mse"
    options_type = MSEOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"bits": Knob(choices=(1, 2, 3))}
    options: MSEOptions

    def factor_codec(self) -> FactorCodec:
        it = self.options
        levels = 2**it.bits
        return MinimumError(self.task.layout, self.samples, levels, it.zero_beside, it.rounds, it.bias_weight)


class DitheredISGQ(ISGQ):
    name = "isgq-dithered"
    options_type = DitheredOptions
    knobs: ClassVar[Mapping[str, Knob]] = {"levels": Knob(choices=(1, 2, 3))}
    options: DitheredOptions

    def factor_codec(self) -> FactorCodec:
        return Dithered(self.task.layout, self.samples, self.options.levels)


def _codec(name: Coding, layout: Layout) -> Codec:
    match name:
        case "ternary":
            return Ternary(layout, float_last=False)
        case "qsgd":
            return QSGD(layout, levels=1, coding="elias")
        case "float32":
            return Float32(layout)


def _bundle(messages: Sequence[Message], step: int) -> Message:
    """Several workers' messages in one, in the order of the workers."""
    return Message("factors", step, [buffer for message in messages for buffer in message.buffers])
