"""ISGQ as a protocol: with nothing quantized it is the baseline, and what it sends is the factors alone."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from small_runs import Played, each_system, experiment, play

from testbed.codecs.costs import COSTS
from testbed.codecs.factors import multiply
from testbed.errors import ProtocolError
from testbed.experiment.assembly import Assembly
from testbed.message import Message
from testbed.record.events import StepDone
from testbed.roles.roles import kind_of
from testbed.systems import SYSTEMS, Node, Task, isgq

FORMS = ["isgq-naive", "isgq-mse", "isgq-dithered"]
CONSTANT = {"kind": "constant", "rate": 0.2}
EXACT = {"quantize": False, "convolutions": "float32"}
Sizes = dict[tuple[str, str, str], set[int]]


def played(system: str, options: dict[str, Any] | None = None, kind: str = "tree", **training: Any) -> Played:
    it = experiment(topology={"kind": kind}, training={"steps": 6, **training}, systems={system: {}})
    return play(system, Assembly(it).task(0), it.plan.profile, options)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    """Bytes of the messages of a run by (from, to, kind)."""
    found: Sizes = {}
    original = Node.send

    async def send(node: Node, peer: str, message: Message) -> None:
        found.setdefault((kind_of(node.name), kind_of(peer), message.kind), set()).add(message.nbytes)
        await original(node, peer, message)

    monkeypatch.setattr(Node, "send", send)
    return found


@pytest.mark.parametrize("kind", each_system(["tree", "flat"], "tree"))
@pytest.mark.parametrize("answer", ["factors", "float32"])
def test_unquantized_it_is_the_baseline_to_rounding(small_data: None, kind: str, answer: str) -> None:
    training = {"weight_decay": 0.01, "optimizer": {"kind": "sgd", "momentum": 0.9}, "ema_decay": 0.9}
    expected = played("baseline", kind=kind, **training)
    found = played("isgq-naive", {**EXACT, "answer": answer}, kind, **training)
    for name, weights in expected.models.items():
        torch.testing.assert_close(found.models[name], weights, rtol=1e-4, atol=1e-5)
    pairs = zip(found.of(StepDone), expected.of(StepDone), strict=True)
    assert all(a.loss == pytest.approx(b.loss, rel=1e-4) for a, b in pairs)


@pytest.mark.slow
def test_a_model_with_convolutions_too(small_data: None) -> None:
    it = experiment(model={"name": "cifarnet"}, training={"steps": 2, "batch_size": 8})
    task = Assembly(it).task(0)
    expected, found = (
        play(name, task, it.plan.profile, EXACT if name != "baseline" else None) for name in ("baseline", "isgq-mse")
    )
    torch.testing.assert_close(found.models["full"], expected.models["full"], rtol=1e-4, atol=1e-6)
    quantized = play("isgq-mse", task, it.plan.profile)
    assert not torch.equal(quantized.models["full"], expected.models["full"])


@pytest.mark.parametrize("coding", each_system(["ternary", "qsgd"], "ternary"))
def test_convolutions_are_coded_directly(small_data: None, coding: str) -> None:
    """The factors are exact here, so that after one step only the convolutions are not the baseline's."""
    it = experiment(model={"name": "cifarnet"}, training={"steps": 1, "batch_size": 8})
    task = Assembly(it).task(0)
    expected, found = (
        play(name, task, it.plan.profile, options).models["full"] - task.initial
        for name, options in (("baseline", None), ("isgq-mse", {**EXACT, "convolutions": coding}))
    )
    for layer in task.layout.linear:
        torch.testing.assert_close(found[layer.weight.slice], expected[layer.weight.slice], rtol=1e-4, atol=1e-6)
    [conv] = [layer for layer in task.layout if layer.size == 64 * 64 * 5 * 5]
    assert 0.2 < torch.cosine_similarity(found[conv.slice], expected[conv.slice], dim=0) < 0.95


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", each_system(["factors", "float32", "ternary"], "factors"))
def test_all_workers_keep_the_same_weights(small_data: None, form: str, answer: str) -> None:
    it = experiment(training={"steps": 3})
    task = Assembly(it).task(0)
    states = play(form, task, it.plan.profile, {"answer": answer}).states
    weights = [states[name].weights for name in task.roles.workers]
    assert all(torch.equal(other, weights[0]) for other in weights[1:])
    assert not torch.equal(weights[0], task.initial)


@pytest.mark.parametrize("form", each_system(FORMS, "isgq-mse"))
def test_the_factors_answer_is_the_mean_answer_without_its_bytes(small_data: None, form: str) -> None:
    """The very product that the server would make."""
    factors, mean = (played(form, {"answer": answer}) for answer in ("factors", "float32"))
    assert torch.equal(factors.models["full"], mean.models["full"])


@pytest.mark.parametrize(("device", "products"), [("m60", 1), pytest.param("measured", 4, marks=pytest.mark.slow)])
def test_what_all_workers_receive_is_multiplied_once_unless_it_is_timed(
    small_data: None, monkeypatch: pytest.MonkeyPatch, device: str, products: int
) -> None:
    counted = Mock(side_effect=multiply)
    monkeypatch.setattr(isgq, "multiply", counted)
    it = experiment(training={"steps": 3, "weight_decay": 0.01}, compute={"device": device})
    play("isgq-mse", Assembly(it).task(0), it.plan.profile)
    assert counted.call_count == 3 * products


