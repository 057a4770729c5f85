"""Two that keep one account: whatever comes when, both hold the same vector to the bit, and lose nothing."""

from __future__ import annotations

from collections import deque
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import quadratic_task

from testbed.codecs.base import Key
from testbed.message import Message
from testbed.roles.roles import Roles
from testbed.systems.concord import Concord, ConcordOptions
from testbed.systems.protocols.desk import Report

EVENTS = ["step", "send", "deliver", "die"]
LATE = Report(late=1.0)


class Two:
    """Regions 0 and 1, and what each has sent that the other has not taken in, in order."""

    def __init__(self, error: float | Literal["auto"], times: float, momentum: float) -> None:
        self.times, self.momentum = times, momentum
        options = ConcordOptions(error=error, end_error=0.001)
        system = Concord(quadratic_task(Roles(("a", "b"), 1, "a", mesh=True), 9), options)
        self.pairing, self.accounts = system.pairing, system.accounts
        self.links = [self.accounts.member() for _ in range(2)]
        self.pairs = [self.pairing.pair() for _ in range(2)]
        self.x = [self.accounts.start.clone() for _ in range(2)]
        self.made = torch.zeros_like(self.accounts.start)  # by the mean of both, with what was added on purpose
        self.on_way: list[deque[Message]] = [deque(), deque()]  # from 0, from 1
        self.told: dict[int, torch.Tensor] = {}  # a by rounds
        self.steps = 0

    def step(self, who: int) -> None:
        self.steps += 1
        made = torch.randn(self.x[who].shape, generator=torch.Generator().manual_seed(self.steps))
        self.x[who], self.made = self.x[who] + made, self.made + made / 2

    def send(self, who: int) -> None:
        pair, link = self.pairs[who], self.links[who]
        if len(pair.mine.notes) < 2:
            key = Key(0, who, self.steps)
            buffers = self.accounts.send(link, self.x[who], key, self.times)
            message = Message("difference", 0, buffers, (0.0, float(link.number), *LATE))
            self.pairing.hear(pair.mine, message)
            self.on_way[who].append(message)
            self._close(who)

    def deliver(self, who: int) -> None:
        """What `who` has sent first; the other takes it where it follows."""
        if not self.on_way[who]:
            return
        message, other = self.on_way[who].popleft(), 1 - who
        if message.kind == "last":
            self.pairing.hear_last(self.pairs[other].theirs, message)
        elif self.pairing.follows(self.pairs[other], self.links[other], message):
            self.pairing.hear(self.pairs[other].theirs, message)
            self._close(other)

    def _close(self, who: int) -> None:
        pair, link = self.pairs[who], self.links[who]
        while pair.reports:
            told_more = (1 - 1 / self.times) * (pair.mine.first + pair.theirs.first) / 2
            self.x[who] = self.x[who] + self.pairing.close(pair, link, self.momentum)
            if link.closed in self.told:
                assert torch.equal(link.told, self.told[link.closed])
                continue
            self.told[link.closed] = link.told.clone()
            self.made = self.made + told_more + (self.momentum * pair.velocity if self.momentum else 0)

    def die(self, who: int) -> None:
        """Everything on its way is lost; who has fewer rounds is told a by the other, and both forget the rest."""
        for way in self.on_way:
            way.clear()
        knows = max((0, 1), key=lambda k: self.links[k].closed)
        asks = 1 - knows
        question = self.accounts.ask(self.links[asks], 0.0)
        self.pairing.forget(self.pairs[knows], self.links[knows])
        self.pairing.stand(self.pairs[knows])
        reply = self.pairing.reply(self.links[knows], question, 0)
        self.x[asks] = self.x[asks] + self.pairing.settle(self.pairs[asks], self.links[asks], reply)
        assert torch.equal(self.links[0].told, self.links[1].told)

    def end(self) -> list[torch.Tensor]:
        """Both send what is left, and all comes; the end of each."""
        for who in (0, 1):
            key = Key(0, who, self.steps)
            left = self.pairing.code_last(self.links[who], self.x[who], key, self.links[who].closed)
            numbers = (0.0, float(self.links[who].number), float(self.links[who].closed))
            self.on_way[who].append(Message("last", 0, left, numbers))
            self.pairing.hear_last(self.pairs[who].mine, self.on_way[who][-1])
        for who in (0, 1):
            while self.on_way[who]:
                self.deliver(who)
        return [self.pairing.end(*it, self.momentum) for it in zip(self.pairs, self.links, strict=True)]

    def kept(self) -> torch.Tensor:
        """The mean of both x, where they have heard of the same; else of who has not what it will be."""
        newest = max(self.links, key=lambda link: link.closed)
        kept = torch.zeros_like(self.made)
        for x, link in zip(self.x, self.links, strict=True):
            kept += x / 2
            if link.closed < newest.closed:
                kept += (newest.told - link.told) / 2
                for part in (link.sent, link.behind)[: newest.closed - link.closed]:
                    kept -= part / 2
        return kept - self.accounts.start - self.made


@pytest.mark.parametrize(("times", "momentum"), [(1.0, 0.0), (1.4, 0.0), (1.0, 0.6)])
@pytest.mark.parametrize("error", [0.0, "auto"])
@given(events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1)), max_size=60))
def test_nothing_is_lost_and_both_know_the_same(
    error: float | Literal["auto"], times: float, momentum: float, events: list[tuple[str, int]]
) -> None:
    two = Two(error, times, momentum)
    for event, who in events:
        getattr(two, event)(who)
        assert float(two.kept().abs().max()) < 1e-4, (event, who)
    ends = two.end()
    assert torch.equal(*ends), "to the bit, without anybody having said it"
    if times == 1.0 and not momentum:
        away = ends[0] - two.accounts.start - two.made
        assert float(away.square().mean()) <= 0.002 * float(two.made.square().mean()) + 1e-8
