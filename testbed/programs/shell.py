"""`testbed shell`: a prompt in front of a WAN that is up, like Mininet's: run things on hosts, change and cut links."""

from __future__ import annotations

import cmd
import math
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock, Timer, current_thread
from types import FrameType

from testbed.errors import InputError, TestbedError
from testbed.message import PAYLOAD_PER_WIRE
from testbed.programs import terminal
from testbed.programs.crew import Crew
from testbed.programs.hosts import one_of
from testbed.programs.run import LOGS, finish
from testbed.programs.wan import Asked, Wan, up
from testbed.record.events import Capacity, Cut, Mark
from testbed.wan.plan import label

HELP = """\
HOST                      open a shell on a host
HOST COMMAND...           run a command on it; with & at its end, beside the prompt (output: logs/HOST.log)
hosts                     the hosts and their addresses
links [SECONDS]           each WAN link: its rate, and what crosses it now, measured for a second or so many
rate LINK MBIT            change a link's rate; LINK is A>B for one direction, A=B for both
delay LINK MS             change a link's one-way delay
cut LINK [SECONDS]        let nothing pass any more, or not for so long; `cut LINK` of a region alone: all its links
heal [LINK]               let all pass again
mark TEXT                 write a mark into the record
sleep SECONDS             wait so long, on the network's clock
help, exit                this text; take the network down (Ctrl-D does so, too)"""
MEASURED_S = 1.0
GOODPUT = 8e-6 * PAYLOAD_PER_WIRE  # Mbit of a byte on the wire


def run(asked: Asked, folder: Path, say: Callable[[str], None]) -> int:
    """Bring the network up, inside a sandbox, and take commands from standard input until it ends.

    Returns
    -------
    0; where the commands come from a file or a pipe, the status of the first that failed.

    Raises
    ------
    NetworkError
        The network is not what the profile says.
    """
    with up(asked, "shell", folder, say) as wan:
        logs = folder / LOGS
        logs.mkdir()
        crew = Crew(logs)
        prompt = Prompt(wan, crew, say)
        try:
            with _interruptible():
                prompt.cmdloop()
        finally:
            prompt.call_off()
            finish(wan, crew)
            wan.info.status = prompt.status
    return wan.info.status


