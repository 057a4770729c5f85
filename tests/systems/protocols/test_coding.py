"""The option `entropy`: the same training in other bytes and times, and "auto" where that is sooner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_runs import Played, experiment, network, play, quadratic_task

from testbed.codecs import Key, Ternary
from testbed.codecs.costs import COPY
from testbed.codecs.lossless.entropy import EntropyCoded
from testbed.errors import InputError, ProtocolError
from testbed.experiment.assembly import Assembly
from testbed.layout import Layout
from testbed.message import Message
from testbed.record.events import Sent, StepDone
from testbed.roles.compute import NOTHING, compute_model
from testbed.roles.roles import Roles
from testbed.systems import Node, Task, Work
from testbed.systems.protocols.coding import ENTROPY, PLANES, EntropyCoding
from testbed.wan.plan import NetworkPlan
from testbed.wan.profile import Link, Profile

TREE = Roles(("a", "b"), 4, "c")
FLAT = replace(TREE, kind="flat")
LAYOUT = Layout.of([("first.weight", (300, 200)), ("first.bias", (300,)), ("last.weight", (5, 300))])
FAST, SLOW = Link(10_000, 1), Link(10, 20)
M60 = compute_model("m60").device
STEPS = 3
OPTIONS = [
    ("terngrad", {}),
    pytest.param("terngrad", {"share_scales": False}, marks=pytest.mark.slow),
    pytest.param("terngrad", {"localize": False}, marks=pytest.mark.slow),
    pytest.param("fixed-2", {}, marks=pytest.mark.slow),
    pytest.param("fixed-4", {"feedback": True}, marks=pytest.mark.slow),
    pytest.param("fixed-8", {"layers": "dense"}, marks=pytest.mark.slow),
    ("qsgd", {"coding": "fixed"}),
    pytest.param("qsgd", {"coding": "fixed", "answer": "float32"}, marks=pytest.mark.slow),
]


def profile(lan: Link = FAST, wan: Link = SLOW, **special: Link) -> Profile:
    """A network with `special` WAN links to the global server, by region."""
    pairs = {pair: link for region, link in special.items() for pair in ((region, "c"), ("c", region))}
    return network(("a", "b", "c"), lan, wan, pairs)


def task(roles: Roles, net: Profile, device: str = "m60") -> Task:
    """What an assembly makes of an experiment."""
    model = compute_model(device).device
    plain = quadratic_task(roles, steps=STEPS, layout=LAYOUT)
    rate_mbit = NetworkPlan(roles.all, net).rate_mbit
    return replace(plain, rate_mbit=rate_mbit, seconds=model.seconds if model else None)


def played(system: str, net: Profile, roles: Roles = TREE, device: str = "m60", **options: Any) -> Played:
    return play(system, task(roles, net, device), net, options, device=device)


def sent(run: Played) -> dict[tuple[str, str], int]:
    """Bytes that roles have sent in the whole run, from each to each."""
    found: dict[tuple[str, str], int] = {}
    for event in run.of(Sent):
        found[event.node, event.peer] = found.get((event.node, event.peer), 0) + event.nbytes
    return found


@pytest.mark.parametrize("roles", [TREE, pytest.param(FLAT, marks=pytest.mark.slow)], ids=["tree", "flat"])
@pytest.mark.parametrize(("system", "options"), OPTIONS)
def test_training_is_the_same_to_the_last_bit(system: str, options: dict[str, Any], roles: Roles) -> None:
    runs = {choice: played(system, profile(), roles, entropy=choice, **options) for choice in ("off", "auto", "on")}
    assert torch.equal(runs["off"].models["full"], runs["on"].models["full"])
    assert torch.equal(runs["off"].models["full"], runs["auto"].models["full"])
    off, auto, on = (sum(sent(run).values()) for run in runs.values())
    assert on <= auto <= off and on < off
    assert runs["auto"].clock_s <= runs["off"].clock_s


@pytest.mark.parametrize(
    ("system", "options"),
    [
        ("terngrad", {}),
        pytest.param("fixed-4", {}, marks=pytest.mark.slow),
        pytest.param("qsgd", {"coding": "fixed"}, marks=pytest.mark.slow),
    ],
)
def test_auto_looks_at_the_link(system: str, options: dict[str, Any]) -> None:
    """All is coded at 10 Mbit/s; at 10 Gbit/s nothing, and no time goes into finding that out."""
    slow, fast = profile(SLOW, SLOW), profile(FAST, FAST)
    off, auto, on = (played(system, slow, entropy=choice, **options) for choice in ("off", "auto", "on"))
    assert sent(auto) == sent(on) != sent(off)
    off, auto, on = (played(system, fast, entropy=choice, **options) for choice in ("off", "auto", "on"))
    assert sent(auto) == sent(off) != sent(on)
    assert auto.clock_s == off.clock_s < on.clock_s


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str, str]]:
    """(from, to, kind) of all messages sent."""
    found: set[tuple[str, str, str]] = set()
    original = Node.send

    async def send(node: Node, peer: str, message: Message) -> None:
        if message.kind not in ("boundary", "scales"):
            found.add((node.name, peer, message.kind))
        await original(node, peer, message)

    monkeypatch.setattr(Node, "send", send)
    return found


def test_every_link_is_asked_for_itself_and_an_answer_for_the_slowest(kinds: set[tuple[str, str, str]]) -> None:
    """a's WAN link is fast, b's is slow; LPSs pass the answer on as it came."""
    played("terngrad", profile(a=FAST), entropy="auto")
    workers = {(worker, f"{worker[0]}/lps", "ternary") for worker in TREE.workers}
    answers = {(f"{worker[0]}/lps", worker, "levels-coded") for worker in TREE.workers}
    between = {("a/lps", "c/gs", "levels"), ("b/lps", "c/gs", "levels-coded")}
    down = {("c/gs", "a/lps", "levels-coded"), ("c/gs", "b/lps", "levels-coded")}
    assert kinds == workers | answers | between | down


def test_what_does_not_get_smaller_stays_plain(kinds: set[tuple[str, str, str]]) -> None:
    """Levels that are as common as one another take all of their bits; counting them tells."""
    sixteenths = torch.randint(16, (LAYOUT.size,), generator=torch.Generator().manual_seed(0)) / 15.0
    net = profile(SLOW, SLOW)
    even = replace(task(TREE, net), learner=lambda worker: Constant(sixteenths))
    play("fixed-4", even, net, {"entropy": "auto", "rounding": "nearest"})
    assert {kind for _, _, kind in kinds} == {"gradient", "sum", "mean"}


class Constant:
    """A worker whose gradient is always the same."""

    def __init__(self, vector: torch.Tensor) -> None:
        self.vector = vector

    def gradient(self, weights: torch.Tensor, step: int) -> tuple[float, torch.Tensor]:
        return 0.0, self.vector


def test_level_sums_cross_the_wan_in_what_they_are_worth() -> None:
    """Gaussian gradients: 4 workers' in 2.23 bits an element instead of 4, all 8 in 2.72 instead of 5."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(LAYOUT.size, generator=generator) for _ in TREE.workers]
    gaussian = replace(task(TREE, profile()), learner=lambda worker: Constant(gradients[worker]))
    off, on = (sent(play("terngrad", gaussian, profile(), {"entropy": choice})) for choice in ("off", "on"))

    def saved(sender: str, receiver: str) -> float:
        """Bits an element of the ternary layers."""
        return 8 * (off[sender, receiver] - on[sender, receiver]) / STEPS / 60_300

    assert saved("a/w0", "a/lps") == pytest.approx(1.6 - 1.22, abs=0.05)
    assert saved("a/lps", "c/gs") == pytest.approx(4 - 2.23, abs=0.05)
    assert saved("c/gs", "a/lps") == saved("b/lps", "b/w3") == pytest.approx(5 - 2.72, abs=0.05)


