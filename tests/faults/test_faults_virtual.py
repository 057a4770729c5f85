"""Faults on the virtual fabric: exactly what arithmetic says, the same in any number of segments."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import play, word
from small_runs import EXCHANGING, each_system, experiment, start

from testbed.errors import RunError
from testbed.message import Message
from testbed.record import lines
from testbed.record.events import Capacity, Cut, Faulted, Reset, StepDone
from testbed.record.reader import load
from testbed.roles.compute import Work
from testbed.roles.node import Node
from testbed.wan.profile import Link
from testbed.wan.tcp import LEAST_TIMEOUT_S, OPENED, measured_s, retry_s, window_bytes

RTT_S = 0.021  # of the scripted network: WAN 20 ms, LAN 1 ms
MBYTE = Message("data", 0, [np.zeros(125_000, np.float64)])  # 1 MB: 80 ms at 100 Mbit/s


def one_way(sent_at_s: float, faults: list[str], patience_s: float = inf) -> float:
    """When a megabyte that "a/w0" sends to the global server at a moment has arrived."""
    arrived: list[float] = []

    async def worker(node: Node) -> None:
        await node.sleep(sent_at_s)
        await node.send("a/lps", MBYTE)

    async def lps(node: Node) -> None:
        message = await node.recv("a/w0")
        await node.send("c/gs", message)

    async def server(node: Node) -> None:
        await node.recv("a/lps")
        arrived.append(node.now())

    play({"a/w0": worker, "a/lps": lps, "c/gs": server}, faults=faults, patience_s=patience_s)
    return arrived[0]


WINDOW = window_bytes(Link(100, 20))  # 524 kB, which is 42 ms of the link
SRTT_S = measured_s(RTT_S, 12.5e6, WINDOW, 1e6)


def test_over_a_link_that_is_cut_a_window_goes_and_the_rest_from_tcps_next_try_on():
    plain_s = one_way(1.0, [])
    cut_at_s, heal_s = plain_s - 0.08, 5.0  # in the midst of the transfer over the WAN
    left = 12.5e6 * (0.08 - RTT_S / 2)
    again_s, timed_out = retry_s(cut_at_s + WINDOW / 12.5e6 + RTT_S, heal_s, SRTT_S)
    assert heal_s <= again_s <= 2 * heal_s and timed_out
    arrived_s = one_way(1.0, [f"cut a>c at {cut_at_s}s for {heal_s - cut_at_s}s"])
    # What is left, 345 kB, begins with one segment and doubles: 182 kB in seven round trips, the rest in the next.
    assert 1448 * 127 < left - WINDOW < 1448 * 255
    rest_s = (left - WINDOW - 1448 * 127) / 12.5e6
    assert arrived_s == pytest.approx(again_s + 7 * RTT_S + rest_s + RTT_S / 2, abs=1e-3)


def test_where_acknowledgements_alone_are_lost_the_window_is_halved_and_does_not_begin_anew():
    plain_s = one_way(1.0, [])
    cut_at_s, heal_s = plain_s - 0.08, 5.0
    left_s = 0.08 - RTT_S / 2 - WINDOW / 12.5e6
    again_s, _ = retry_s(cut_at_s + RTT_S / 2, heal_s, SRTT_S)  # the last one heard was on its way already
    arrived_s = one_way(1.0, [f"cut a=c at {cut_at_s}s for {heal_s - cut_at_s}s"])
    assert arrived_s == pytest.approx(again_s + left_s + RTT_S / 2, abs=1e-3)


def test_a_link_that_is_cut_again_and_again_leaves_tcp_an_ever_smaller_window():
    """Half of it with each loss, and a segment more in each round trip: what Reno does, which emulated hosts use."""

    def took_s(cuts: int) -> float:
        """The last megabyte's time; the megabytes before, two seconds apart, each met a cut as it was sent."""
        arrived: list[float] = []

        async def lps(node: Node) -> None:
            for number in range(cuts + 1):
                await node.sleep(2.0 * (number + 1) - node.now())
                await node.send("c/gs", MBYTE)

        async def server(node: Node) -> None:
            for _ in range(cuts + 1):
                await node.recv("a/lps")
                arrived.append(node.now())

        faults = [f"cut a=c at {2.0 * (k + 1) - 0.001}s for 400ms" for k in range(cuts)]
        play({"a/lps": lps, "c/gs": server}, faults=faults)
        return arrived[-1] - 2.0 * (cuts + 1)

    times_s = [took_s(cuts) for cuts in range(8)]
    assert times_s[1] == pytest.approx(times_s[0])  # half of all is as much as the link holds
    assert times_s[2:] == sorted(times_s[2:]) and times_s[7] > 2 * times_s[0]


