"""The connections between nodes: whoever has no key gets nothing and disturbs nobody, and what breaks is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

zmq = pytest.importorskip("zmq", reason="pyzmq is of the extra `emulation`")

from testbed.errors import PeerLost, PeerTimeout, ProtocolError  # noqa: E402
from testbed.fabrics.cluster import wire  # noqa: E402
from testbed.fabrics.cluster.doors import Doors  # noqa: E402
from testbed.fabrics.cluster.wire import NodeWire  # noqa: E402
from testbed.message import Message  # noqa: E402

HERE = "127.0.0.1"
STAMP = (1.5, ((0.5, 1.0, True), (1.0, 1.25, False)))
MAX_BYTES = 1 << 24


@dataclass
class Listener:
    """Stands for the role: takes what arrives."""

    came: list[Any] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mailbox = SimpleNamespace(lose=self.lost.__setitem__, check=self.check)

    def check(self, peer: str) -> None:
        if peer in self.lost:
            raise PeerLost(f"{peer}: {self.lost[peer]}")

    def arrived(self, peer: str, parcel: Any) -> None:
        self.came.append((peer, parcel))


@dataclass
class Pair:
    """A server and its worker, connected."""

    server: NodeWire
    worker: NodeWire
    heard: Listener
    address: str
    key: bytes


def with_pair(play: Callable[[Pair], Awaitable[None]], encrypted: bool = True) -> None:
    """Play with two roles that are connected."""

    async def main() -> None:
        doors = {name: Doors(HERE, encrypted, None, MAX_BYTES) for name in ("lps", "w0")}
        doors["lps"].listen("w0")
        sign = doors["lps"].sign
        doors["lps"].admit("w0", doors["w0"].sign.key)
        doors["w0"].dial("lps", sign.addresses["w0"], sign.key)
        heard = Listener()
        pair = Pair(
            NodeWire(doors["lps"], heard), NodeWire(doors["w0"], Listener()), heard, sign.addresses["w0"], sign.key
        )
        await asyncio.gather(pair.server.start(), pair.worker.start())
        try:
            await play(pair)
        finally:
            pair.server.close()
            pair.worker.close()

    asyncio.run(asyncio.wait_for(main(), 60))


async def until(holds: Callable[[], bool]) -> None:
    end_s = monotonic() + 10
    while not holds() and monotonic() < end_s:
        await asyncio.sleep(0.01)


def gradient(size: int = 300_000) -> Message:
    return Message("gradient", 3, [np.arange(size, dtype=np.float32), np.zeros(0, np.uint8)], (0.5,))


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_message_and_its_stamp_arrive_whole(encrypted: bool) -> None:
    async def play(pair: Pair) -> None:
        for message in (gradient(), Message("pull", 4), gradient(wire.PIECE_BYTES // 4)):
            await pair.worker.send("lps", (message, STAMP))
        await until(lambda: len(pair.heard.came) == 3)
        for (peer, (came, stamp)), sent in zip(
            pair.heard.came, (gradient(), Message("pull", 4), gradient(wire.PIECE_BYTES // 4)), strict=True
        ):
            assert (peer, stamp, came.kind, came.step, came.numbers) == (
                "w0",
                STAMP,
                sent.kind,
                sent.step,
                sent.numbers,
            )
            assert [b.tobytes() for b in came.buffers] == [b.tobytes() for b in sent.buffers]
            assert came.nbytes == sent.nbytes, "a stamp and pieces are not the system's bytes"
        assert pair.worker.sent_bytes["lps"] == sum(m.nbytes for _, (m, _) in pair.heard.came)

    with_pair(play, encrypted)


KINDS = [
    "no keys of ours",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("plain", "the server's public key")),
]


def strangers_socket(kind: str, pair: Pair, context: Any) -> Any:
    dealer = context.socket(zmq.DEALER)
    if kind != "plain":
        dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        dealer.curve_serverkey = zmq.curve_keypair()[0] if kind == "no keys of ours" else pair.key
    dealer.connect(pair.address)
    return dealer


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_gets_nothing_and_does_no_harm(kind: str) -> None:
    """It sends messages, as many as it can, and goes; the pair's own go on, in both directions."""

    async def play(pair: Pair) -> None:
        context = zmq.Context()
        dealer = strangers_socket(kind, pair, context)
        for _ in range(20):
            await pair.worker.send("lps", (gradient(1000), STAMP))
            await pair.server.send("w0", (gradient(1000), STAMP))
            with suppress(zmq.Again):
                dealer.send_multipart([Message("gradient", 1).header, bytes(8)], zmq.DONTWAIT)
            await asyncio.sleep(0.02)
        assert not dealer.poll(300), "nothing is for it"
        dealer.close(0)
        context.term()
        await pair.worker.send("lps", (Message("last"), STAMP))
        await until(lambda: len(pair.heard.came) == 21)
        assert [message.kind for _, (message, _) in pair.heard.came] == ["gradient"] * 20 + ["last"]
        assert not pair.heard.lost

    with_pair(play)