class Prompt(cmd.Cmd):
    """The commands of `HELP`."""

    def __init__(self, wan: Wan, crew: Crew, say: Callable[[str], None]) -> None:
        super().__init__()
        self.status = 0
        self._wan, self._crew, self._say = wan, crew, say
        self._asks = sys.stdin.isatty()
        self._cut: set[tuple[str, str]] = set()
        self._changing = RLock()  # of what is cut, and of the timers that are to heal it
        self._timers: dict[tuple[str, str], Timer] = {}
        self.prompt = f"{wan.info.profile}> " if self._asks else ""
        self.use_rawinput = self._asks
        self.intro = "`help` lists the commands." if self._asks else None

    def cmdloop(self, intro: str | None = None) -> None:
        """Take commands; Ctrl-C leaves the line that was begun, and the prompt stays."""
        while True:
            try:
                return super().cmdloop(intro)
            except KeyboardInterrupt:
                if not self._asks:
                    self.status = 128 + signal.SIGINT
                    return None
                print()
                self.intro = None

    def onecmd(self, line: str) -> bool:
        """One command; what is wrong with it is one line."""
        line = line.strip()
        if self._wan.failure is not None:  # said when the network comes down
            return True
        if not line or line.startswith("#"):
            return False
        if line == "EOF":
            if self._asks:
                print()
            return True
        try:
            words = shlex.split(line)
            handler = getattr(self, f"do_{words[0]}", None)
            if handler is not None:
                return bool(handler(" ".join(words[1:]) if words[0] == "mark" else words[1:]))
            self._on_host(words)
        except (TestbedError, ValueError) as error:
            self._fail(error.exit_code if isinstance(error, TestbedError) else 2, str(error))
        return False

    def completenames(self, text: str, *_: object) -> list[str]:
        """Commands and hosts that begin so."""
        known = [name.removeprefix("do_") for name in self.get_names() if name.startswith("do_")]
        return [name for name in [*known, *map(label, self._wan.info.hosts)] if name.startswith(text)]

    def do_help(self, _: object) -> None:
        print(HELP)

    def do_exit(self, _: object) -> bool:
        return True

    do_quit = do_exit

    def do_hosts(self, _: object) -> None:
        for host, address in self._wan.info.hosts.items():
            print(f"{label(host):24} {address}")

    def do_links(self, words: list[str]) -> None:
        for_s = _number(words[0], "seconds", 0.1, 3600) if words else MEASURED_S
        network = self._wan.network
        before, began_s = network.counters(), time.monotonic()
        time.sleep(for_s)
        after, took_s = network.counters(), (time.monotonic() - began_s) / network.dilation
        print(f"{'link':32} {'Mbit/s':>9} {'now':>9} {'of it':>6} {'ms':>7} {'sent MB':>9} {'drops':>6}")
        for name, link in network.links().items():
            now = GOODPUT * (after[name].wire_bytes - before[name].wire_bytes) / took_s
            state = "  cut" if tuple(name.split(">")) in self._cut else ""
            rates = f"{link.goodput_mbit:9.4g} {now:9.3g} {now / link.goodput_mbit:6.0%} {1e3 * link.delay_s:7.4g}"
            print(f"{name:32} {rates} {after[name].wire_bytes / 1e6:9.3f} {after[name].drops:6}{state}")

    def do_rate(self, words: list[str]) -> None:
        links, mbit = self._links_and_number(words, "rate LINK MBIT", "Mbit/s", 1e-3, 1e6)
        for src, dst in links:
            self._wan.network.set_rate(src, dst, mbit)
            self._wan.recorder.record(Capacity(time_s=self._wan.now_s(), link=f"{src}>{dst}", goodput_mbit=mbit))
        self._say_limits(links)

    def do_delay(self, words: list[str]) -> None:
        links, delay_ms = self._links_and_number(words, "delay LINK MS", "ms", 0, 60_000)
        for src, dst in links:
            network = self._wan.network
            network.set_delay(src, dst, delay_ms / 1e3)
            rate = network.links()[f"{src}>{dst}"].goodput_mbit
            self._wan.recorder.record(
                Capacity(time_s=self._wan.now_s(), link=f"{src}>{dst}", goodput_mbit=rate, rtt_ms=2 * delay_ms)
            )
        self._say_limits(dict.fromkeys(pair for link in links for pair in (link, link[::-1])))

    def do_cut(self, words: list[str]) -> None:
        if len(words) not in (1, 2):
            raise InputError("cut: it is `cut LINK [SECONDS]`")
        links = self._links(words[0])
        for_s = _number(words[1], "seconds", 0, 86_400) if words[1:] else math.inf
        self._set(links, cut=True)
        if for_s < math.inf:
            self._heal_later(links, for_s * self._wan.network.dilation)

    def do_heal(self, words: list[str]) -> None:
        self._set(self._links(words[0]) if words else sorted(self._cut), cut=False)

    def do_mark(self, text: str) -> None:
        self._wan.recorder.record(Mark(time_s=self._wan.now_s(), text=text))

    def do_sleep(self, words: list[str]) -> None:
        time.sleep(_number(words[0] if words else "", "seconds", 0, 86_400) * self._wan.network.dilation)

    def _on_host(self, words: list[str]) -> None:
        host = one_of(self._wan.network.plan, words[0], "no command of this prompt, see `help`")
        command, there = words[1:] or ["bash"], self._wan.network.hosts[host]
        beside = command[-1].endswith("&")
        if beside:
            command = [*command[:-1], *([command[-1][:-1]] if command[-1] != "&" else [])]
            if not command:
                raise InputError(f"{words[0]} &: a command is missing")
            member = self._crew.start(host, there.netns_pid, command, self._wan.told(host), service=True)
            self._wan.info.programs[member.name] = command
            return
        status = terminal.run(there, command, self._wan.told(host))
        if status and words[1:]:
            self._fail(status, f"{' '.join(command)} ended with {status}")

    def _fail(self, status: int, words: str) -> None:
        self._say(words)
        self.status = self.status or (0 if self._asks else status)

    def _links(self, text: str) -> list[tuple[str, str]]:
        """The directed WAN links that "a>b", "a=b" or a region's name mean."""
        network = self._wan.network
        found = re.fullmatch(r"([^>=]+)([>=])([^>=]+)", text)
        if found:
            one, sign, other = found.groups()
            pairs = [(one, other)] if sign == ">" else [(one, other), (other, one)]
        else:
            pairs = [pair for pair in network.plan.wan if text in pair]
        wrong = [f"{a}>{b}" for a, b in pairs if (a, b) not in network.plan.wan]
        if wrong or not pairs:
            raise InputError(f"no link {wrong[0] if wrong else text}; `links` lists them")
        return pairs

    def _links_and_number(
        self, words: list[str], usage: str, unit: str, least: float, most: float
    ) -> tuple[list[tuple[str, str]], float]:
        if len(words) != 2:
            raise InputError(f"it is `{usage}`")
        return self._links(words[0]), _number(words[1], unit, least, most)

    def _say_limits(self, links: Iterable[tuple[str, str]]) -> None:
        """Say which links a connection cannot fill: hosts' windows stay as they were made, whatever is set here."""
        network = self._wan.network
        for src, dst in links:
            most, made = network.connection_mbit(src, dst), network.plan.widest[src, dst].scaled(1 / network.dilation)
            if most < network.links()[f"{src}>{dst}"].goodput_mbit:
                made_for = (
                    f"its window was made for {made.goodput_mbit:.4g} Mbit/s and a round trip of {made.rtt_ms:.4g} ms"
                )
                self._say(f"{src}>{dst}: a connection gets at most {most:.3g} Mbit/s; {made_for}")

    def _set(self, links: list[tuple[str, str]], cut: bool) -> None:
        """Cut links or heal them; what was to heal one later is called off."""
        with self._changing:
            for link in links:
                if (timer := self._timers.pop(link, None)) is not None:
                    timer.cancel()
                if (link in self._cut) == cut:
                    continue
                (self._wan.network.cut if cut else self._wan.network.heal)(*link)
                (self._cut.add if cut else self._cut.discard)(link)
                self._wan.recorder.record(Cut(time_s=self._wan.now_s(), link=">".join(link), healed=not cut))

    def _heal_later(self, links: list[tuple[str, str]], real_s: float) -> None:
        with self._changing:
            for link in links:
                self._timers[link] = timer = Timer(real_s, self._healed_by, (link,))
                timer.daemon = True
                timer.start()

    def _healed_by(self, link: tuple[str, str]) -> None:
        """What a timer does, unless it was called off as it rang."""
        with self._changing:
            if self._timers.get(link) is current_thread():
                self._set([link], cut=False)

    def call_off(self) -> None:
        """Let nothing heal any more: the network is about to go."""
        with self._changing:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()


def _number(text: str, unit: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InputError(f"'{text}' is no number of {unit} from {least:g} to {most:g}")
    return value


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends what is being done; a request to end (SIGTERM, a closed terminal) ends the prompt as Ctrl-D does."""

    def end(number: int, _: FrameType | None) -> None:
        raise EOFError

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except EOFError:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
