"""A link's accounts: the kept sum stays what members added, in whatever order things happen and get lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import quadratic_task

from testbed.codecs.base import Key
from testbed.message import Message
from testbed.roles.attendance import BACK, CATCH_UP
from testbed.roles.roles import Roles
from testbed.systems.concord import Concord, ConcordOptions

EVENTS = ["step", "send", "behind", "last", "serve", "answer", "mean", "take", "ask", "lost"]


class OneLink:
    """A member, a server, and messages on their way, in order each way."""

    def __init__(self, error: float | Literal["auto"], times: float = 1.0, momentum: float = 0.0) -> None:
        """`error` "auto": every other round is coded coarsely, and two of three answers are."""
        self.times, self.momentum = times, momentum
        options = ConcordOptions(error=error, end_error=0.0)
        self.accounts = Concord(quadratic_task(Roles(("a",), 1, "a", "tree"), 9), options).accounts
        self.books, self.member = self.accounts.books(1), self.accounts.member()
        self.x, self.made = self.accounts.start.clone(), torch.zeros_like(self.accounts.start)
        self.velocity = torch.zeros_like(self.x)
        self.up: deque[Message] = deque()
        self.down: deque[Message] = deque()
        self.put_by: deque[Message] = deque()
        self.beyond = torch.zeros_like(self.x)
        self.over = torch.zeros_like(self.x)  # what the latest closed round added beyond what was made
        self.owed = self.closing = False
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        made = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(self.steps))
        self.x, self.made = self.x + made, self.made + made

    def send(self) -> None:
        if not (self.member.waiting or self.closing):
            self._begin()

    def behind(self) -> None:
        """A second round before the first is answered."""
        if self.member.is_under_way and not (self.member.asking or self.closing or len(self.member.behind)):
            self._begin()

    def _begin(self) -> None:
        self.member.coarse = bool(self.steps % 2)
        self._told(self.accounts.send(self.member, self.x, Key(0, 0, self.steps), self.times), "difference")

    def last(self) -> None:
        """Every other time before the steps of a rest are over."""
        if not (self.member.asking or self.closing or len(self.member.behind)):
            settled, self.beyond = self.member.closed, (self.times - 1) * self.member.sent
            if settled and self.steps % 2:
                settled, self.beyond = settled - 1, self.beyond + self.over
            self._told(self.accounts.send_last(self.member, self.x, Key(0, 0, self.steps), settled), "last")
            self.closing = True

    def _told(self, buffers: Sequence, kind: str) -> None:
        self.up.append(Message(kind, 0, buffers, (0.0, float(self.member.number))))

    def ask(self) -> None:
        """What it does when it was dead, or its server was."""
        self.up.append(self.accounts.ask(self.member, 0.0))

    def lost(self) -> None:
        """One of both dies and is back."""
        self.up.clear()
        self.down.clear()
        self.put_by.clear()
        self.owed = False
        self.ask()

    def serve(self) -> None:
        if not self.up:
            return
        message = self.up.popleft()
        if message.kind == BACK:
            self.put_by.clear()
            self.owed = False
            self.down.append(self.accounts.reply(self.books, 0, message, 0))
            return
        if not self.accounts.follows(self.books, 0, message, len(self.put_by)):
            return
        if self.owed and message.kind != "last":
            self.put_by.append(message)
            return
        while self.put_by and message.kind == "last":
            self._count(self.put_by.popleft())
        self._count(message)

    def _count(self, message: Message) -> None:
        before = self.books.total.clone()
        self.accounts.count(self.books, 0, message, message.kind == "last")
        if message.kind != "last":  # z has what was told; once is what was made
            self.made = self.made + (1 - 1 / self.times) * (self.books.total - before)
        else:  # and no more of a round that is still under way
            self.made = self.made - self.beyond
        self.owed = message.kind != "last"

    def answer(self) -> None:
        if self.owed:
            if self.momentum:  # z goes on as Nesterov's does: by m (m v + what was added)
                self.velocity = self.momentum * self.velocity + self.books.parts
                self.made = self.made + self.momentum * self.velocity
                self.accounts.go_on(self.books, [0], self.momentum)
            [(_, buffers)] = self.accounts.answer(self.books, [0], Key(0, 1, self.steps), bool(self.steps % 3))
            self.down.append(Message("answer", 0, buffers))
            self.owed = False
            if self.put_by:
                self._count(self.put_by.popleft())

    def mean(self) -> None:
        """Where the last has been counted."""
        if self.closing and self.books.counted[0] == self.member.number and not self.up:
            self.down.append(Message("mean", 0, self.accounts.close(self.books, [0], Key(0, 1, self.steps))))

    def take(self) -> None:
        if not self.down:
            return
        message = self.down.popleft()
        match message.kind:
            case "answer":
                self.over = (self.times - 1) * self.member.sent
                self.x = self.x + self.accounts.take(self.member, message)
            case "mean":
                made_since = self.x - self.member.told - self.member.sent
                made_since = made_since - self.member.behind if len(self.member.behind) else made_since
                self.x = self.accounts.take_mean(self.member, message) + made_since
                self.over = torch.zeros_like(self.x)
                self.closing = False
            case kind:
                assert kind == CATCH_UP
                self.over = torch.zeros_like(self.x)
                self.x = self.x + self.accounts.settle(self.member, message)
                self.closing = self.closing and self.member.waiting

    def kept(self) -> torch.Tensor:
        """z + x - a, less what has been counted of rounds that are under way."""
        x, counted = self.x - self.member.told, self.books.counted[0] - self.member.closed
        if counted >= 1:
            x = x - self.member.sent
        if counted >= 2:
            x = x - self.member.behind
        return self.books.total + x - self.accounts.start - self.made


@pytest.mark.parametrize(("times", "momentum"), [(1.0, 0.0), (1.4, 0.0), (1.0, 0.6)])
@pytest.mark.parametrize("error", [0.0, "auto"])
@given(st.lists(st.sampled_from(EVENTS), max_size=60))
def test_nothing_is_lost_and_all_counts_as_often_as_it_should(
    error: float | Literal["auto"], times: float, momentum: float, events: list[str]
) -> None:
    link = OneLink(error, times, momentum)
    for event in events:
        getattr(link, event)()
        assert float(link.kept().abs().max()) < 1e-4, event


def test_a_momentum_ends_with_the_late_rounds_that_it_is_of() -> None:
    link = OneLink(0.0)
    link.books.parts = torch.ones_like(link.x)
    link.accounts.go_on(link.books, [0], 0.5)
    link.accounts.forget_velocity(link.books)
    before = link.books.total.clone()
    link.accounts.go_on(link.books, [0], 0.5)
    torch.testing.assert_close(link.books.total - before, 0.5 * link.books.parts)


def test_a_reply_that_is_lost_takes_nothing_with_it() -> None:
    """A round that never arrived stays in x, however often its member has to ask."""
    link = OneLink(0.25)
    for event in ("step", "send", "lost", "serve", "lost", "serve", "take"):
        getattr(link, event)()
    assert not link.member.waiting and link.books.counted == [0]
    torch.testing.assert_close(link.x - link.accounts.start, link.made)
