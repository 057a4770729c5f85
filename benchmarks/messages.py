"""Messages a second of the virtual fabric alone: roles that send and receive a CifarNet gradient and do no math.

    python benchmarks/messages.py [--regions 2] [--workers 4] [--messages 50000] [--profile]

Prints messages per second of CPU time; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import cProfile

from testbed.fidelity import speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4, help="a region")
    parser.add_argument("--messages", type=int, default=speed.MESSAGES)
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    options = parser.parse_args()
    size = (options.regions, options.workers)
    if options.profile:
        fabric, steps = speed.relay(*size), speed.steps_of(options.messages, *size)
        cProfile.runctx("fabric.segment(steps)", {}, {"fabric": fabric, "steps": steps}, sort="tottime")
        return
    rate = speed.messages_per_s(*size, options.messages)
    print(f"{options.regions} regions x {options.workers} workers: {rate:,.0f} messages a second")


if __name__ == "__main__":
    main()
