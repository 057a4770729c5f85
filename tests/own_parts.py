"""Plug-ins that a test loads, and that the tests after it do not see."""

from __future__ import annotations

import sys

import pytest

from testbed import plugins


def forget_after(patch: pytest.MonkeyPatch) -> None:
    """What plug-ins register from here on is forgotten when `patch` is undone."""
    patch.setattr(sys, "path", list(sys.path))
    patch.setattr(plugins, "_loaded", dict(plugins._loaded))
    for registry in plugins._registries:
        len(registry)  # imports the testbed's own first, which are to stay
        patch.setattr(registry, "_found", dict(registry._found))
        patch.setattr(registry, "_origins", dict(registry._origins))
