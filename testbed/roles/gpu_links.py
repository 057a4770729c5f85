"""Several GPUs a worker: a worker is then a machine whose GPUs add up their gradients before it sends anything.

What joins the GPUs is described by one sourced figure in `gpu_links.toml`. A plug-in adds one with
`GPU_LINKS.add("mine", GpuLink(...), __name__)`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from testbed.errors import InputError, nearest
from testbed.plugins import Registry
from testbed.types import Positive

TABLE = Path(__file__).with_name("gpu_links.toml")


class GpuLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What joins a machine's GPUs: 10^9 bytes a second, each way at once, that a ring over them reaches."""

    gbyte_s: Positive
    source: str

    def all_reduce_s(self, gpus: int, nbytes: float) -> float:
        """Time in which a ring of `gpus` adds up vectors of `nbytes`, so that each has the sum.

        Each GPU sends 2 (g - 1) / g of the vector (Patarasuk and Yuan 2009): the first half leaves the sum spread over
        the GPUs, the second brings it to all, or in its place what the network answers to it.
        """
        return 2 * (gpus - 1) / gpus * nbytes / (self.gbyte_s * 1e9)


GPU_LINKS: Registry[GpuLink] = Registry("link between GPUs")
"""All links between GPUs by name."""

for _name, _link in msgspec.toml.decode(TABLE.read_bytes(), type=dict[str, GpuLink]).items():
    GPU_LINKS.add(_name, _link, __name__)


def gpu_link(name: str) -> GpuLink:
    """The link called `name`.

    Raises
    ------
    InputError
        There is no such link.
    """
    if name not in GPU_LINKS:
        raise InputError(f"compute.gpu_link: no link '{name}'{nearest(name, list(GPU_LINKS))}")
    return GPU_LINKS[name]