def test_exact_bytes_without_quantization(small_data: None, sizes: Sizes) -> None:
    """Tiny, 16 images over 4 workers: 4 rows of 108 + 32 and 32 + 10; header 2 + 4 + the kind's letters."""
    played("isgq-naive", EXACT)
    factors, header = 4 * 4 * (108 + 32 + 32 + 10), 6 + len("factors")
    assert factors == 2912
    one, two, four = (header + workers * (factors + 9) for workers in (1, 2, 4))
    del sizes["worker", "lps", "boundary"], sizes["lps", "gs", "boundary"]
    del sizes["lps", "worker", "boundary"], sizes["gs", "lps", "boundary"]
    assert sizes == {
        ("worker", "lps", "factors"): {one},
        ("lps", "gs", "factors"): {two},
        ("gs", "lps", "factors"): {four},
        ("lps", "worker", "factors"): {four},
    }


@pytest.mark.parametrize("form", each_system(FORMS, "isgq-naive"))
def test_a_worker_sends_less_than_two_bits_an_element(small_data: None, sizes: Sizes, form: str) -> None:
    played(form, kind="flat", batch_size=64)
    elements = 16 * (108 + 32 + 32 + 10)
    assert max(sizes["worker", "gs", "factors"]) < elements * 2 / 8 + 100
    assert ("lps", "gs", "factors") not in sizes


def test_cifarnets_gain_at_batch_64_is_table_3s(small_data: None, sizes: Sizes) -> None:
    """98 in the paper; `benchmarks/isgq_gain.py` makes the whole table, on the real data."""
    topology = {"regions": ["us-east-1"], "workers_per_region": 1, "kind": "flat"}
    training = {"steps": 1, "batch_size": 64}
    it = experiment(topology=topology, model={"name": "cifarnet"}, training=training, systems={"isgq-mse": {}})
    play("isgq-mse", Assembly(it).task(0), it.plan.profile)
    [nbytes] = sizes["worker", "gs", "factors"]
    assert 32 * 1_068_298 / (8 * nbytes) == pytest.approx(98, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_it_learns(small_data: None, form: str) -> None:
    losses = [event.loss for event in played(form, steps=60, batch_size=64, schedule=CONSTANT).of(StepDone)]
    assert sum(losses[-40:]) < 0.97 * sum(losses[:40])


def test_compute_is_charged_where_it_is_made(small_data: None) -> None:
    """A worker is spared the products that make its layers' gradients, and makes those of all workers instead."""
    it = experiment(model={"name": "cifarnet"}, training={"batch_size": 8})
    assembly = Assembly(it)
    task: Task = assembly.task(0)
    system = SYSTEMS["isgq-mse"](task, SYSTEMS["isgq-mse"].options_type())
    product = 2 * 2 * (2304 * 384 + 384 * 192 + 192 * 10)
    assert system.gradient_work.flops == task.gradient_flops - product  # type: ignore[attr-defined]
    factors, others = (part.numpy() for part in (torch.zeros(100), torch.zeros(200)))
    buffers = [factors] * system.factors.buffers + [others]  # type: ignore[attr-defined]
    multiplying = system._multiplying(Message("factors", 0, buffers * 4))  # type: ignore[attr-defined]
    assert multiplying.flops == 4 * product and multiplying.coding_nbytes > 0
    options = SYSTEMS["isgq-mse"].options_type(convolutions="qsgd")
    coded = SYSTEMS["isgq-mse"](task, options)._multiplying  # type: ignore[attr-defined]
    few, many = (
        coded(Message("factors", 0, ([factors] * system.factors.buffers + [rest]) * 4))
        for rest in (  # type: ignore[attr-defined]
            others[:100],
            others,
        )
    )
    assert many.coding_nbytes - few.coding_nbytes > 4 * 400 * COSTS["QSGD, elias"].decode_message  # a code by its bytes
    assert task.gradient_flops == 3 * 2 * assembly.workload.forward_flops


def test_the_products_of_the_least_error_are_charged(small_data: None) -> None:
    """At L images and 2 levels, X's and Delta's own products are (3 L)^2 for each column: 4.2 GFLOP at L = 256."""
    task: Task = Assembly(experiment(model={"name": "cifarnet"}, training={"batch_size": 1024})).task(0)
    system = SYSTEMS["isgq-mse"](task, SYSTEMS["isgq-mse"].options_type())
    columns = sum(layer.inputs + layer.outputs for layer in task.layout.linear)
    assert system.factors.flops == 2 * (3 * 256) ** 2 * columns  # type: ignore[attr-defined]
    made = [torch.zeros(10).numpy()] * system.factors.buffers  # type: ignore[attr-defined]
    assert system._encoding(made).gemm_flops == system.factors.flops  # type: ignore[attr-defined]


def test_a_message_that_is_not_of_all_workers_is_refused(small_data: None) -> None:
    task = Assembly(experiment()).task(0)
    system = SYSTEMS["isgq-mse"](task, SYSTEMS["isgq-mse"].options_type())
    with pytest.raises(ProtocolError, match="5 buffers are not the messages of 4 workers"):
        system._multiply(Message("factors", 0, [torch.zeros(1).numpy()] * 5))  # type: ignore[attr-defined]
