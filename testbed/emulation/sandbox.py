"""Running a command in namespaces of its own, as root or as an ordinary user; nothing outlives it.

Theory of operation
1. The supervisor (the process that calls `run`) starts `unshare`, which makes the namespaces - user (unless it is
   root already), network, mount, host name, process - and in them process 1 (`init.py`), which runs the command.
2. The command stands in a session of its own, so a terminal's Ctrl-C reaches only the supervisor. The supervisor
   hands each signal to process 1 through a pipe, and process 1 to the command: it arrives once.
3. Everything hangs on process 1: when it ends, the kernel kills all other processes in the sandbox and frees the
   namespaces with every interface and mount in them. It ends with the command, when `unshare` dies
   (`--kill-child`), and at the end of the pipe, which is how even `kill -9` of the supervisor is noticed.
4. The host is never changed: the sysctls set inside are those of the new namespaces. What is needed for the length of
   a run lies in the sandbox's own /run (`scratch`), which goes with it.
5. Process 1 has seen how the others ended, and tells the supervisor through a second pipe. A command that was killed is
   named, and so is process 1 itself, whose word is then missing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from testbed.emulation.init import PASSED_ON
from testbed.errors import NetworkError

HERE = Path(__file__).resolve().parent
MARK = "TESTBED_SANDBOX"  # holds the identity of the process namespace that `init.py` made
PROBE_TIMEOUT_S = 20.0
NOT_MADE = 125  # exit status where there is no sandbox
USAGE = """usage: python -m testbed.emulation.sandbox COMMAND...

Run a command as root of namespaces of its own: whatever it does to networks and processes ends with it.
example: python -m testbed.emulation.sandbox ip link"""
SCRATCH = Path("/run/testbed")  # in the sandbox's own /run, which lies in memory
COMMAND, PROCESS_1 = "its own process", "process 1 of its sandbox"  # what a witness is told of
STDOUT, STDERR = 1, 2


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    say: Callable[[str], None] | None = None,
    descriptors: Sequence[int] = (),
    witness: Callable[[str], None] | None = None,
) -> int:
    """Run a command in a sandbox and wait for it; to be called from the main thread.

    SIGINT, SIGTERM and SIGHUP that come meanwhile are passed to the command instead.

    Parameters
    ----------
    argv : the command and its arguments; standard input, output and error are the caller's
    env : its environment; the caller's when None
    say : takes each line of its output and errors instead, e.g. where they are to appear in a notebook
    descriptors : of open files that it inherits, under the same numbers
    witness : is told, when a command has failed, who in the sandbox had been ended by a signal: "raylet (SIGKILL)", one
        call each; `COMMAND` is the command itself, `PROCESS_1` what keeps the sandbox

    Returns
    -------
    The command's exit status, 128 + n where signal n ended it; 125 where the sandbox could not be made.
    """
    control, here = os.pipe2(os.O_CLOEXEC)
    seen, told = os.pipe2(os.O_CLOEXEC)
    errors = STDOUT if say is not None else os.dup(STDERR)
    theirs = [each for each in (control, told, errors) if each != STDOUT]
    try:
        with _passing_on(here):
            process = subprocess.Popen(
                _command(argv, control, told, errors),
                env=None if env is None else dict(env),
                pass_fds=(*theirs, *descriptors),
                start_new_session=True,
                stdout=None if say is None else subprocess.PIPE,
                stderr=subprocess.PIPE,  # of `unshare` alone; the command's go where they were to go
                text=True,
            )
            while theirs:
                os.close(theirs.pop())
            if say is not None and process.stdout is not None:
                for line in process.stdout:
                    say(line.rstrip("\n"))
            _, words = process.communicate()
        with os.fdopen(seen, closefd=False) as pipe:
            _testify(pipe.read().splitlines(), words, process.returncode, say, witness)
    finally:
        for each in (here, seen, *theirs):
            os.close(each)
    code = process.returncode
    return code if code >= 0 else 128 - code


def _testify(
    lines: Sequence[str],
    words: str,
    code: int,
    say: Callable[[str], None] | None,
    witness: Callable[[str], None] | None,
) -> None:
    """Pass on what process 1 has told of the deaths it saw (rule 5), or what `unshare` said where there was none."""
    if not lines:
        for line in words.splitlines():
            say(line) if say else print(line, file=sys.stderr, flush=True)
    elif witness and len(lines) == 1:
        witness(PROCESS_1)
    elif witness and code:
        killed = [(name or COMMAND, signal.Signals(number)) for name, number in json.loads(lines[1])]
        alone = (COMMAND, signal.SIGKILL)  # which takes its children with it
        for name, number in [alone] if alone in killed else killed:
            witness(f"{name} ({number.name})")


def inside() -> bool:
    """Whether this process runs in a sandbox."""
    return os.environ.get(MARK) == str(Path("/proc/self/ns/pid").readlink())


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder with a short path, for what need not outlive the block, nor this sandbox however it ends.

    Raises
    ------
    NetworkError
        This process is in no sandbox.
    """
    if not inside():
        raise NetworkError("only a sandbox has a folder that goes with it; start the process with sandbox.run")
    SCRATCH.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


