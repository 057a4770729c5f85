"""Codecs by name: the package's own, and those of a file of somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from testbed import plugins
from testbed.codecs import CODECS, Half, Key, codec, remembering
from testbed.errors import InputError
from testbed.layout import Layout

LAYOUT = Layout.of([("w.weight", (300, 400)), ("w.bias", (400,)), ("last.weight", (2, 3))])
MINE = '''
"""Gradients that are all alike."""
from testbed.codecs import Float32, codec

@codec("{name}")
class Negative(Float32):
    def encode(self, vector, key=None):
        return super().encode(-vector, key)
'''


@pytest.fixture
def _own_names() -> Iterator[None]:
    """The registry as it was, afterwards."""
    list(CODECS)
    before = CODECS._found.copy(), CODECS._origins.copy()
    yield
    CODECS._found, CODECS._origins = before


@pytest.mark.parametrize("name", CODECS)
def test_every_name_makes_a_codec_of_a_layout(name: str) -> None:
    made = remembering(CODECS[name](LAYOUT))
    buffers = made.encode(torch.ones(LAYOUT.size), Key(1, 2, 3), made.start())
    assert made.layout is LAYOUT
    assert made.decode(buffers).shape == (LAYOUT.size,)


@pytest.mark.usefixtures("_own_names")
def test_one_file_outside_the_package_adds_a_codec(tmp_path: Path) -> None:
    (tmp_path / "negative.py").write_text(MINE.format(name="negative"))
    plugins.load(["./negative.py"], tmp_path)
    made = CODECS.find("negative")(LAYOUT)
    vector = torch.randn(LAYOUT.size)
    assert torch.equal(made.decode(remembering(made).encode(vector, Key(0, 0, 0), None)), -vector)


@pytest.mark.usefixtures("_own_names")
def test_a_name_belongs_to_one_file(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(MINE.format(name="float32"))
    with pytest.raises(InputError, match=r"there is a codec 'float32' already, in .*floats\.py"):
        plugins.load(["./again.py"], tmp_path)
    with pytest.raises(InputError, match="unknown codec 'flot32'; did you mean 'float32'"):
        CODECS.find("flot32")


@pytest.mark.usefixtures("_own_names")
def test_a_function_makes_a_codec_too() -> None:
    @codec("halves")
    def halves(layout: Layout) -> Half:
        return Half(layout)

    assert CODECS["halves"] is halves