def test_bytes_of_no_protocol_do_no_harm() -> None:
    async def play(pair: Pair) -> None:
        _, _, port = pair.address.rpartition(":")
        streams = [socket.create_connection((HERE, int(port))) for _ in range(10)]
        for stream in streams:
            stream.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(5000))
            stream.close()
        await pair.worker.send("lps", (gradient(), STAMP))
        await until(lambda: bool(pair.heard.came))
        assert len(pair.heard.came) == 1 and not pair.heard.lost

    with_pair(play)


def test_only_the_nodes_address_is_listened_on() -> None:
    async def play(pair: Pair) -> None:
        _, _, port = pair.address.rpartition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(port)), 5)

    with_pair(play)


def test_ports_are_those_asked_for_and_one_line_says_that_none_is_free() -> None:
    async def main() -> None:
        with socket.create_server((HERE, 0)) as taken:
            port = taken.getsockname()[1]
            doors = Doors(HERE, True, (port, port), MAX_BYTES)
            with pytest.raises(Exception, match=f"no free port from {port} to {port}") as failure:
                doors.listen("w0")
            assert "\n" not in str(failure.value)
            doors.close()
        doors = Doors(HERE, True, (port, port), MAX_BYTES)
        doors.listen("w0")
        assert doors.sign.addresses["w0"] == f"tcp://{HERE}:{port}"
        doors.close()

    asyncio.run(main())


def test_a_lost_message_is_noticed() -> None:
    async def play(pair: Pair) -> None:
        pair.worker._sent["lps"] += 1  # as if one had been under way when a connection broke
        await pair.worker.send("lps", (gradient(10), STAMP))
        await until(lambda: bool(pair.heard.lost))
        assert "messages were lost" in pair.heard.lost["w0"] and not pair.heard.came

    with_pair(play)


def test_clocks_of_one_machine_do_not_differ() -> None:
    async def play(pair: Pair) -> None:
        found = await pair.worker.difference("lps")
        assert abs(found.ahead_s) <= found.error_s < 0.1
        await pair.worker.send("lps", (gradient(10), STAMP))
        await until(lambda: bool(pair.heard.came))
        assert len(pair.heard.came) == 1, "questions are none of the role's messages"
        assert pair.worker.sent_bytes["lps"] == gradient(10).nbytes

    with_pair(play)


@pytest.mark.slow
def test_a_peer_that_goes_or_is_mute_does_not_say_its_time_and_that_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It died, or stands still, after it had been told itself: nobody else would name it."""
    monkeypatch.setattr(wire, "ANSWER_S", 1.5)
    monkeypatch.setattr(wire, "LOOK_S", 0.1)

    async def goes(pair: Pair) -> None:
        pair.server.close()
        with pytest.raises(PeerLost, match="lps: the connection was lost"):
            await pair.worker.difference("lps")

    async def mute(pair: Pair) -> None:
        for line in pair.server._lines.values():
            line.stop()
        with pytest.raises(PeerTimeout, match="lps does not say"):
            await pair.worker.difference("lps")

    with_pair(goes)
    with_pair(mute)


@given(ahead=st.floats(-1e6, 1e6), out=st.floats(0, 1), back=st.floats(0, 1), thinks=st.floats(0, 1))
def test_a_difference_lies_within_its_error(ahead: float, out: float, back: float, thinks: float) -> None:
    heard = 5.0 + out + ahead
    found = wire.difference(5.0, heard, heard + thinks, 5.0 + out + thinks + back)
    assert abs(found.ahead_s - ahead) <= found.error_s + 1e-9 * max(1.0, abs(ahead))
    assert found.error_s == pytest.approx((out + back) / 2, abs=1e-8 * max(1.0, abs(ahead)))


@given(st.binary(max_size=200))
def test_no_last_frame_is_taken_that_is_none(frame: bytes) -> None:
    try:
        number, stamp, sizes = wire.unpacked(memoryview(frame))
    except ProtocolError:
        return
    assert wire.packed(number, stamp, sizes) == frame or any(byte not in (0, 1) for byte in frame[20:])


@given(st.lists(st.integers(0, 3 * wire.PIECE_BYTES), max_size=5))
def test_what_is_cut_comes_together_again(sizes: list[int]) -> None:
    frames = [memoryview(np.random.default_rng(size).bytes(size)) for size in sizes]
    pieces = wire.cut(frames)
    assert all(len(piece) <= wire.PIECE_BYTES for piece in pieces)
    assert [bytes(frame) for frame in wire.joined(pieces, sizes)] == [bytes(frame) for frame in frames]
    if pieces:
        with pytest.raises(ProtocolError):
            wire.joined([*pieces, memoryview(b"")], sizes)
        with pytest.raises(ProtocolError):
            wire.joined(pieces, [*sizes[:-1], sizes[-1] + wire.PIECE_BYTES])