def find_administrators_tools() -> None:
    """Look for programs in the sbin folders as well: `tc` is there on Debian, and an ordinary user's PATH is not."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys([*path, "/usr/sbin", "/sbin"]))


def available() -> str | None:
    """None when an emulated run is possible on this machine, else in one line why not and what would allow it."""
    find_administrators_tools()
    missing = [tool for tool in ("unshare", "ip", "tc", "bash") if not shutil.which(tool)]
    if missing:
        return f"{', '.join(missing)} not found; install the packages util-linux, iproute2 and bash"
    absent = [name for name in ("mininet", "pyroute2") if not importlib.util.find_spec(name)]
    if absent:
        return f"the Python package {absent[0]} is not installed; run `make setup`"
    try:
        found = features()
    except NetworkError as error:
        return str(error)
    for name, module in (("veth", "veth"), ("htb", "sch_htb"), ("u32", "cls_u32")):
        if not found[name]:
            return f"the kernel has no {name}; load the module {module} or use a kernel that has it"
    if not found["netem"] and not shutil.which("cc"):
        return "the kernel has no netem, and there is no C compiler (cc) for the delay line; install either"
    return None


def delay_mechanism() -> str:
    """How links get their delay on this machine: "netem" where the kernel has it, else "delay-line"."""
    return "netem" if features()["netem"] else "delay-line"


@cache
def features() -> dict[str, bool]:
    """What the kernel offers in a sandbox: "veth", "htb" (with bfifo), "u32", "netem" (with ingress redirection).

    Raises
    ------
    NetworkError
        No sandbox can be made; the message says why and how to allow it.
    """
    script = [sys.executable, "-I", "-S", str(HERE / "probe.py")]
    if inside():
        return _ask(["unshare", "--net", *script])
    descriptors = [*os.pipe2(os.O_CLOEXEC), *os.pipe2(os.O_CLOEXEC)]
    control, _, _, told = descriptors
    try:
        return _ask(_command(script, control, told, STDERR), control, told)
    finally:
        for each in descriptors:
            os.close(each)


def _ask(command: list[str], *descriptors: int) -> dict[str, bool]:
    try:
        answer = subprocess.run(
            command, capture_output=True, pass_fds=descriptors, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NetworkError(f"the trial of a sandbox did not end within {PROBE_TIMEOUT_S:g} s") from None
    if answer.returncode:
        lines = answer.stderr.decode(errors="replace").strip().splitlines()
        raise NetworkError(_why_not(lines[-1] if lines else f"exit status {answer.returncode}"))
    return json.loads(answer.stdout)


def _command(argv: Sequence[str], control: int, witness: int, errors: int) -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    namespaces = ["--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    init = [sys.executable, "-I", "-S", str(HERE / "init.py"), str(control), str(witness), str(errors)]
    return ["unshare", *user, *namespaces, "--", *init, *argv]


@contextmanager
def _passing_on(control: int) -> Iterator[None]:
    """Send the signals that come to this process through the pipe, but for those it was started to ignore."""

    def pass_on(number: int, _: FrameType | None) -> None:
        with suppress(OSError):  # process 1 is gone: there is nobody left to tell
            os.write(control, bytes([number]))

    before = {number: signal.getsignal(number) for number in PASSED_ON}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, pass_on)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _why_not(line: str) -> str:
    """What stands in the way of a sandbox, from the machine's switches, else from the command's own words."""
    if os.geteuid() == 0:
        return f"no namespaces can be made ({line}); in a container allow it CAP_SYS_ADMIN and CAP_NET_ADMIN"
    switches = {
        "kernel.apparmor_restrict_unprivileged_userns": "1",
        "kernel.unprivileged_userns_clone": "0",
        "user.max_user_namespaces": "0",
    }
    for name, forbids in switches.items():
        path = Path("/proc/sys") / name.replace(".", "/")
        if path.is_file() and path.read_text().strip() == forbids:
            allow = {"1": "0", "0": "1"}[forbids] if name.startswith("kernel") else "10000"
            return f"user namespaces are switched off ({line}); allow them with `sudo sysctl -w {name}={allow}`"
    return f"no user namespaces can be made ({line}); allow them in this container or machine, or run as root"


def main(words: Sequence[str]) -> int:
    """Run a command in a sandbox from the command line; returns its exit status."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    find_administrators_tools()
    if reason := available():
        print(f"sandbox: {reason}", file=sys.stderr)
        return NOT_MADE
    return run(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
