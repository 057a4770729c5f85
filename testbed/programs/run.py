"""From a profile and a command to a record: the network is built and checked, the program runs, links are counted."""

from __future__ import annotations

import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from time import monotonic
from types import FrameType
from typing import Any

import msgspec

from testbed.emulation import awake
from testbed.emulation.network import EmulatedNetwork
from testbed.emulation.trace_player import Lateness, TracePlayer
from testbed.errors import NetworkError, TestbedError
from testbed.fidelity import gate
from testbed.files import write_whole
from testbed.message import PAYLOAD_PER_WIRE
from testbed.programs import hosts
from testbed.programs.crew import Crew
from testbed.record import frames, info
from testbed.record.events import LinkBytes
from testbed.record.recorder import Recorder
from testbed.report.numbers.prices import egress_usd
from testbed.report.numbers.wording import NONE, dollars, duration, number, size
from testbed.wan.plan import NetworkPlan
from testbed.wan.trace import Change, Trace

NAMES = Path("/etc/hosts")
INTERVAL_S = 1.0
FACTS = "exec.json"


@dataclass(frozen=True)
class Program:
    """What is to run.

    Parameters
    ----------
    command : of every host
    trace : how the WAN changes meanwhile
    dilation : k; the network is k times slower, and so is its clock
    keep_going : the others go on where one host's program fails
    probed : whether the network is measured before
    """

    command: tuple[str, ...]
    trace: Trace | None = None
    dilation: float = 1.0
    keep_going: bool = False
    probed: bool = True


def run(plan: NetworkPlan, program: Program, folder: Path, say: Callable[[str], None]) -> int:
    """Run a program on the emulated network, inside a sandbox; its exit status, the first failure's.

    `folder` has a log a host, `events.jsonl`, `links.parquet`, `exec.json` and `summary.md` then.

    Raises
    ------
    NetworkError
        The network is not what the profile says.
    InputError
        There is no such command.
    """
    logs = folder / "logs"
    logs.mkdir(parents=True)
    facts: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(program.command),
        "profile": plan.profile.name,
        "dilation": program.dilation,
        "environment": info.environment(),
    }
    with EmulatedNetwork(plan, program.dilation) as network:
        addresses = {name: host.ip for name, host in network.hosts.items()}
        facts |= {"hosts": addresses, "delay_mechanism": network.delay_mechanism}
        say(f"{plan.profile.name}: {len(addresses)} hosts in {len(plan.regions)} regions")
        if program.probed:
            found = gate.check(network)
            facts["gate"] = found.record()
            say(f"every link is as the profile says (measured in {found.took_s:.1f} s)")
        with _resolving(addresses), Recorder(folder) as recorder:
            crew, lateness = Crew(logs), Lateness()
            with (
                awake.kept(),
                _forwarding(crew),
                _metered(network, recorder),
                _following(network, program, recorder, lateness),
            ):
                began_s = monotonic()
                for name, host in network.hosts.items():
                    told = hosts.environment(addresses, name, _gpus())
                    crew.start(name, host.netns_pid, program.command, {**os.environ, **told})
                status = crew.wait(program.keep_going)
                took_s = (monotonic() - began_s) / program.dilation
            facts |= {
                "took_s": round(took_s, 3),
                "status": status,
                "statuses": {name: member.status for name, member in crew.members.items()},
                "delay": network.delay_report() | lateness.report(),
            }
            recorder.finish()
        carried = frames.link_totals(folder) or {}
        facts["wan_bytes"] = {name: carried.get(name, 0) for name in (f"{src}>{dst}" for src, dst in plan.wan)}
    write_whole(folder / FACTS, msgspec.json.format(msgspec.json.encode(facts)).decode() + "\n")
    write_whole(folder / "summary.md", summary(plan, facts))
    return status


def summary(plan: NetworkPlan, facts: Mapping[str, Any]) -> str:
    """What each WAN link carried, in Markdown."""
    from testbed.report.numbers.tables import markdown_table  # imports torch: not before the program runs

    took_s = max(float(facts["took_s"]), 1e-9)
    rows = []
    for (src, dst), link in plan.wan.items():
        name = f"{src}>{dst}"
        nbytes = facts["wan_bytes"][name]
        mbit = 8e-6 * nbytes * PAYLOAD_PER_WIRE / took_s
        usd = egress_usd({name: nbytes})
        rows.append(
            [
                name,
                size(nbytes),
                f"{number(mbit)} Mbit/s",
                f"{100 * mbit / link.goodput_mbit:.1f} %",
                NONE if math.isnan(usd) else dollars(usd),
            ]
        )
    command = " ".join(facts["command"])
    failed = [host for host, status in facts["statuses"].items() if status]
    ended = f"failed on {', '.join(failed)}" if failed else "ended well on all hosts"
    return "\n".join(
        [
            f"# {facts['command'][0]} on {facts['profile']}",
            "",
            f"`{command}` on {len(facts['hosts'])} hosts took {duration(took_s)} and {ended}.",
            "",
            markdown_table(["WAN link", "bytes on the wire", "mean goodput", "of its rate", "egress"], rows),
            "",
        ]
    )


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
def _forwarding(crew: Crew) -> Iterator[None]:
    """Hand a signal on once; the second one of a kind ends what has not listened."""
    came: set[int] = set()

    def hand_on(number: int, _: FrameType | None) -> None:
        crew.signal(signal.SIGKILL if number in came else number)
        came.add(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _metered(network: EmulatedNetwork, recorder: Recorder) -> Iterator[None]:
    """Record what each link carries, second by second of the network's clock, from now until the end."""
    stop, began_s = Flag(), monotonic()
    failures: list[TestbedError] = []

    def meter() -> None:
        before, since_s, number = _sent(network), 0.0, 1
        try:
            while not stop.wait(max(began_s + number * INTERVAL_S * network.dilation - monotonic(), 0.0)):
                before, since_s = _sample(network, recorder, before, since_s, began_s)
                number += 1
            _sample(network, recorder, before, since_s, began_s)
        except TestbedError as error:
            failures.append(error)

    thread = Thread(target=meter, name="meter")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def _sent(network: EmulatedNetwork) -> dict[str, int]:
    return {name: counter.wire_bytes for name, counter in network.counters().items()}


def _sample(
    network: EmulatedNetwork, recorder: Recorder, before: dict[str, int], since_s: float, began_s: float
) -> tuple[dict[str, int], float]:
    totals, now_s = _sent(network), (monotonic() - began_s) / network.dilation
    for link, total in totals.items():
        if total > before[link]:
            event = LinkBytes(time_s=now_s, link=link, interval_s=now_s - since_s, wire_bytes=total - before[link])
            recorder.record(event)
    return totals, now_s


@contextmanager
def _following(network: EmulatedNetwork, program: Program, recorder: Recorder, lateness: Lateness) -> Iterator[None]:
    """Let the WAN follow the program's trace, if it has one, from now on."""
    if program.trace is None:
        yield
        return

    def change(asked: Change) -> None:
        network.set_rate(asked.src, asked.dst, asked.goodput_mbit)
        if asked.delay_s is not None:
            network.set_delay(asked.src, asked.dst, asked.delay_s)

    player = TracePlayer(program.trace, change, -1.0, 0.0, monotonic(), network.dilation)
    try:
        yield
    finally:
        for made in player.stop():
            recorder.record(made)
            lateness.add(made)


def _gpus() -> list[str]:
    """The GPUs of this machine, as CUDA numbers them."""
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is not None:
        return [gpu for gpu in asked.split(",") if gpu]
    return [str(k) for k in range(len(list(Path("/dev").glob("nvidia[0-9]*"))))]
