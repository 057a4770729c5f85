"""Models that are known by their layers alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor, nn

from testbed.errors import InputError
from testbed.layout import Layout
from testbed.workloads.data.base import Data
from testbed.workloads.models import base
from testbed.workloads.models.known import known_of, names
from testbed.workloads.sized import SizedWorkload

# Layers, width, tokens of an example, and weights of the products that each token goes through.
TRANSFORMERS = {
    "bert-large": (24, 1024, 512, 24 * 12 * 1024**2),
    "gpt2-1.5b": (48, 1600, 1024, 48 * 12 * 1600**2 + 50257 * 1600),
    "llama-3-8b": (32, 4096, 8192, 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096) + 128256 * 4096),
    "llama-3-70b": (80, 8192, 8192, 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 28672 * 8192) + 128256 * 8192),
}


def layout(name: str) -> Layout:
    known = known_of(base.of(name))
    assert known is not None and known.source
    return known.layout()


@pytest.mark.parametrize("name", names())
def test_the_layers_add_up_to_the_parameters_that_are_published(name: str) -> None:
    known = known_of(base.of(name))
    assert known is not None and layout(name).size == known.parameters
    assert len({layer.name for layer in layout(name)}) == len(layout(name))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_transformers_operations_are_those_of_its_products_and_its_attention(name: str) -> None:
    layers, width, tokens, weights = TRANSFORMERS[name]
    known = known_of(base.of(name))
    assert known is not None
    assert 1e9 * known.forward_gflop == pytest.approx(2 * tokens * weights + 4 * layers * tokens**2 * width, rel=1e-3)


def test_vgg_16_is_vgg_a_with_more_layers() -> None:
    vgg_a = base.parameter_count(base.of("vgg-a"), 1000)
    assert 0 < layout("vgg-16").size - vgg_a < 6_000_000


def test_a_network_is_sized_without_memory_and_without_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_DATA", "/nowhere")
    sized = SizedWorkload.of_module(base.of("resnet-50"), Data("imagenet"))
    assert sized is not None and sized.layout.size == 25_557_032
    assert sized.forward_flops == pytest.approx(8.18e9, rel=0.01)
    assert sized.dataset.train_examples == 1_281_167


def test_a_network_that_looks_at_its_values_is_sized_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(3 * 24 * 24, 10)
            self.scale = float(self.output.weight.detach().abs().max())

        def forward(self, x: Tensor) -> Tensor:
            return self.output(x.flatten(1)) * (1.0 if bool(x.sum() > 0) else self.scale)

    spec = base.ModelSpec(lambda outputs: Looks(), (3, 24, 24), base.Model)
    monkeypatch.setitem(base.MODELS._found, "looks", spec)
    sized = SizedWorkload.of_module(base.Model("looks"), Data("cifar10"))
    assert sized is not None and sized.layout.size == 3 * 24 * 24 * 10 + 10
    assert sized.forward_flops == 2 * 3 * 24 * 24 * 10


def test_a_model_of_so_many_parameters_has_as_many() -> None:
    for count in (1, 4096, 4097, 325_000_000):
        known = known_of(base.of("vector", parameters=count))
        assert known is not None and known.layout().size == count


def test_one_of_your_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'forward_gflop = 2.0\nlayers = [{ name = "block", repeat = 2, layers = [{ name = "a", shape = [4, 3], '
        'with = "bias" }] }, { name = "out", shape = [2, 4], with = "norm" }]\n'
    )
    known = known_of(base.of("layers", file=str(path)))
    assert known is not None
    assert [(layer.name, layer.shape) for layer in known.layout()] == [
        ("block.0.a.weight", (4, 3)),
        ("block.0.a.bias", (4,)),
        ("block.1.a.weight", (4, 3)),
        ("block.1.a.bias", (4,)),
        ("out.weight", (2, 4)),
        ("out.norm.weight", (2,)),
        ("out.norm.bias", (2,)),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "mine.toml: Object missing required field"),
        ("layers = [", "mine.toml: "),
        ('forward_gflop = 1.0\nlayers = [{ name = "a" }]', "layer 'a' has a shape, or layers inside it"),
        (
            'forward_gflop = 1.0\nparameters = 7\nlayers = [{ name = "a", shape = [2, 3] }]',
            "have 6 parameters, not the 7",
        ),
        ('forward_gflop = 1.0\nlayers = [{ name = "a", shape = [99999999, 99999999] }]', "at most 100,000,000,000,000"),
        ('forward_gflop = 0\nlayers = [{ name = "a", shape = [2] }]', "forward_gflop"),
        (
            'forward_gflop = 1.0\nlayers = [{ name = "a", repeat = 10000, layers = [{ name = "b", repeat = 10000, '
            'layers = [{ name = "c", shape = [1] }] }] }]',
            "more than 100,000 layers",
        ),
    ],
)
def test_a_file_that_is_none_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        known_of(base.of("layers", file=str(path)))
    assert line in str(caught.value) and "\n" not in str(caught.value) and "mine.toml" in str(caught.value)


def test_it_can_be_timed_and_not_trained() -> None:
    with pytest.raises(InputError, match=r"model 'llama-3-8b': only its layers are known.*--timing-only"):
        base.of("llama-3-8b").build(10)
