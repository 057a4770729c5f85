"""Computations that wait for others of their kind, and vectors that lie together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from testbed.gpu.moves import rows
from testbed.gpu.places import running
from testbed.gpu.together import MOST, Gathering, in_one_go


class Doubler:
    def __init__(self) -> None:
        self.done: list[int] = []  # calls that were done at once

    @in_one_go("all", lambda owner: "as large as this")
    def one(self, number: int) -> int:
        return self.all([(number,)])[0]

    def all(self, asked: Sequence[tuple[int]]) -> list[int]:
        self.done.append(len(asked))
        return [2 * number for (number,) in asked]

    def other(self, number: int) -> int:
        return number


def test_calls_of_one_method_of_one_owner_are_done_in_one_go() -> None:
    first, second, gathering = Doubler(), Doubler(), Gathering()
    asked = [gathering.ask(owner.one, (number,)) for number, owner in enumerate([first, second, first])]
    assert [each.sized for each in asked if each is not None] == ["as large as this"] * 3
    assert first.done == second.done == []
    gathering.run()
    assert [each.result for each in asked if each is not None] == [0, 2, 4]
    assert (first.done, second.done) == ([2], [1])
    gathering.run()
    assert first.done == [2]


def test_what_is_not_marked_is_not_put_off() -> None:
    gathering = Gathering()
    assert gathering.ask(Doubler().other, (1,)) is None
    assert gathering.ask(len, ([],)) is None


def test_of_many_some_are_done_at_once() -> None:
    """Each takes memory."""
    owner, gathering = Doubler(), Gathering()
    asked = [gathering.ask(owner.one, (number,)) for number in range(2 * MOST + 1)]
    gathering.run()
    assert owner.done == [MOST, MOST, 1]
    assert [each.result for each in asked if each is not None] == list(range(0, 4 * MOST + 2, 2))


def test_whoever_asked_may_be_gone() -> None:
    owner, gathering = Doubler(), Gathering()
    asked = gathering.ask(owner.one, (1,))
    gathering.forget()
    gathering.run()
    assert asked is not None
    assert asked.result is None
    assert not owner.done


def test_vectors_of_one_block_are_its_rows_as_they_are() -> None:
    block = torch.arange(12.0).view(4, 3)
    found = rows(block[1:].unbind())
    assert torch.equal(found, block[1:])
    assert found.data_ptr() == block[1].data_ptr()


@pytest.mark.parametrize("order", [[1, 0], [0, 2], [0, 0]])
def test_vectors_that_lie_elsewhere_are_brought_together(order: list[int]) -> None:
    block = torch.arange(12.0).view(4, 3)
    found = rows([block[place] for place in order])
    assert torch.equal(found, block[order])


def test_vectors_of_other_memory_are_brought_together() -> None:
    """Even where it begins where the one before ends."""
    whole = torch.arange(6.0)
    apart = [whole[:3].clone(), whole[3:].clone()]
    assert torch.equal(rows(apart), whole.view(2, 3))
    assert torch.equal(rows([whole[::2], whole[1::2]]), torch.stack([whole[::2], whole[1::2]]))


@pytest.mark.parametrize("shape", [(7,), (1, 7), (2, 7), (2, 3, 5)])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.bool])
def test_running_sums_are_each_rows_own(shape: tuple[int, ...], kind: torch.dtype) -> None:
    numbers = torch.randint(0, 2 if kind is torch.bool else 1000, shape, generator=torch.manual_seed(1)).to(kind)
    found = running(numbers)
    assert found.dtype == torch.int64
    assert torch.equal(found, numbers.cumsum(-1))
