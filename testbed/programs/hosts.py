"""Which hosts a program is to have, what they are called, and what it is told of them.

Host k of a region is "<region>/h<k>". A program sees its own by the variables that launchers of distributed training
use (torchrun's, MPI-like), and all by name: "<region>-h<k>" resolves to a host, "<region>" to the region's first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.emulation.addresses import MAX_HOSTS
from testbed.errors import InputError, nearest
from testbed.wan.plan import NetworkPlan, label, region_of
from testbed.wan.profile import Profile

MASTER_PORT = 29500  # torch's own default
INTERFACE = "eth0"  # of every host


def asked(text: str) -> dict[str, int]:
    """Hosts by region, of "us-west-1=4,us-east-1=4".

    Raises
    ------
    InputError
        It is not of this form.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        region, equals, count = part.strip().partition("=")
        if not (region and equals and count.isdecimal() and 1 <= int(count) <= MAX_HOSTS):
            raise InputError(f"--hosts: '{part}' is not like us-west-1=4, with 1 to {MAX_HOSTS} hosts")
        if region in found:
            raise InputError(f"--hosts: region {region} is there twice")
        found[region] = int(count)
    return found


def plan_of(profile: Profile, hosts: Mapping[str, int]) -> NetworkPlan:
    """So many hosts in each region.

    Raises
    ------
    InputError
        The profile has no such region.
    """
    for region in hosts:
        if region not in profile.regions:
            hint = nearest(region, profile.regions)
            raise InputError(f"--hosts: profile {profile.name} has no region '{region}'{hint}")
    return NetworkPlan(tuple(f"{region}/h{k}" for region, count in hosts.items() for k in range(count)), profile)


def named(plan: NetworkPlan, name: str, where: str) -> list[str]:
    """The hosts that a name means: one ("us-west-1-h0" or "us-west-1/h0"), or all of a region.

    Raises
    ------
    InputError
        There are none of that name; `where` is what it begins with.
    """
    if name in plan.regions:
        return list(plan.hosts_of(name))
    known = {label(host): host for host in plan.hosts}
    host = known.get(label(name))
    if host is None:
        raise InputError(f"{where}: no host or region '{name}'{nearest(name, [*known, *plan.regions])}")
    return [host]


def one_of(plan: NetworkPlan, name: str, where: str) -> str:
    """The one host that a name means, of a region its first; InputError as `named` raises."""
    return named(plan, name, where)[0]


def names(addresses: Mapping[str, str]) -> str:
    """Lines for /etc/hosts."""
    firsts: dict[str, str] = {}
    for host, address in addresses.items():
        firsts.setdefault(region_of(host), address)
    lines = [f"{address}\t{label(host)}" for host, address in addresses.items()]
    return "\n".join([*lines, *(f"{address}\t{region}" for region, address in firsts.items())]) + "\n"


def environment(addresses: Mapping[str, str], host: str, gpus: Sequence[str] = ()) -> dict[str, str]:
    """What the program on `host` is told, beside the environment it would have anyway.

    Parameters
    ----------
    addresses : of all hosts, in the order of their ranks
    gpus : of this machine, which are dealt out; empty where it has none
    """
    order = list(addresses)
    rank = order.index(host)
    told = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(order)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": str(rank),
        "MASTER_ADDR": addresses[order[0]],
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "TESTBED_HOST": label(host),
        "TESTBED_REGION": region_of(host),
        "TESTBED_HOSTS": ",".join(f"{label(name)}={address}" for name, address in addresses.items()),
    }
    if gpus:
        told["CUDA_VISIBLE_DEVICES"] = gpus[rank % len(gpus)]
    return told
