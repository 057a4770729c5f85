"""The emulated WAN for programs of anybody's: built, checked, its hosts' names known, what its links carry recorded."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from time import monotonic

from testbed.emulation import awake
from testbed.emulation.network import EmulatedNetwork
from testbed.emulation.trace_player import Lateness, TracePlayer
from testbed.errors import NetworkError, TestbedError
from testbed.faults import Break, Schedule
from testbed.fidelity import gate
from testbed.programs import hosts, marks
from testbed.programs.publish import Published, published
from testbed.record import frames, info, program
from testbed.record.events import LinkBytes, Reset
from testbed.record.program import ProgramInfo
from testbed.record.recorder import Recorder
from testbed.wan.plan import NetworkPlan

NAMES = Path("/etc/hosts")
INTERVAL_S = 1.0


@dataclass(frozen=True)
class Asked:
    """The network that a program is to have.

    Parameters
    ----------
    schedule : how the WAN changes meanwhile
    dilation : k; the network is k times slower, and so is its clock
    probed : whether it is measured before
    ports : of hosts, that are reachable from the machine
    command : line that asked for it, kept in the record
    """

    plan: NetworkPlan
    schedule: Schedule | None = None
    dilation: float = 1.0
    probed: bool = True
    ports: Sequence[Published] = ()
    command: Sequence[str] = ()


@dataclass
class Wan:
    """A network that is up; `info` is what its record will say, `folder` where; `failure`: what it has died of."""

    network: EmulatedNetwork
    folder: Path
    recorder: Recorder
    info: ProgramInfo
    began_s: float = field(default_factory=monotonic)  # on the monotonic clock
    failure: Exception | None = None

    def now_s(self) -> float:
        """Seconds on the network's clock since it was given to its programs."""
        return (monotonic() - self.began_s) / self.network.dilation

    def told(self, host: str) -> dict[str, str]:
        """The environment of a program on `host`."""
        addresses = {name: each.ip for name, each in self.network.hosts.items()}
        own = {marks.VARIABLE: str(marks.pipe_of(host))}
        return {**os.environ, **hosts.environment(addresses, host, _gpus()), **own}


@contextmanager
def up(asked: Asked, title: str, folder: Path, say: Callable[[str], None]) -> Iterator[Wan]:
    """Within it the network is there for programs, inside a sandbox; the record is complete when it ends.

    `folder` is new; it has `events.jsonl`, `links.parquet` and `exec.json` then.

    Raises
    ------
    NetworkError
        The network is not what the profile says.
    """
    plan = asked.schedule.on(asked.plan) if asked.schedule else asked.plan
    folder.mkdir(parents=True, exist_ok=True)
    facts = ProgramInfo(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        title=title,
        command=list(asked.command),
        profile=plan.profile.name,
        network={
            f"{a}>{b}": info.LinkInfo(goodput_mbit=k.goodput_mbit, rtt_ms=k.rtt_ms) for (a, b), k in plan.wan.items()
        },
        dilation=asked.dilation,
        environment=info.environment(),
    )
    with EmulatedNetwork(plan, asked.dilation) as network:
        facts.hosts = {name: host.ip for name, host in network.hosts.items()}
        say(f"{plan.profile.name}: {len(facts.hosts)} hosts in {len(plan.regions)} regions")
        facts.gate = _checked(network, say) if asked.probed else {"skipped": True}
        with _resolving(facts.hosts), Recorder(folder) as recorder:
            wan = Wan(network, folder, recorder, facts)
            lateness = Lateness()
            try:
                with _there(wan, asked, lateness):
                    yield wan
            except TestbedError as error:
                facts.error, facts.status = str(error), error.exit_code
                raise
            finally:
                facts.took_s, facts.delay = round(wan.now_s(), 3), lateness.report()
                with suppress(NetworkError):  # a network that has died cannot be asked, and what is known is kept
                    facts.delay = network.delay_report() | facts.delay
                    counted = network.counters()
                    facts.wan_drops = {link: counted[link].drops for link in facts.network}
                facts.checksums = recorder.finish()
                carried = frames.link_totals(folder) or {}
                facts.wan_bytes = {link: carried.get(link, 0) for link in facts.network}
                program.write(folder, facts)


