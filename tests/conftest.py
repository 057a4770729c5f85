"""Options and fixtures that tests of several parts share; what they build with is in `harness.py`."""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from small_runs import use_small_data

from testbed.workloads.data import cifar, standin
from testbed.workloads.data.records import Records

# How long an example takes tells of the machine and what else it does, not of the code.
settings.register_profile("testbed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("testbed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="write golden trajectories anew; review the diff")


def pytest_configure(config: pytest.Config) -> None:
    """Processes that tests start react to signals, also where the suite runs in the background or under nohup."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What has been imported stays, and the garbage collector need not look through all of torch again and again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def packages_are_looked_for_once() -> Iterator[None]:
    """Each experiment that is read asks for plug-ins among all packages; no test installs one into its own process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "entry_points", functools.cache(metadata.entry_points))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums depend on the number of threads; the runs of an experiment use one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_batches() -> list[Records]:
    return standin.generate(batches=6, images=200, form=cifar.FORMAT)


@pytest.fixture
def small_data(small_batches: list[Records], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The `synthetic` data set with 1,000 training and 200 test images in place of 50,000 and 10,000."""
    use_small_data(monkeypatch, small_batches, tmp_path / "data")
