"""Run in a sandbox by test_measure.py: three namespaces around a router, each measured from within by `testbed`.

    measure_in_sandbox.py HOSTS.toml TESTBED-ARGUMENT...

Writes the list of hosts, whose commands enter the namespaces with nsenter, and runs the command line with the
arguments. Uplinks are shaped to 5, 10 and 20 Mbit/s of goodput: slow, so that a busy machine carries them all the same.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from testbed.cli import main

UPLINKS_MBIT = {"east": 5, "west": 10, "north": 20}


def run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=30)


def build(hosts: Path) -> list[subprocess.Popen[bytes]]:
    holders, text = [], "duration_s = 2\n"
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    for number, (region, mbit) in enumerate(UPLINKS_MBIT.items()):
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()  # it is in its namespace
        holders.append(holder)
        inside = ["nsenter", "--target", str(holder.pid), "--net"]
        router, address = f"10.0.{number}.1", f"10.0.{number}.2"
        run("ip", "link", "add", f"r{number}", "type", "veth", "peer", "name", "wan", "netns", str(holder.pid))
        run("ip", "address", "add", f"{router}/24", "dev", f"r{number}")
        run("ip", "link", "set", f"r{number}", "up")
        run(*inside, "ip", "address", "add", f"{address}/24", "dev", "wan")
        run(*inside, "ip", "link", "set", "wan", "up")
        run(*inside, "ip", "route", "add", "default", "via", router)
        run(*inside, "tc", "qdisc", "add", "dev", "wan", "root", "handle", "1:", "htb", "default", "1")
        rate = f"{round(mbit * 1e6 * 1514 / 1448)}bit"
        shape = ["htb", "rate", rate, "burst", "16k", "cburst", "16k", "quantum", "60000"]
        run(*inside, "tc", "class", "add", "dev", "wan", "parent", "1:", "classid", "1:1", *shape)
        text += f'[[hosts]]\nregion = "{region}"\naddress = "{address}"\ncommand = {inside!r}\n'.replace("'", '"')
    hosts.write_text(text)
    return holders


if __name__ == "__main__":
    namespaces = build(Path(sys.argv[1]))
    try:
        sys.exit(main(sys.argv[2:]))
    finally:
        for namespace in namespaces:
            namespace.kill()
