"""Joining a Ray cluster that is there already, with what experiments need on its nodes."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray.exceptions import RayError

from testbed.errors import InputError
from testbed.experiment.schema import Experiment
from testbed.fabrics.cluster.baggage import Baggage

CONNECT_S = 5.0
NO_CLUSTER = "no Ray cluster runs here; start one with ray start --head, join one with ray start --address=HOST:PORT"


@contextmanager
def joined(address: str, experiments: Sequence[Experiment]) -> Iterator[Baggage]:
    """Within it this process is a driver of the cluster at `address`, "auto" or HOST:PORT.

    Raises
    ------
    InputError
        There is no such cluster, or it cannot be joined.
    """
    with tempfile.TemporaryDirectory(prefix="testbed-") as folder:
        baggage = Baggage(experiments, Path(folder))
        _join(address, baggage.runtime_env)
        try:
            yield baggage
        finally:
            ray.shutdown()


def _join(address: str, runtime_env: dict[str, Any]) -> None:
    """Make this process a driver of the cluster at `address`."""
    if ray.is_initialized():
        raise InputError("--ray: this process uses Ray already; call ray.shutdown() first")
    if "://" in address:
        raise InputError(f"--ray {address}: run this on a node of the cluster, or send it there with ray job submit")
    _require_answer(_found() if address == "auto" else address)
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # of `ray job submit`, whose working directory is the driver's
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        ray.init(address=address, runtime_env=runtime_env, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise InputError(f"--ray {address}: {' '.join(str(error).split())}") from None
    finally:
        for number, handler in handlers.items():  # Ray has put its own in place, which abort the process
            signal.signal(number, handler)


def _found() -> str:
    """The address of the cluster that this machine is a node of, or that RAY_ADDRESS names."""
    with suppress(ConnectionError):
        if address := services.canonicalize_bootstrap_address("auto"):
            return str(address)
    raise InputError(f"--ray auto: {NO_CLUSTER}")


def _require_answer(address: str) -> None:
    """Ray would try for minutes to reach a host that is not there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(f"--ray {address}: neither auto nor HOST:PORT, e.g. 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--ray {address}: no Ray answers there: {error}") from None
