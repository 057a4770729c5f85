"""Some layers are coded, the others arrive as they are."""

from __future__ import annotations

import pytest
import torch

from testbed.codecs import Adaptive, ErrorFeedback, Key, Uniform
from testbed.codecs.costs import cost_of
from testbed.codecs.partial import Partial
from testbed.errors import CodecError
from testbed.layout import Layout
from testbed.systems.fixed import dense

NET = Layout.of([("conv.weight", (4, 3, 5, 5)), ("a.weight", (30, 40)), ("a.bias", (30,)), ("b.weight", (10, 30))])
KEY = Key(0, 1, 2)


def test_chosen_layers_are_their_codecs_and_others_exact() -> None:
    codec = Partial(NET, lambda layout: Uniform(layout, 4), dense)
    x = torch.randn(NET.size, generator=torch.Generator().manual_seed(0))
    buffers = codec.encode(x, KEY, codec.start())
    found = codec.decode(buffers)
    conv, a, bias, last = NET
    assert [layer.name for layer in codec.part] == ["a.weight"]
    for layer in (conv, bias, last):
        assert torch.equal(found[layer.slice], x[layer.slice])
    alone = Uniform(codec.part, 4)
    assert torch.equal(found[a.slice], alone.decode(alone.encode(x[a.slice], KEY)))
    assert sum(buffer.nbytes for buffer in buffers) == alone.nbytes() + 4 * (NET.size - a.size)


def test_the_codecs_memory_is_kept_and_its_cost_charged() -> None:
    codec = Partial(NET, lambda layout: ErrorFeedback(Adaptive(layout, 0.2)), dense)
    memory, sent, meant = codec.start(), torch.zeros(NET.size), torch.zeros(NET.size)
    for step in range(5):
        x = torch.randn(NET.size, generator=torch.Generator().manual_seed(step))
        meant += x
        sent += codec.decode(codec.encode(x, Key(0, 0, step), memory))
    a = NET.layers[1]
    torch.testing.assert_close(sent[a.slice] + memory.residual, meant[a.slice], rtol=1e-4, atol=1e-4)
    assert cost_of(codec) == cost_of(ErrorFeedback(Adaptive(NET)))


def test_a_malformed_message_is_refused() -> None:
    codec = Partial(NET, lambda layout: Uniform(layout, 4), dense)
    buffers = codec.encode(torch.ones(NET.size), KEY, codec.start())
    for wrong in ([], buffers[:-1], [*buffers[:-1], buffers[-1][:-1]]):
        with pytest.raises(CodecError):
            codec.decode(wrong)
