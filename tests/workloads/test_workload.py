"""A workload of one's own: any network, any arrays, options by their names, a loss and metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from testbed.errors import InputError
from testbed.workloads import Arrays, Data, DataFolder, Dataset, Metric, Model, Workload, dataset, model
from testbed.workloads.config import Training
from testbed.workloads.data import base as datasets
from testbed.workloads.models import base as models
from testbed.workloads.workload import check_fits

pytestmark = pytest.mark.usefixtures("own_names")
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(60, 5)), RANDOM.integers(0, 3, 60)


def mlp(outputs: int, hidden: Annotated[int, msgspec.Meta(ge=1)] = 8, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(5, hidden, bias=bias), nn.ReLU(), nn.Linear(hidden, outputs))


def classes() -> Arrays:
    return Arrays(X[:40], Y[:40], X[40:], Y[40:])


def gradient(workload: Workload, **training: object) -> Tensor:
    learner = workload.learner(np.arange(workload.dataset.train_examples), 0, 8, 0, Training(**training))
    return learner.gradient(workload.initial_weights(0), 0)[1]


class TestOptions:
    def test_they_are_the_functions_parameters(self) -> None:
        model("mlp", input=(5,))(mlp)
        wide = models.of("mlp", hidden=20)
        assert msgspec.to_builtins(wide) == {"name": "mlp", "hidden": 20, "bias": True}
        assert msgspec.to_builtins(Model(name="cifarnet")) == {"name": "cifarnet"}
        assert isinstance(wide, Model)

    def test_other_options_are_another_model_everywhere(self) -> None:
        model("mlp", input=(5,))(mlp)
        narrow, wide = (Workload(models.of("mlp", hidden=hidden), classes()) for hidden in (8, 20))
        assert (narrow.layout.size, wide.layout.size) == (5 * 8 + 8 + 8 * 3 + 3, 5 * 20 + 20 + 20 * 3 + 3)
        assert (narrow.forward_flops, wide.forward_flops) == (2 * (5 * 8 + 8 * 3), 2 * (5 * 20 + 20 * 3))
        assert [len(each.initial_weights(0)) for each in (narrow, wide)] == [75, 183]

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"hiden": 3}, "unknown field `hiden`"), ({"hidden": 0}, ">= 1"), ({"bias": "no"}, "Expected `bool`")],
    )
    def test_they_are_strict(self, options: dict[str, object], message: str) -> None:
        model("mlp")(mlp)
        with pytest.raises(msgspec.ValidationError, match=message):
            models.of("mlp", **options)

    def test_a_class_has_them_too(self) -> None:
        @model("net", input=(5,))
        class Net(nn.Linear):
            def __init__(self, outputs: int, scale: float = 1.0) -> None:
                super().__init__(5, outputs)
                self.scale = scale

        assert models.of("net", scale=2.0).build(3).scale == 2.0
        assert Workload(Model(name="net"), classes()).layout.size == 18

    def test_a_data_set_has_them_beside_its_division(self) -> None:
        @dataset("noise")
        def noise(folder: DataFolder, examples: int = 30) -> Dataset:
            return Arrays(X[:examples], Y[:examples], X, Y)

        few = datasets.of("noise", examples=12)
        assert isinstance(few, Data)
        assert datasets.load(few).train_examples == 12
        assert datasets.load("noise").name == "noise"

    def test_an_option_cannot_hide_a_key_that_is_there(self) -> None:
        with pytest.raises(InputError, match="an option cannot be called 'split'; choose another name"):

            @dataset("hiding")
            def hiding(folder: DataFolder, split: int = 3) -> Dataset:
                return classes()


@pytest.mark.parametrize("name", ["my.py:ResNet", "my.py"])
def test_a_file_in_a_names_place_says_how_it_is_brought_in(name: str) -> None:
    with pytest.raises(InputError, match=r'bring it with plugins = \["my.py"\] and @testbed.model$'):
        models.of(name)
    with pytest.raises(InputError, match=r"a data set; bring it with .* @testbed.dataset$"):
        datasets.load(name)


class TestNetworks:
    def workload(self, network: nn.Module) -> Workload:
        model("network", input=(5,))(lambda outputs: network)
        return Workload(Model(name="network"), classes())

    def test_scores_may_come_as_the_field_of_an_object(self) -> None:
        class Wrapped(nn.Sequential):
            def forward(self, inputs: Tensor) -> SimpleNamespace:
                return SimpleNamespace(logits=super().forward(inputs))

        torch.manual_seed(0)
        plain = mlp(3)
        wrapped = Wrapped(*plain)
        assert torch.equal(gradient(self.workload(plain)), gradient(self.workload(wrapped)))

    def test_what_is_frozen_is_not_trained_and_the_same_for_all(self) -> None:
        @model("frozen", input=(5,))
        def frozen(outputs: int) -> nn.Module:
            net = mlp(outputs)
            net[0].requires_grad_(False)
            return net

        workload, other = (Workload(Model(name="frozen"), classes()) for _ in range(2))
        assert [layer.name for layer in workload.layout] == ["2.weight", "2.bias"]
        assert torch.equal(workload.flat.module[0].weight, other.flat.module[0].weight)
        assert torch.equal(gradient(workload), gradient(other))

    def test_what_is_not_used_has_a_gradient_of_zero(self) -> None:
        class Half(nn.Sequential):
            def forward(self, inputs: Tensor) -> Tensor:
                return self[0](inputs)

        workload = self.workload(Half(nn.Linear(5, 3), nn.Linear(3, 3)))
        used = {layer.name: bool(gradient(workload)[layer.slice].any()) for layer in workload.layout}
        assert used == {"0.weight": True, "0.bias": True, "1.weight": False, "1.bias": False}

    def test_a_network_that_looks_at_its_values_is_counted_too(self) -> None:
        class Looking(nn.Linear):
            def forward(self, inputs: Tensor) -> Tensor:
                return super().forward(inputs * (2.0 if inputs.sum().item() > 0 else 1.0))

        assert self.workload(Looking(5, 3)).forward_flops == 2 * 5 * 3

    def test_what_returns_no_scores_is_refused(self) -> None:
        class Pair(nn.Linear):
            def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
                return inputs, super().forward(inputs)

        with pytest.raises(InputError, match="the model returned a tuple; it must return a tensor, or an object with"):
            gradient(self.workload(Pair(5, 3)))


def test_a_function_that_returns_something_else_is_named() -> None:
    model("none", input=(5,))(lambda outputs: None)
    dataset("pair")(lambda folder: (X, Y))
    with pytest.raises(InputError, match=r"model 'none': its function returned a NoneType, not an nn.Module"):
        Model(name="none").build(3)
    with pytest.raises(InputError, match=r"data set 'pair': its function returned a tuple, not a Dataset"):
        datasets.load("pair")


class TestArrays:
    def test_whole_numbers_are_classes(self) -> None:
        data = classes()
        assert (data.outputs, data.input, data.train_examples, data.test_examples) == (3, (5,), 40, 20)
        assert data.labels.tolist() == Y[:40].tolist()
        inputs, targets = data.train_batch(np.array([3, 1]))
        assert inputs.dtype == torch.float32
        np.testing.assert_array_equal(inputs, X[[3, 1]].astype(np.float32))
        assert targets.tolist() == Y[[3, 1]].tolist()

    def test_a_loss_and_metrics_of_ones_own(self) -> None:
        target = X @ np.arange(5.0)[:, None]
        error = Metric("mean error", lambda outputs, y: (outputs - y).abs().sum(), unit="m", better="lower")
        data = Arrays(X[:40], target[:40], X[40:], target[40:], loss=functional.mse_loss, metrics={"error": error})
        model("linear", input=(5,))(lambda outputs: nn.Linear(5, outputs, bias=False))
        workload = Workload(Model(name="linear"), data)
        assert workload.layout.size == 5
        tested = workload.evaluate(torch.arange(5.0) + torch.tensor([1.0, 0, 0, 0, 0]))
        assert tested.loss == pytest.approx(np.mean(X[40:, 0] ** 2), rel=1e-5)
        assert tested.metrics == {"error": pytest.approx(np.mean(np.abs(X[40:, 0])), rel=1e-5)}
        assert (workload.main_metric, workload.metrics["error"].better) == ("error", "lower")

    def test_a_loss_alone_is_what_is_measured(self) -> None:
        data = Arrays(X, X, X, X, loss=functional.mse_loss)
        model("linear", input=(5,))(lambda outputs: nn.Linear(5, outputs))
        workload = Workload(Model(name="linear"), data)
        assert (data.outputs, workload.main_metric, workload.metrics["loss"].better) == (5, "loss", "lower")

    def test_several_answers_an_example_count_each(self) -> None:
        tokens = RANDOM.integers(0, 4, (30, 6))
        data = Arrays(tokens, tokens, tokens, tokens)
        assert data.labels is None
        model("same", input=(6,))(lambda outputs: nn.Embedding(outputs, outputs))
        workload = Workload(Model(name="same"), data)
        tested = workload.evaluate(10 * torch.eye(4).flatten())
        assert tested.metrics == {"accuracy": 1.0}
        assert tested.loss == pytest.approx(np.log(1 + 3 * np.exp(-10)), rel=1e-3)

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ((X, Y[:10], X, Y), "60 and 60 inputs, 10 and 60 targets"),
            ((X, Y, X[:, :4], Y), "differ in shape"),
            ((X, X, X, X), "need a loss"),
            ((X, X[:, 0], X, X[:, 0]), r"\[n, outputs\], as a model's outputs are: give y"),
        ],
    )
    def test_what_cannot_be_is_refused(self, arrays: tuple[np.ndarray, ...], message: str) -> None:
        with pytest.raises(InputError, match=message):
            Arrays(*arrays)


class TestPairing:
    def test_examples_of_another_shape_are_refused(self) -> None:
        model("small", input=(4,))(lambda outputs: nn.Linear(4, outputs))
        with pytest.raises(InputError, match="has examples of shape 5, the model takes 4"):
            Workload(Model(name="small"), classes())

    def test_a_model_may_take_any_shape(self) -> None:
        model("lazy")(lambda outputs: nn.Linear(5, outputs))
        assert Workload(Model(name="lazy"), classes()).forward_flops == 30
        check_fits(Model(name="lazy"), Data())

    def test_labels_cannot_be_skewed_where_there_are_none(self) -> None:
        data = Arrays(X, X, X, X, loss=functional.mse_loss)
        data.name = "curves"
        with pytest.raises(InputError, match="'dirichlet', but data set 'curves' has no labels; use 'iid'"):
            Data(split="dirichlet", alpha=0.1).shards(data, [1, 1], seed=0)
