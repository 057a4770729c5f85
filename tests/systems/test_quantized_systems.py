"""fp16, 1-bit SGD, QSGD and fixed-k as systems: what their first step is, what they send, where they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import SMALL, Played, network, play, quadratic_task

from testbed.codecs.memory import Residual
from testbed.codecs.onebit import OneBit
from testbed.codecs.uniform import Uniform
from testbed.errors import InputError
from testbed.record.events import Sent
from testbed.roles.roles import Roles
from testbed.systems.fixed import dense
from testbed.wan.profile import Link

TREE = Roles(("a", "b"), 4, "c")
FLAT = replace(TREE, kind="flat")
PROFILE = network(("a", "b", "c"), lan=Link(1000, 1), wan=Link(100, 20))
SYSTEMS = ["fp16", "onebit", "qsgd", "fixed-2", "fixed-4", "fixed-8"]


def run(system: str, steps: int, roles: Roles = TREE, rate: float = 0.05, **options: Any) -> Played:
    if system == "qsgd":
        options.setdefault("smallest", 0)
    return play(system, quadratic_task(roles, steps, rate), PROFILE, options)


def distance_left(played: Played) -> float:
    """From the optimum, as a fraction of where the run started."""
    task = played.system.task
    target = torch.stack([task.learner(k).target for k in range(8)]).mean(0)  # type: ignore[attr-defined]
    left, start = (torch.linalg.vector_norm(w - target) for w in (played.models["full"], task.initial))
    return float(left / start)


def bytes_of(played: Played, sender: str) -> int:
    return sum(event.nbytes for event in played.of(Sent) if event.node == sender)


@pytest.mark.parametrize("roles", [TREE, pytest.param(FLAT, marks=pytest.mark.slow)], ids=["tree", "flat"])
def test_fp16_stays_within_halves_of_the_baseline(roles: Roles) -> None:
    half, full = (run(system, 20, roles).models["full"] for system in ("fp16", "baseline"))
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("roles", [TREE, FLAT], ids=["tree", "flat"])
def test_onebit_quantizes_at_every_sender_and_keeps_what_it_left_out(roles: Roles) -> None:
    task, codec = quadratic_task(roles, steps=1, rate=0.5), OneBit(SMALL)
    played = play("onebit", task, PROFILE)

    def sent(name: str, wanted: torch.Tensor) -> torch.Tensor:
        decoded = codec.decode(codec.encode(wanted))
        memory = played.states[name].memory
        assert isinstance(memory, Residual)
        torch.testing.assert_close(memory.residual, wanted - decoded)
        return decoded

    gradients = [
        sent(worker, task.learner(number).gradient(task.initial, 0)[1]) for number, worker in enumerate(roles.workers)
    ]
    if roles is TREE:
        gradients = [sent("a/lps", sum(gradients[:4])), sent("b/lps", sum(gradients[4:]))]  # type: ignore[arg-type]
    mean = sent("c/gs", sum(gradients) / 8)  # type: ignore[arg-type]
    torch.testing.assert_close(played.models["full"], task.initial - 0.5 * mean)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_fixed_quantizes_each_hop_with_its_bits(bits: int) -> None:
    task, codec = quadratic_task(TREE, steps=1, rate=0.5), Uniform(SMALL, bits)
    played = play(f"fixed-{bits}", task, PROFILE, {"rounding": "nearest", "feedback": False})
    gradients = [codec.decode(codec.encode(task.learner(k).gradient(task.initial, 0)[1])) for k in range(8)]
    sums = [codec.decode(codec.encode(torch.stack(gradients[k : k + 4]).sum(0))) for k in (0, 4)]
    mean = codec.decode(codec.encode((sums[0] + sums[1]) / 8))
    torch.testing.assert_close(played.models["full"], task.initial - 0.5 * mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "options", "bound"),
    [
        ("fp16", {}, 0.01),
        ("onebit", {}, 0.1),
        ("qsgd", {}, 0.05),
        ("qsgd", {"levels": 15, "norm": "euclidean", "coding": "fixed"}, 0.25),
        ("fixed-8", {}, 0.02),
        ("fixed-4", {}, 0.1),
        ("fixed-2", {"feedback": True, "rounding": "nearest"}, 0.1),
    ],
)
def test_it_converges(system: str, options: dict[str, Any], bound: float) -> None:
    assert distance_left(run(system, 50, rate=0.15, **options)) < bound


def test_more_bits_are_more_bytes_and_fewer_than_the_baselines() -> None:
    sent = [bytes_of(run(system, 3), "a/w0") for system in ("fixed-2", "fixed-4", "fixed-8", "fp16", "baseline")]
    assert sent == sorted(sent)
    assert len(set(sent)) == len(sent)


def test_qsgds_answer_may_be_float32() -> None:
    plain, exact = run("qsgd", 3), run("qsgd", 3, answer="float32")
    assert bytes_of(exact, "c/gs") > 2 * bytes_of(plain, "c/gs")
    assert bytes_of(exact, "a/w0") < 0.5 * bytes_of(run("baseline", 3), "a/w0")


def test_qsgds_bucket_is_checked() -> None:
    with pytest.raises(InputError, match=r"systems\.qsgd\.bucket: a power of two"):
        run("qsgd", 1, bucket=100)


def test_fixed_may_leave_all_but_dense_layers_alone() -> None:
    assert [layer.name for layer in SMALL if dense(layer)] == ["first.weight"]
    some, every = (bytes_of(run("fixed-4", 3, layers=layers), "a/w0") for layers in ("dense", "all"))
    assert some > every