@contextmanager
def _there(wan: Wan, asked: Asked, lateness: Lateness) -> Iterator[None]:
    """All that goes on beside the programs."""
    with ExitStack() as stack:
        stack.enter_context(awake.kept())
        stack.enter_context(published(wan.network, asked.ports))
        stack.enter_context(marks.kept(wan.info.hosts, wan.recorder.record, wan.now_s))
        player = stack.enter_context(_following(wan, asked.schedule, lateness))
        stack.enter_context(_metered(wan, player))
        yield


def _checked(network: EmulatedNetwork, say: Callable[[str], None]) -> dict[str, object]:
    say(f"measuring {len(network.plan.wan)} WAN links before anything starts (--no-gate leaves that out)")
    found = gate.check(network)
    say(f"every link is as the profile says (measured in {found.took_s:.1f} s)")
    return found.record()


@contextmanager
def _resolving(addresses: Mapping[str, str]) -> Iterator[None]:
    """Within it the hosts' names resolve, in this sandbox alone: a file of its own lies over /etc/hosts."""
    own = Path("/run/testbed/hosts")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text((NAMES.read_text() if NAMES.exists() else "127.0.0.1\tlocalhost\n") + hosts.names(addresses))
    done = subprocess.run(["mount", "--bind", str(own), str(NAMES)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkError(f"hosts' names cannot be made known: mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(NAMES)], capture_output=True, check=False)


@contextmanager
def _metered(wan: Wan, player: TracePlayer | None) -> Iterator[None]:
    """Record what each link carries, second by second of the network's clock, from now until the end.

    Where the network has died, or no longer follows its schedule, `wan.failure` says so: nothing would cross it any
    more, and programs without a timeout of their own would wait for ever.
    """
    stop = Flag()

    def meter() -> None:
        before, since_s, number = _sent(wan.network), wan.now_s(), 1
        try:
            while not stop.wait(max(number * INTERVAL_S - wan.now_s(), 0.0) * wan.network.dilation):
                wan.network.watch()
                if player is not None:
                    player.watch()
                before, since_s = _sample(wan, before, since_s)
                number += 1
            _sample(wan, before, since_s)
        except Exception as error:  # told to all who wait for programs
            wan.failure = error

    thread = Thread(target=meter, name="meter")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if wan.failure is not None:
        raise wan.failure


def _sent(network: EmulatedNetwork) -> dict[str, int]:
    return {name: counter.wire_bytes for name, counter in network.counters().items()}


def _sample(wan: Wan, before: dict[str, int], since_s: float) -> tuple[dict[str, int], float]:
    totals, now_s = _sent(wan.network), wan.now_s()
    crossed = {link: n for link, total in totals.items() if (n := total - before[link]) > 0}
    if crossed:
        wan.recorder.record(LinkBytes(time_s=now_s, interval_s=now_s - since_s, wire_bytes=crossed))
    return totals, now_s


@contextmanager
def _following(wan: Wan, schedule: Schedule | None, lateness: Lateness) -> Iterator[TracePlayer | None]:
    """Let the WAN follow a schedule, if there is one, from now on."""
    if schedule is None:
        yield None
        return

    def reset(change: Break) -> None:
        wan.network.reset(change.one, change.other)
        wan.recorder.record(Reset(time_s=wan.now_s(), link=change.link))

    player = TracePlayer(schedule, wan.network.change, -1.0, 0.0, monotonic(), wan.network.dilation, reset)
    try:
        yield player
    finally:
        for made in player.stop():
            wan.recorder.record(made)
            lateness.add(made)


def _gpus() -> list[str]:
    """The GPUs of this machine, as CUDA numbers them."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is not None:
        return [gpu for gpu in asked.split(",") if gpu]
    return [str(k) for k in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
