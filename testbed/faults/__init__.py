"""What goes wrong in a run, when, on purpose: kinds of faults, and the schedule that both fabrics play.

A fault is a span of time and what is otherwise while it lasts: WAN links (`Fault.on_links`, `Fault.altered`), or the
pace at which roles compute and take messages (`Fault.on_roles`, `Fault.pace`). Each kind is one file of `kinds/` or a
plug-in, found by its name.
"""

from testbed.faults.base import FAULTS, Fault
from testbed.faults.pace import Pace
from testbed.faults.schedule import Break, Schedule, Turn, events_of

__all__ = ["FAULTS", "Break", "Fault", "Pace", "Schedule", "Turn", "events_of"]