@pytest.mark.parametrize("choice", ["auto", "on"])
def test_coding_is_charged_to_who_does_it(choice: Any) -> None:
    """A worker codes 12,060 bytes of trits and takes apart the sums of 8, whose 17 levels are a symbol each."""
    off, on = (played("terngrad", profile(SLOW, SLOW), entropy=each).of(StepDone) for each in ("off", choice))
    assert M60 is not None
    symbols = COPY * 12_060
    parts = [ENTROPY.encode] if choice == "on" else [ENTROPY.survey, ENTROPY.encode - ENTROPY.survey]
    coding_s = sum(M60.seconds(Work(coding_nbytes=symbols * part)) for part in parts)
    opening = COPY * 60_300 * (ENTROPY.decode + PLANES.decode)
    coding_s += opening / (M60.memory_gbyte_s * 1e9)
    for before, after in zip(off, on, strict=True):
        both_s = after.codec_s - before.codec_s + after.compute_s - before.compute_s
        assert both_s == pytest.approx(coding_s, rel=1e-6)
        assert after.compute_s <= before.compute_s  # of the update's launch, the larger part is decoding now


@pytest.mark.slow
def test_measured_compute_is_asked_of_this_machine() -> None:
    slow, fast = profile(Link(1, 1), Link(1, 1)), profile(Link(1e6, 1), Link(1e6, 1))
    on, auto = (sent(played("terngrad", slow, device="measured", entropy=choice)) for choice in ("on", "auto"))
    assert on == auto
    off, auto = (sent(played("terngrad", fast, device="measured", entropy=choice)) for choice in ("off", "auto"))
    assert off == auto


def test_a_coded_message_says_so_and_is_refused_where_none_is_expected() -> None:
    coder = EntropyCoded(Ternary(LAYOUT))
    vector = torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(0))
    plain = Message("ternary", 7, coder.codec.encode(vector, Key(0, 0, 0)), (1.5,))
    coded = Message("ternary-coded", 7, coder.encode(vector, Key(0, 0, 0)), (1.5,))
    on = EntropyCoding(task(TREE, profile()), "on", {("worker", "ternary"): coder})
    assert on.opened("worker", plain) is plain and on.opening("worker", plain) == NOTHING
    opened = on.opened("worker", Message.from_frames([memoryview(frame) for frame in coded.frames()]))
    assert (opened.kind, opened.step, opened.numbers) == ("ternary", 7, (1.5,))
    assert torch.equal(coder.codec.decode(opened.buffers), coder.codec.decode(plain.buffers))
    for sender, coding in (("lps", on), ("worker", EntropyCoding(task(TREE, profile()), "off", {}))):
        with pytest.raises(ProtocolError, match="'ternary' is never entropy coded"):
            coding.opened(sender, coded)


def test_elias_codes_are_not_coded_again() -> None:
    with pytest.raises(InputError, match=r'systems\.qsgd\.entropy: .* set coding = "fixed"'):
        played("qsgd", profile(), entropy="auto")


def test_an_assembled_task_knows_links_and_device(small_data: None) -> None:
    it = experiment()
    found = Assembly(it).task(0)
    assert found.rate_mbit("us-west-1/lps", "us-east-2/gs") == it.plan.wan["us-west-1", "us-east-2"].goodput_mbit
    assert found.rate_mbit("us-west-1/w0", "us-west-1/lps") == it.plan.profile.lan.goodput_mbit
    assert M60 is not None and found.seconds is not None
    assert found.seconds(Work(nbytes=1e9)) == M60.seconds(Work(nbytes=1e9))
    assert Assembly(experiment(compute={"device": "measured"})).task(0).seconds is None