def test_without_acknowledgements_nothing_goes_either():
    assert one_way(1.0, ["cut c>a at 0s for 2s"]) > 2.0


def test_what_was_sent_before_arrives_and_other_links_go_on():
    plain_s = one_way(1.0, [])
    assert one_way(1.0, [f"cut a=c at {plain_s - 0.005}s for 9s"]) == plain_s  # all sent: within the last 10.5 ms
    assert one_way(1.0, ["cut b=c at 0s for 9s", "cut a=b at 0s"]) == plain_s


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("tries", range(12))
def test_tcp_tries_again_after_twice_the_time(tries: int, alone: bool):
    first_s = SRTT_S + LEAST_TIMEOUT_S
    probe_s = first_s if alone else 2 * SRTT_S
    expected_s = probe_s + sum(min(2**k * first_s, 120.0) for k in range(tries))
    assert retry_s(7.0, 7.0 + expected_s - 1e-6, SRTT_S, alone) == (pytest.approx(7.0 + expected_s), tries > 0)
    again_s, timed_out = retry_s(7.0, 7.0 + expected_s + 1e-6, SRTT_S, alone)
    assert again_s > 7.0 + expected_s + 1e-6 and timed_out


def test_the_round_trip_that_is_measured_is_that_of_the_queue():
    assert measured_s(0.05, 10e6, 2e6, 100) == pytest.approx(0.05, abs=1e-4)
    assert measured_s(0.05, 10e6, 2e6, 500e3) == pytest.approx(0.1)  # the last waits for all before
    assert measured_s(0.05, 10e6, 2e6, 50e6) == pytest.approx(0.2)  # a window
    assert measured_s(0.05, 10e6, 100e3, 50e6) == pytest.approx(0.05)  # which may be less than the path holds


def test_a_connection_in_a_black_hole_waits_as_over_a_cut_link_and_all_others_go_on():
    plain_s = one_way(1.0, [])
    for fault in ("blackhole a/lps=c/gs", "blackhole a/lps>c/gs", "blackhole c/gs>a/lps"):
        assert one_way(1.0, [f"{fault} at 1.005s for 2s"]) == one_way(1.0, ["cut a=c at 1.005s for 2s"]) > 3.0
    assert one_way(1.0, ["blackhole b/lps=c/gs at 0s for 9s", "blackhole a/w1=a/lps at 0s for 9s"]) == plain_s
    assert one_way(1.0, ["blackhole a/w0=a/lps at 0s for 3s"]) > 3.0  # inside a region, too


def test_what_is_on_its_way_on_a_connection_that_is_reset_is_sent_again_on_a_new_one():
    """Three round trips until it is open; in the next five its window grows from 14.5 kB to what the link holds."""
    began = 10 * 1448 * (2**5 - 1)
    for reset_s in (1.03, 1.0985):  # in the midst of it over the WAN; when all is sent and nothing has arrived
        expected_s = reset_s + OPENED * RTT_S + 5 * RTT_S + (1e6 - began) / 12.5e6 + RTT_S / 2
        assert one_way(1.0, [f"reset a/lps=c/gs at {reset_s}s"]) == pytest.approx(expected_s, abs=1e-3)


