"""`Message.nbytes` is what a TCP connection carries for a message, to the byte."""

import socket
import threading

import numpy as np
import pytest
import zmq

from testbed.message import Message


class CountingProxy:
    """Forwards one TCP connection and counts the bytes that the connecting side sends."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        inside, _ = self._listener.accept()
        outside = socket.create_connection(("127.0.0.1", self._target))
        threading.Thread(target=self._forward, args=(outside, inside, False), daemon=True).start()
        self._forward(inside, outside, True)

    def _forward(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        while data := source.recv(1 << 16):
            self.count += len(data) if counted else 0
            sink.sendall(data)


@pytest.fixture
def pair():
    """(sender, receiver, proxy between them), connected."""
    context = zmq.Context()
    receiver = context.socket(zmq.DEALER)
    port = receiver.bind_to_random_port("tcp://127.0.0.1")
    proxy = CountingProxy(port)
    sender = context.socket(zmq.DEALER)
    sender.connect(f"tcp://127.0.0.1:{proxy.port}")
    sender.send(b"")
    assert receiver.poll(10_000)
    receiver.recv()
    yield sender, receiver, proxy
    sender.close(0)
    receiver.close(0)
    context.term()


@pytest.mark.parametrize(
    "message",
    [
        Message("gradient", 0),
        Message("gradient", 10**6, [np.zeros(255, np.uint8)]),
        Message("gradient", 1, [np.zeros(256, np.uint8)]),
        Message("mean", 3, [np.arange(9, dtype=np.float32), np.zeros(213_276, np.uint8)], (1.0,)),
        Message("empty", 2, [np.zeros(0, np.float32), np.ones(1, np.float32)]),
        Message("kind " * 60, 2),
    ],
    ids=lambda message: f"{message.kind[:8]}-{len(message.buffers)}",
)
def test_nbytes_is_what_tcp_carries(pair, message):
    sender, receiver, proxy = pair
    before = proxy.count
    sender.send_multipart(message.frames(), copy=False)
    assert receiver.poll(10_000)
    frames = receiver.recv_multipart(copy=False)
    assert proxy.count - before == message.nbytes

    arrived = Message.from_frames([frame.buffer for frame in frames])
    assert (arrived.kind, arrived.step, arrived.numbers) == (message.kind, message.step, message.numbers)
    assert [b.tobytes() for b in arrived.buffers] == [b.tobytes() for b in message.buffers]
    assert arrived.nbytes == message.nbytes
