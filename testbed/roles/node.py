"""What a role sees of the world: peers, compute, time, and where a run can stop.

A role is a coroutine that takes a `Node`. A fabric subclasses `Node` to say how a message travels and how
time passes; everything a training system relies on is decided here, once, for all fabrics:

1. Messages between two roles arrive in the order they were sent.
2. `compute` runs its function at once and without interruption; the role's time passes afterwards. No other
   coroutine of the role runs in between, so roles need no locks.
3. A run proceeds in segments. `steps` ends where the segment does; the role then returns, and `boundary`
   brings it to rest: spawned work ends, a marker goes to every neighbour, and the role stands still once it
   has a marker from each. Channels keep order, so whatever was sent before a marker has arrived with it
   (Chandy and Lamport 1985, with every role stopping): the states are consistent and no message is in flight.
4. The next segment starts the coroutines again from the states, in an uninterrupted run as in a resumed one.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from math import inf
from typing import Any, ParamSpec, SupportsFloat, TypeVar

from testbed.errors import PeerTimeout, ProtocolError
from testbed.message import Message
from testbed.record.events import Event
from testbed.roles.compute import Work
from testbed.roles.ledger import Ledger
from testbed.roles.mailbox import Mailbox, Reader
from testbed.roles.roles import Roles
from testbed.roles.trail import Hops, Parcel, Signal, Trail, extended, trail
from testbed.roles.traits import Fate, Orphaned, Pace, Stepped
from testbed.wan.plan import region_of

T = TypeVar("T")
P = ParamSpec("P")
MARKER = "boundary"
Probe = Callable[[str, int, float, Any], None]  # a role, steps it has completed, when, and its state then
Charge = Work | Callable[[T], Work]  # known before a computation, or from its result


class Node(ABC):
    """One role's view of the run; see the module's rules.

    Attributes
    ----------
    name : the role's host name, e.g. "us-east-1/w0"
    region : "us-east-1"
    lps : a worker's LPS
    roles : who else takes part
    stop_at : the step at which the current segment ends (exclusive)
    at_rest : whether the steps and the background work of the current segment have ended
    ledger : what it does, as the records have it
    pace : how fast it goes, where faults slow or stop it
    fate, mortal : what becomes of it where faults may kill it, and who else they may kill
    patience_s : bound of a wait that names no timeout of its own, seconds on the run's clock; None where the
        fabric notices by itself that nobody can ever answer
    """

    def __init__(self, name: str, roles: Roles, patience_s: float | None) -> None:
        self.name = name
        self.region = region_of(name)
        self.lps = f"{self.region}/lps"
        self.ledger = Ledger(name, self.now, self.record)
        self.join(roles)
        self.patience_s = patience_s
        self.stop_at = 0
        self.at_rest = False
        self.probe: Probe | None = None  # where copies of this role's state go, every `probe_steps` steps
        self.probe_steps = 1
        self.pace: Pace | None = None  # where faults slow or stop this role
        self.fate: Fate | None = None
        self.mortal: frozenset[str] = frozenset()
        self._held: list[tuple[str, Message, Hops]] = []  # what has arrived while it stood still
        self.mailbox = Mailbox(self.neighbours)
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[asyncio.Task[None]] = []
        self._marked: set[str] = set()
        self._failure: asyncio.Future[None]

    def join(self, roles: Roles) -> None:
        """Take part in a run of `roles`, which may join this role to some of its neighbours only."""
        self.roles = roles
        self.neighbours = roles.neighbours(self.name)
        self._far = {peer for peer in self.neighbours if region_of(peer) != self.region}
        self.ledger.begin(self.neighbours)

    # What a fabric decides

    @abstractmethod
    def now(self) -> float:
        """Seconds on the run's clock."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let `seconds` of the run's clock pass."""

    @abstractmethod
    async def _transmit(self, peer: str, parcel: Parcel) -> None:
        """Hand a message and its stamp to the transport; returns once it has been taken (queues are bounded)."""

    @abstractmethod
    async def compute(self, work: Charge[T], fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run real math, then let the time it costs pass: as measured, or as a modelled device takes for `work`.

        What a codec costs depends on the size of the message that it makes: `work` may be a function of the result.
        """

    @abstractmethod
    def record(self, event: Event) -> None:
        """Write one event to the run's records."""

    @abstractmethod
    def timeout(self, seconds: float) -> asyncio.Timeout:
        """`async with node.timeout(s)`: raise TimeoutError inside when `seconds` of the run's clock have passed."""

    @abstractmethod
    def call_later(self, seconds: float, fn: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `fn` when `seconds` of the run's clock have passed, unless the handle is cancelled before."""

    # The neighbours by what they are

    @property
    def server(self) -> str:
        """A worker's LPS (flat: the global server); an LPS's global server."""
        server = self.roles.server_of(self.name)
        assert server is not None, f"{self.name} has no server"
        return server

    @property
    def clients(self) -> tuple[str, ...]:
        """Whose server this role is: an LPS's workers, the global server's LPSs (flat: all workers)."""
        return self.roles.clients_of(self.name)

    @property
    def workers(self) -> tuple[str, ...]:
        """An LPS's workers."""
        return self.roles.workers_of(self.region)

    @property
    def lpss(self) -> tuple[str, ...]:
        return self.roles.lpss

    @property
    def global_server(self) -> str:
        return self.roles.global_server

    # Messages

    async def send(self, peer: str, message: Message) -> None:
        """Send a message; returns once the transport has taken it, which its bounded queue may delay."""
        self.ledger.sent(peer, message)
        await self._transmit(peer, (message, (self.now(), trail.get().hops)))

    def arrived(self, peer: str, parcel: Parcel) -> None:
        """A fabric hands in what has come from `peer` at this moment."""
        message, stamp = parcel
        if self.fate is not None and not self.fate.takes(peer, message):
            return
        self.ledger.arrived(peer, message, stamp[0])
        now_s = self.now()
        hops = extended(stamp, now_s, peer in self._far)
        if self.pace is not None and (self._held or self.pace.awake_s(now_s) > now_s):
            if not self._held:
                self.call_later(self.pace.awake_s(now_s) - now_s, self._take_held)
            self._held.append((peer, message, hops))
            return
        self.mailbox.deliver(peer, message, hops)

    def forget(self) -> None:
        """Lose what has arrived."""
        self._held.clear()
        for queue in self.mailbox.queues.values():
            queue.clear()

    def _take_held(self) -> None:
        held, self._held = self._held, []
        for peer, message, hops in held:
            self.mailbox.deliver(peer, message, hops)

    def lasting(self, seconds: float, since_s: float) -> float:
        """How long a computation takes that began at `since_s` and takes `seconds` where nothing slows this role."""
        return seconds if self.pace is None else self.pace.done_s(since_s, seconds) - since_s

    def awake(self, seconds: float) -> float:
        """In how many seconds this role does what it is to do in `seconds`: later where it stands still then."""
        return seconds if self.pace is None else self.pace.awake_s(self.now() + seconds) - self.now()

    async def recv(self, peer: str, timeout: float | None = None) -> Message:
        """The next message from `peer`.

        Raises
        ------
        PeerTimeout
            Nothing came within `timeout` seconds (`patience_s` when None).
        PeerLost
            The connection is gone.
        """
        message = self.mailbox.take(peer)
        if message is None:
            return (await self.recv_any((peer,), timeout))[1]
        self.refuse_marker(peer, message)
        return message

    async def recv_any(self, peers: Sequence[str], timeout: float | None = None) -> tuple[str, Message]:
        """The next message from any of `peers`, and whose it is. Raises as `recv` does."""
        reader = self.mailbox.open(peers)
        try:
            peer, message = await self.take(reader, self._deadline(timeout))
        finally:
            reader.close()
        self.refuse_marker(peer, message)
        return peer, message

    def refuse_marker(self, peer: str, message: Message) -> None:
        """Raise ProtocolError where a message says that a segment has ended which this role is still in."""
        if message.kind == MARKER:
            raise ProtocolError(f"{self.name} waits for a message of {peer}, whose segment has ended")

    async def gather(self, peers: Sequence[str], timeout: float | None = None) -> AsyncIterator[tuple[str, Message]]:
        """One message from each of `peers`, in order of arrival. Raises as `recv` does."""
        reader = self.mailbox.open(peers)
        deadline = self._deadline(timeout)
        try:
            while reader.peers:
                peer, message = await self.take(reader, deadline)
                self.refuse_marker(peer, message)
                reader.drop(peer)
                yield peer, message
        finally:
            reader.close()

    async def collect(self, peers: Sequence[str], timeout: float | None = None) -> list[Message]:
        """One message from each of `peers`, in the order of `peers` (so that sums do not depend on arrival)."""
        arrived = {peer: message async for peer, message in self.gather(peers, timeout)}
        return [arrived[peer] for peer in peers]

    async def broadcast(self, peers: Iterable[str], message: Message) -> None:
        """Send the same message to each of `peers`."""
        for peer in peers:
            await self.send(peer, message)

    async def serve(
        self, peers: Sequence[str], busy: Callable[[], bool] = lambda: False
    ) -> AsyncIterator[tuple[str, Message]]:
        """All that comes from `peers`, in order of arrival.

        Ends once each of them has reached the end of the segment and this role is no longer `busy` (it waits
        for an answer from one of them, who answers even then if it serves, too). `busy` is asked after every
        message and when this role's own steps and background work have ended (`at_rest`).
        """
        reader = self.mailbox.open(peers)
        ended: set[str] = set()
        since_s: float | None = None  # when the wait for the next message began
        try:
            while len(ended) < len(peers) or busy():
                if not reader.ready:
                    since_s = self.now() if since_s is None else since_s
                    await reader.change()
                    continue
                peer, message, hops = reader.take()
                if since_s is not None:
                    trail.get().follow(hops, since_s)
                    since_s = None
                if message.kind == MARKER:
                    ended.add(peer)
                    self._marked.add(peer)
                else:
                    yield peer, message
        finally:
            reader.close()

    def all_ended(self, peers: Iterable[str]) -> bool:
        """Whether each of `peers`, which this role serves, has reached the end of the segment."""
        return self._marked.issuperset(peers)

    def note_marker(self, peer: str) -> None:
        """A marker of `peer` has been taken in the midst of a segment."""
        self._marked.add(peer)

    async def wait(self, event: asyncio.Event, what: str) -> None:
        """Wait for something another coroutine of this role will set; PeerTimeout after `patience_s`.

        The wait counts as one for links if the event is a `Signal`, which stands for a message.
        """
        if event.is_set():
            return
        since_s = self.now()
        try:
            async with nullcontext() if self.patience_s is None else self.timeout(self.patience_s):
                await event.wait()
        except TimeoutError:
            raise PeerTimeout(f"{self.name} waited {self.patience_s:g} s for {what}") from None
        if isinstance(event, Signal):
            trail.get().follow(event.hops, since_s)

    def _deadline(self, timeout: float | None) -> float | None:
        bound = self.patience_s if timeout is None else timeout
        return None if bound in (None, inf) else self.now() + bound

    async def take(self, reader: Reader, deadline: float | None) -> tuple[str, Message]:
        """What comes next to `reader`, and whose it is; PeerTimeout when nothing has by `deadline`."""
        if reader.ready:
            peer, message, _ = reader.take()
            return peer, message
        since_s = self.now()
        if deadline is None or deadline == inf:  # the common case, without a timer
            await reader.wait()
        else:
            await self._wait_until(reader, deadline)
        peer, message, hops = reader.take()
        trail.get().follow(hops, since_s)
        return peer, message

    async def _wait_until(self, reader: Reader, deadline: float) -> None:
        try:
            async with self.timeout(deadline - self.now()):
                await reader.wait()
        except TimeoutError:
            peers = ", ".join(reader.peers)
            raise PeerTimeout(f"{self.name} had no message from {peers} in time") from None

    # Steps, background work, segments

    async def steps(self, state: Stepped) -> AsyncIterator[int]:
        """The steps of this segment; `state.step` counts those completed."""
        while state.step < self.stop_at:
            if state.step == 0:
                self._probe(state)
            self.ledger.step(state.step)
            yield state.step
            state.step += 1
            self._probe(state)

    def skip_to(self, step: int, state: Stepped) -> None:
        """Count steps until `step` that were not made; where the model is wanted meanwhile, it is as now."""
        while state.step < step:
            state.step += 1
            self._probe(state)

    def _probe(self, state: Stepped) -> None:
        """Hand in a copy of the state where it is wanted to see how good the model is; no time passes."""
        if self.probe is not None and state.step % self.probe_steps == 0:
            self.probe(self.name, state.step, self.now(), copy.deepcopy(state))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in the background of this role; it must end by itself and is waited for at the boundary."""
        self._tasks.append(self._start(work))

    def spawn_server(self, work: Coroutine[Any, Any, None]) -> None:
        """Like `spawn`, for a loop over `serve`, which ends when the neighbours' segments do."""
        self._servers.append(self._start(work))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        context = copy_context()
        context.run(trail.set, Trail(trail.get().hops))
        task = asyncio.get_running_loop().create_task(work, context=context)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        """A background task that failed ends the role: nobody would ever take its exception."""
        if task in self._tasks:
            self._tasks.remove(task)
        if not task.cancelled() and task.exception() is not None and not self._failure.done():
            self._failure.set_exception(task.exception())  # type: ignore[arg-type]

    def step_done(self, step: int, loss: SupportsFloat) -> None:
        """Record that this worker has finished `step` with its local training loss, and where its time went.

        A loss on a device is read later, with others (`testbed.record.held`).

        Raises
        ------
        ProtocolError
            `loss` is no number.
        """
        if not isinstance(loss, SupportsFloat):
            raise ProtocolError(f"node.step_done({step}, {loss!r}): a loss is a number, as a learner returns it")
        self.ledger.step_done(step, loss, *trail.get().take())

    async def play(self, role: Coroutine[Any, Any, None], stop_at: int) -> None:
        """Run one segment of `role`, background work included, and come to rest (rule 3)."""
        self.stop_at = stop_at
        self.at_rest = False
        self._marked.clear()
        self._failure = asyncio.get_running_loop().create_future()
        main = asyncio.get_running_loop().create_task(self._segment(role))
        try:
            done, _ = await asyncio.wait({main, self._failure}, return_when=asyncio.FIRST_COMPLETED)
            for finished in done:
                finished.result()
            self.ledger.record_sent()
        finally:
            self._failure.cancel()
            for task in (main, *self._tasks, *self._servers):
                task.cancel()
            if inspect.getcoroutinestate(role) == inspect.CORO_CREATED:
                role.close()  # stopped before its first step: it is not to be waited for any more
            self._tasks, self._servers = [], []

    async def _segment(self, role: Coroutine[Any, Any, None]) -> None:
        trail.set(Trail())
        try:
            with suppress(Orphaned):
                await role
        except SystemExit as error:  # it would end the event loop, which other roles may share
            raise ProtocolError(f"it called exit({error.code}); a role is over when it returns") from error
        while self._tasks:
            await self._tasks.pop(0)  # not left there: one that has just ended would be awaited for ever
        self.at_rest = True
        self.mailbox.poke()
        marker = Message(MARKER, self.stop_at)
        await self.broadcast(self.neighbours, marker)
        for task in list(self._servers):
            await task
        for peer in self.neighbours:
            if peer not in self._marked:
                await self._take_marker(peer)
        if left := [peer for peer, queue in self.mailbox.queues.items() if queue]:
            raise ProtocolError(f"{self.name} left a message of {left[0]} unread at step {self.stop_at}")

    async def _take_marker(self, peer: str) -> None:
        reader = self.mailbox.open((peer,))
        try:
            _, message = await self.take(reader, self._deadline(None))
        finally:
            reader.close()
        if message.kind != MARKER:
            raise ProtocolError(f"{self.name} left a message '{message.kind}' of {peer} unread")
