"""Time that a virtual machine did not get: what is measured meanwhile takes longer than it would elsewhere."""

from __future__ import annotations

from pathlib import Path

STAT = Path("/proc/stat")
STEAL = 7  # place of the column in the line of all cores: user nice system idle iowait irq softirq steal (proc(5))


class Stolen:
    """What the hypervisor has taken since this was made.

    Parameters
    ----------
    stat : where the kernel counts
    """

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._before = self._times()

    @property
    def share(self) -> float:
        """Of all cores' time since then, 0 to 1; 0 where the kernel does not say."""
        passed = [now - before for now, before in zip(self._times(), self._before, strict=True)]
        return passed[STEAL] / sum(passed) if sum(passed) > 0 else 0.0

    def _times(self) -> list[int]:
        try:
            fields = self._stat.read_text().split("\n", 1)[0].split()[1 : STEAL + 2]
            times = [int(field) for field in fields]
        except (OSError, ValueError):
            times = []
        return times if len(times) == STEAL + 1 else [0] * (STEAL + 1)
