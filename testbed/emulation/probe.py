"""Prints, as one JSON object, what the kernel offers for the emulation: run inside a sandbox as a script.

It imports nothing but the standard library, makes two scratch interfaces in a network namespace that ends with
it, and asks for each thing by trying it: that also loads the kernel module where it is one.
"""

from __future__ import annotations

import json
import subprocess
import sys

# feature -> commands that must all succeed, in this order
TRIALS = {
    "veth": ["ip link add testbed0 type veth peer name testbed1"],
    "htb": [
        "tc qdisc add dev testbed0 root handle 1: htb default 1",
        "tc class add dev testbed0 parent 1: classid 1:1 htb rate 1mbit",
        "tc class add dev testbed0 parent 1:1 classid 1:10 htb rate 8kbit ceil 2mbit prio 1",
        "tc qdisc add dev testbed0 parent 1:10 handle 10: bfifo limit 100000",
    ],
    "u32": ["tc filter add dev testbed0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff flowid 1:10"],
    "netem": [
        "tc qdisc add dev testbed1 root handle 1: netem delay 1ms rate 1mbit limit 1000",
        "tc qdisc add dev testbed1 handle ffff: ingress",
        "tc filter add dev testbed1 parent ffff: protocol all prio 1 u32 match u32 0 0"
        " action mirred egress redirect dev testbed0",
    ],
}


def works(commands: list[str]) -> bool:
    """Whether every command succeeds."""
    return all(subprocess.run(command.split(), capture_output=True).returncode == 0 for command in commands)


if __name__ == "__main__":
    if sys.argv[1:]:  # e.g. --help; what follows changes the network that it runs in
        sys.exit("tried out inside a sandbox, by `testbed doctor`; it takes no options")
    json.dump({name: works(commands) for name, commands in TRIALS.items()}, sys.stdout)
