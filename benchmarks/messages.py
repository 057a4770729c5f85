"""Messages a second of the virtual fabric alone: roles that send and receive a CifarNet gradient and do no math.

    python benchmarks/messages.py [--regions 2] [--workers 4] [--messages 50000] [--each] [--cost]
    python benchmarks/messages.py --network skyplane-22

Prints messages per second of CPU time; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import cProfile

from testbed.fidelity import speed
from testbed.wan.profile import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", type=int, default=2)
    parser.add_argument("--workers", type=int, default=4, help="a region")
    parser.add_argument("--network", help="a profile, in the place of regions that are all alike")
    parser.add_argument("--messages", type=int, default=speed.MESSAGES)
    parser.add_argument("--each", action="store_true", help="every worker plays, as in a run that computes")
    parser.add_argument("--cost", action="store_true", help="print where the time goes instead")
    options = parser.parse_args()
    profile = load(options.network) if options.network else speed.uniform(options.regions)
    regions = len(profile.regions) - 1
    if options.cost:
        fabric = speed.relay(profile, options.workers, not options.each)
        steps = speed.steps_of(options.messages, regions, options.workers)
        cProfile.runctx("fabric.segment(steps)", {}, {"fabric": fabric, "steps": steps}, sort="tottime")
        return
    rate = speed.messages_per_s(profile, options.workers, options.messages, not options.each)
    how = "each worker plays" if options.each else "one worker plays for its region"
    print(f"{profile.name}, {regions} regions x {options.workers} workers, {how}: {rate:,.0f} messages a second")


if __name__ == "__main__":
    main()
