"""Systems without servers: what a ring sums, what it sends, how long it takes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from small_runs import Played, network, play, quadratic_task

from testbed.record.events import LinkBytes, Sent, StepDone, is_wan
from testbed.roles.roles import Kind, Roles
from testbed.wan.profile import Link, Profile
from testbed.workloads.config import Training

FAST = network(("a", "b", "c"), lan=Link(1000, 0.2), wan=Link(100, 20))
WIRE = 1514 / 1448


def run(system: str, regions: tuple[str, ...] = ("a", "b"), workers: int = 2, steps: int = 6, **options: Any) -> Played:
    kind: Kind = "rings" if system == "hierarchical-allreduce" else "ring"
    roles = Roles(regions, workers, "c", kind)
    return play(system, quadratic_task(roles, steps), FAST, options)


def sums(regions: tuple[str, ...], workers: int, steps: int = 6) -> torch.Tensor:
    """The baseline's weights."""
    roles = Roles(regions, workers, "c")
    return play("baseline", quadratic_task(roles, steps), FAST, {}).models["full"]


@pytest.mark.parametrize("system", ["allreduce", "hierarchical-allreduce"])
@pytest.mark.parametrize(
    ("regions", "workers"),
    [
        (("a", "b"), 2),
        pytest.param(("a", "b", "c"), 3, marks=pytest.mark.slow),
        (("a",), 4),
        (("a", "b"), 1),
        (("a",), 1),
    ],
)
def test_all_workers_make_the_baselines_step(system: str, regions: tuple[str, ...], workers: int) -> None:
    played = run(system, regions, workers)
    expected = sums(regions, workers)
    assert set(played.states) == set(Roles(regions, workers, "c").workers)
    for state in played.states.values():
        assert torch.allclose(state.weights, expected, atol=1e-5)


def wan_payload(played: Played) -> dict[str, float]:
    total: Counter[str] = Counter()
    for event in played.of(LinkBytes):
        for link in filter(is_wan, event.wire_bytes):
            total[link] += event.wire_bytes[link]
    return {link: size / WIRE for link, size in total.items()}


def test_every_link_of_a_ring_carries_as_much_whatever_its_length() -> None:
    """2 (n - 1) / n of the vector, and headers."""
    for workers in (2, 4):
        played = run("allreduce", workers=workers, steps=5, ahead=0)
        count, size = 2 * workers, 4 * played.system.task.layout.size
        sent = {(event.node, event.peer): event for event in played.of(Sent) if event.messages > 1}
        onward = [event for event in sent.values() if event.messages > 5]
        assert len(onward) == count
        for event in onward:
            assert event.messages == 5 * 2 * (count - 1) + 1  # and the marker of the segment's end
            headers = event.messages * 40
            assert 5 * 2 * (count - 1) / count * size == pytest.approx(event.nbytes, abs=headers)


@pytest.mark.slow
def test_rings_send_less_across_the_wan_than_one_ring() -> None:
    ring, rings = (wan_payload(run(system, workers=4)) for system in ("allreduce", "hierarchical-allreduce"))
    task = run("allreduce", workers=4).system.task
    vector = 6 * 4 * task.layout.size
    assert ring.keys() == rings.keys() == {"a>b", "b>a"}
    for link in ring:
        assert vector < rings[link] < 1.6 * vector < ring[link] < 2.4 * vector


def test_a_ring_takes_the_time_that_its_turns_take() -> None:
    """In one region: n - 1 turns twice, each a chunk and a delay; what computes is subtracted."""
    slow: Profile = network(("a", "b", "c"), lan=Link(0.08, 100.0), wan=Link(100, 20))
    roles = Roles(("a",), 4, "c", "ring")
    played = play("allreduce", quadratic_task(roles, 2), slow, {"ahead": 0})
    done = [event for event in played.of(StepDone) if event.node == "a/w0"]
    (nbytes,) = {event.nbytes for event in played.of(Sent) if (event.node, event.peer) == ("a/w0", "a/w1")}
    turns_s = (nbytes - 14) / 2 / 10_000 + 6 * 0.05  # at 10,000 bytes a second; both steps sent as much, and a marker
    assert done[1].time_s - done[0].time_s - done[1].compute_s - (done[1].codec_s or 0) == pytest.approx(
        turns_s, rel=0.02
    )


CUTS = [(2, 1.0), *(pytest.param(ahead, 1e-5, marks=pytest.mark.slow) for ahead in (2, 4))]


@pytest.mark.parametrize(("ahead", "segment_mib"), CUTS)
def test_no_more_segments_cross_a_link_in_a_round_trip_than_were_waited_for(ahead: int, segment_mib: float) -> None:
    """gloo's hand-shake: over a long, fast link a ring takes a round trip for as many segments as it runs ahead."""
    far = network(("a", "b", "c"), lan=Link(1e5, 0.001), wan=Link(1e5, 100))
    roles = Roles(("a", "b"), 4, "c", "ring")
    played = play("allreduce", quadratic_task(roles, 3), far, {"ahead": ahead, "segment_mib": segment_mib})
    done = [event.time_s for event in played.of(StepDone) if event.node == "a/w0"]
    (sent,) = {event.messages for event in played.of(Sent) if (event.node, event.peer) == ("a/w0", "a/w1")}
    segments = (sent - 1) // 3  # of a step; one message is the marker
    assert segments >= 2 * 7 * max(2, ahead), "two times round, all chunks but one, in as many pieces"
    assert done[2] - done[1] == pytest.approx(segments / ahead * 0.1, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("segment_mib", [1.0, 1e-5])
def test_how_it_is_cut_changes_no_sum(ahead: int, segment_mib: float) -> None:
    expected = sums(("a", "b"), 3)
    for system in ("allreduce", "hierarchical-allreduce"):
        played = run(system, workers=3, ahead=ahead, segment_mib=segment_mib)
        assert torch.allclose(played.models["full"], expected, atol=1e-5)


def test_the_model_keeps_its_moving_average() -> None:
    roles = Roles(("a", "b"), 2, "c", "ring")
    models = play("allreduce", quadratic_task(roles, 4, training=Training(steps=4, ema_decay=0.9)), FAST, {}).models
    assert {"full", "ema"} <= set(models)


def test_who_is_beside_whom() -> None:
    ring = Roles(("a", "b"), 2, "c", "ring")
    assert ring.all == ring.workers and ring.lpss == ()
    assert ring.neighbours("a/w1") == ("b/w0", "a/w0") and ring.neighbours("b/w1") == ("a/w0", "b/w0")
    rings = Roles(("a", "b", "c"), 3, "c", "rings")
    assert rings.neighbours("b/w1") == ("b/w2", "b/w0", "c/w1", "a/w1")
    assert Roles(("a",), 1, "c", "ring").neighbours("a/w0") == ()
    both = Roles(("a", "b"), 2, "c", "tree", beside=("ring", "rings"))
    assert both.neighbours("a/w0") == ("a/lps", "a/w1", "b/w1", "b/w0")
    assert both.neighbours("c/gs") == ("a/lps", "b/lps") and both.server_of("a/w0") == "a/lps"
    assert ("b", "a") in both.wan_pairs
