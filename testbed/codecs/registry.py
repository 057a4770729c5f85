"""The codecs by name, to which one file inside or outside the package adds another:

from testbed.codecs import Float32, codec


@codec("float32 again")
class Again(Float32): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from testbed.codecs.base import Codec
from testbed.codecs.memory import Remembering
from testbed.layout import Layout
from testbed.plugins import Registry

CODECS: Registry[Callable[[Layout], Codec | Remembering]] = Registry("codec", "testbed.codecs")

Make = TypeVar("Make", bound=Callable[[Layout], Codec | Remembering])


def codec(name: str) -> Callable[[Make], Make]:
    """Register what makes a codec of a layout, a class or a function; InputError where another file has the name."""

    def register(make: Make) -> Make:
        CODECS.add(name, make, make.__module__)
        return make

    return register