def test_other_connections_go_on_and_one_that_is_idle_pays_when_it_is_used():
    plain_s = one_way(1.0, [])
    assert one_way(1.0, ["reset b/lps=c/gs at 1.03s", "reset a/w1=a/lps at 1.03s"]) == plain_s
    assert one_way(1.0, ["reset a/lps=c/gs at 1.0995s"]) == plain_s  # it has arrived
    assert plain_s < one_way(1.0, ["reset a/lps=c/gs at 0.5s"]) < plain_s + 5 * RTT_S  # slow start, no handshake
    assert one_way(1.0, ["reset a/lps=c/gs at 1.05s", "cut a=c at 1.01s for 2s"]) > 3.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2000), max_size=6), st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_every_message_arrives_once_and_in_its_order_whatever_is_reset(resets_ms: list[int], pauses_ms: list[int]):
    arrived: dict[str, list[float]] = {"a/lps": [], "c/gs": []}

    async def lps(node: Node) -> None:
        node.spawn(server(node))
        for number, pause_ms in enumerate(pauses_ms):
            await node.sleep(pause_ms / 1e3)
            await node.send("a/lps" if node.name == "c/gs" else "c/gs", Message("data", 0, [np.zeros(9999)], (number,)))

    async def server(node: Node) -> None:
        for _ in pauses_ms:
            message = await node.recv("a/lps" if node.name == "c/gs" else "c/gs")
            arrived[node.name].append(message.numbers[0])

    play({"a/lps": lps, "c/gs": lps}, faults=[f"reset a/lps=c/gs at {at_ms}ms" for at_ms in resets_ms])
    assert list(arrived.values()) == [list(range(len(pauses_ms)))] * 2


def test_a_connection_that_is_reset_before_it_ever_carries_anything_ends_the_run_when_patience_does():
    with pytest.raises(RunError, match=r"a message of a/lps has been on its way for 51 s: its connection to c/gs is"):
        one_way(1.0, ["reset a/lps=c/gs at 1.03s every 50ms"], patience_s=50.5)


def test_a_reset_says_how_many_messages_it_held_up():
    async def worker(node: Node) -> None:
        for _ in range(3):
            await node.send("a/lps", MBYTE)

    async def lps(node: Node) -> None:
        for _ in range(3):
            await node.recv("a/w0")

    events, _ = play({"a/w0": worker, "a/lps": lps}, faults=["reset a/*=a/lps at 9ms"])
    resets = {event.link: event.resent for event in events if isinstance(event, Reset)}
    # Of the three megabytes, 8 ms each, one is there, one is being sent, and one has not begun.
    assert resets == {"a/w0=a/lps": 1, "a/w1=a/lps": 0}


def test_a_cut_that_never_ends_stops_the_run_and_is_named():
    with pytest.raises(RunError, match=r"the run is stuck: a>c is cut; c>a is cut; .*c/gs for a/lps"):
        one_way(1.0, ["cut a=c at 0s"])


def test_a_cut_longer_than_patience_does_so_too():
    assert one_way(1.0, ["cut a=c at 0s for 100s"], patience_s=200) > 100
    with pytest.raises(RunError, match="a>c is cut"):
        one_way(1.0, ["cut a=c at 0s for 100s"], patience_s=50)


def test_a_brown_out_takes_as_many_times_as_long():
    plain_s = one_way(0.0, [])
    slower_s = one_way(0.0, ["rate a=c factor=0.25 at 0s"])
    assert slower_s - plain_s == pytest.approx(3 * 0.08, rel=0.01)
    assert one_way(0.0, ["delay a=c ms=40 at 0s"]) - plain_s == pytest.approx(0.04, abs=1e-9)


def test_jitter_delays_what_is_sent_by_the_draw_of_its_moment():
    plain_s = one_way(0.0, [])
    assert plain_s < one_way(0.0, ["jitter a=c ms=40 at 0s"]) < plain_s + 0.04


def test_with_loss_tcp_gets_through_what_mathis_says():
    """1448 bytes a round trip of 20 ms, times sqrt(3/2) / sqrt(p): 0.709 Mbit/s at p = 1."""
    plain_s = one_way(0.0, [])
    for p, burst, mbit in ((0.01, 1, 7.09), (0.0001, 1, 70.9), (0.01, 100, 70.9)):
        slower_s = one_way(0.0, [f"loss a=c p={p} burst={burst} at 0s"])
        assert slower_s - plain_s == pytest.approx(8 / mbit - 8 / 100, rel=0.03), (p, burst)
    assert one_way(0.0, ["loss a=c p=1e-6 at 0s"]) == plain_s  # the link is slower


