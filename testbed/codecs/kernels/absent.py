"""The kernels where numba is not installed: declared, so that what needs none of them runs, and refused when called.

A training image with CUDA has torch and seldom numba. On a GPU the codecs that stay on the device need no kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from testbed.errors import InputError

MODULES = ("numba", "numba.extending", "llvmlite")


class _Nothing:
    """Stands for whatever a kernel is declared with; what is declared says that numba is missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and callable(arguments[0]) and not isinstance(arguments[0], _Nothing):
            return _refusal(arguments[0])
        return self


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


def _refusal(function: Callable[..., Any]) -> Any:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise InputError(
            f"numba is not installed, and the CPU's codecs need it ({function.__name__}): pip install numba"
        )

    return refuse


_absent = False


def is_absent() -> bool:
    """Whether numba is not installed here."""
    return _absent


def step_in() -> None:
    """Take the place of numba if it cannot be imported."""
    global _absent
    try:
        import numba  # noqa: F401
    except ModuleNotFoundError:
        _absent = True
        for name in MODULES:
            sys.modules[name] = _Module(name)


def step_out() -> None:
    """Leave its place: for all others it is not there."""
    for name in MODULES:
        if isinstance(sys.modules.get(name), _Module):
            del sys.modules[name]