def computed(faults: list[str]) -> list[float]:
    """When three computations of a second each of "a/w0" are done, but for the device's half a millisecond for each."""
    done: list[float] = []

    async def worker(node: Node) -> None:
        for _ in range(3):
            await node.compute(Work(seconds=1.0), lambda: None)
            done.append(round(node.now(), 1))

    play({"a/w0": worker}, faults=faults)
    return done


def test_who_is_slow_computes_for_longer_while_it_lasts():
    assert computed([]) == [1, 2, 3]
    assert computed(["slow a/w0 factor=3 at 0.5s for 1.5s"]) == [2, 3, 4]
    assert computed(["slow a/w1 factor=3 at 0.5s for 1.5s"]) == [1, 2, 3]
    assert computed(["slow a factor=2 at 0s", "slow */w0 factor=3 at 0s"]) == pytest.approx([6, 12, 18])


def test_who_is_paused_goes_on_as_it_was():
    assert computed(["pause a/w0 at 1.5s for 10s"]) == [1, 12, 13]


def test_a_pause_that_never_ends_stops_the_run_and_says_who_waits():
    async def worker(node: Node) -> None:
        await node.send("a/lps", word("one"))

    async def lps(node: Node) -> None:
        await node.compute(Work(seconds=2.0), lambda: None)
        await node.recv("a/w0")

    with pytest.raises(RunError, match=r"the run is stuck: a/lps stands still; .*a/w0 for a/lps"):
        play({"a/w0": worker, "a/lps": lps}, faults=["pause a/lps at 1s"])


def test_who_is_paused_takes_what_has_arrived_afterwards_in_its_order():
    taken: list[tuple[float, str]] = []

    async def worker(node: Node) -> None:
        for text in ("one", "two", "three"):
            await node.send("a/lps", word(text))
            await node.sleep(2.0)

    async def lps(node: Node) -> None:
        for _ in range(3):
            taken.append(((await node.recv("a/w0")).kind, node.now()))

    play({"a/w0": worker, "a/lps": lps}, faults=["pause a/lps at 1s for 2.5s"])
    assert [kind for kind, _ in taken] == ["one", "two", "three"]
    assert taken[1][1] == 3.5 and taken[2][1] == pytest.approx(4.0, abs=0.01)


def test_faults_are_recorded_at_their_times():
    async def worker(node: Node) -> None:
        await node.sleep(10.0)

    events, _ = play({"a/w0": worker}, faults=["cut a>b at 2s for 3s", "rate b>a factor=0.5 at 4s"])
    found = [event for event in events if isinstance(event, Faulted | Cut | Capacity)]
    assert [(type(event).__name__, event.time_s) for event in found] == [
        ("Faulted", 2.0),
        ("Cut", 2.0),
        ("Faulted", 4.0),
        ("Capacity", 4.0),
        ("Faulted", 5.0),
        ("Cut", 5.0),
    ]


def recorded(result: Path) -> list:
    events = map(lines.decode, lines.whole_lines(result / lines.FILE_NAME))
    return [event for event in events if isinstance(event, StepDone | Faulted | Cut)]


@pytest.mark.parametrize("system", each_system(["baseline", "weightgrad", "diloco", "gaia"]))
def test_a_run_repeats_to_the_last_bit(small_data: None, system: str, tmp_path: Path) -> None:
    parts = {"systems": {system: EXCHANGING.get(system, {})}, "training": {"steps": 8}, "run": {"checkpoint_steps": 4}}
    plain_s = load(start(experiment(**parts), tmp_path / "plain")).results[0].steps["time_s"].max()
    faults = [
        f"partition us-west-1 at {plain_s / 8}s for {plain_s / 4}s every {plain_s}s",
        f"slow */w0 factor=4 mtbf {plain_s / 4}s mttr {plain_s / 8}s seed=5",
        f"pause us-east-1/lps at {plain_s / 4}s for {plain_s / 8}s",
    ]
    first, second = (load(start(experiment(**parts, faults=faults), tmp_path / name)).results[0] for name in "12")
    events = recorded(first.folder)
    assert events == recorded(second.folder)
    assert {event.fault for event in events if isinstance(event, Faulted)} == {0, 1, 2}
    assert first.steps["time_s"].max() > plain_s + plain_s / 8
