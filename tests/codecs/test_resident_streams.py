"""Messages of a device whose last buffer the CPU codes: symbols come down once a message, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from elsewhere import PLACES
from test_backend import Place, layout_of, same_bits, vector
from test_resident import as_bytes

from testbed.codecs import Key
from testbed.codecs.adaptive import Adaptive, AdaptiveToNorm
from testbed.codecs.base import Codec
from testbed.codecs.lossless.entropy import EntropyCoded
from testbed.codecs.lossless.planes import coded_qsgd, coded_uniform
from testbed.codecs.memory import ErrorFeedback, remembering
from testbed.codecs.qsgd import QSGD
from testbed.codecs.resident import placed
from testbed.codecs.uniform import Uniform
from testbed.errors import CodecError
from testbed.gpu import doubts
from testbed.gpu.standin import DEVICE, standin
from testbed.layout import Layout
from testbed.roles import state

KEY = Key(0, 0, 0)

on_devices = pytest.mark.parametrize("place", PLACES)

CODECS: dict[str, Callable[[Layout], Codec]] = {
    "qsgd-elias": lambda layout: QSGD(layout, coding="elias", smallest=0),
    "adaptive": Adaptive,
}


@on_devices
@pytest.mark.parametrize("name", CODECS)
def test_only_the_last_buffer_is_on_the_cpu(place: Place, name: str) -> None:
    codec = CODECS[name](layout_of(1025))
    with place() as device:
        *others, last = placed(codec, device).encode(vector(codec.layout.size, 1).to(device), KEY)
        assert {buffer.device.type for buffer in others} == {torch.device(device).type}
        assert last.device.type == "cpu"


@pytest.mark.parametrize("name", CODECS)
def test_a_message_waits_once_and_takes_few_operations(name: str) -> None:
    """However many layers: for its symbols, which come down in one transfer and go up in one."""
    codec = remembering(CODECS[name](Layout.of([(f"l{k}.weight", (40, 100)) for k in range(10)])))
    values = vector(codec.layout.size, 1)
    with standin() as counts:
        twin, there = placed(codec, DEVICE), values.to(DEVICE)
        for step in range(4):
            waits, down, begun = counts.waits, counts.down, counts.launches
            message = twin.encode(there, Key(0, 0, step), None)
            assert counts.waits == waits + 1
            assert counts.down == down + codec.layout.size
            up, ups = counts.up, counts.ups
            twin.decode(message)
            assert counts.waits == waits + 1
        assert counts.up == up + codec.layout.size
        assert counts.ups == ups + 1
        assert counts.launches - begun <= 24


@on_devices
@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize("name", CODECS)
def test_a_value_that_is_no_number_is_told_later(place: Place, name: str, value: float) -> None:
    """Until then its message is coded, and can be read."""
    codec = CODECS[name](layout_of(100))
    values = vector(codec.layout.size, 1)
    values[101] = value
    with place() as device:
        twin = placed(codec, device)
        doubts.settle()
        assert twin.decode(twin.encode(values.to(device), KEY)).shape == values.shape
        with pytest.raises(CodecError, match=r"layer a\.bias: NaN or infinity among its values"):
            doubts.settle()


@on_devices
@pytest.mark.parametrize("name", CODECS)
def test_a_message_of_another_codec_is_refused(place: Place, name: str) -> None:
    codec = CODECS[name](layout_of(100))
    with place() as device:
        twin = placed(codec, device)
        message = twin.encode(vector(codec.layout.size, 1).to(device), KEY)
        with pytest.raises(CodecError, match=f"a message of {len(message)} buffers"):
            twin.decode(message[1:])
        with pytest.raises(CodecError):
            twin.decode([*message[:-1], message[-1][:-1].clone()])


# --- adaptive -----------------------------------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("magnitude", [1e-44, 1e-30, 3e38])
def test_steps_stay_within_float32s_range_alike(place: Place, magnitude: float) -> None:
    """Of one layer of zeros and of one of values as large as this."""
    codec = Adaptive(layout_of(100), 0.002)
    values = torch.zeros(codec.layout.size)
    values[:100] = magnitude
    with place() as device:
        twin = placed(codec, device)
        found, expected = twin.encode(values.to(device)), codec.encode(values)
        assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
        assert same_bits(twin.decode(found).cpu(), codec.decode(expected))


@on_devices
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("size", [0, 9, 5121])
def test_errors_are_fractions_of_the_first_vector_alike(place: Place, feedback: bool, size: int) -> None:
    """That was not all zeros; vectors and steps are multiples of powers of two, of which all sums are exact."""
    codec = AdaptiveToNorm(Adaptive(layout_of(size), 1 / 12), feedback)
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(5):
            scale = (0, 0, 1, 0.5, 0.25)[step]
            values = vector(codec.layout.size, step).sign() * scale
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            assert as_bytes(found) == [buffer.tobytes() for buffer in expected]
            assert float(memory.mean_square) == pytest.approx(float(memory_here.mean_square), rel=1e-12)
            if memory.residual is not None and memory_here.residual is not None:
                assert memory.residual.device.type == torch.device(device).type
                assert same_bits(memory.residual.cpu(), memory_here.residual)


@on_devices
def test_a_sender_goes_on_from_a_checkpoint_on_the_device_or_the_cpu(place: Place, tmp_path: Path) -> None:
    codec = AdaptiveToNorm(Adaptive(layout_of(9)), True)
    values, later = vector(codec.layout.size, 1), vector(codec.layout.size, 2)
    with place() as device:
        twin, memory = placed(codec, device), codec.start()
        twin.encode(values.to(device), KEY, memory)
        state.save(tmp_path / "state.npz", memory)
        loaded, loaded_here = codec.start(), codec.start()
        for each in (loaded, loaded_here):
            state.load(tmp_path / "state.npz", each)
        expected = as_bytes(twin.encode(later.to(device), KEY, memory))
        assert as_bytes(twin.encode(later.to(device), KEY, loaded)) == expected
    assert [buffer.tobytes() for buffer in codec.encode(later, KEY, loaded_here)] == expected
    assert float(loaded_here.mean_square) == float(loaded.mean_square) > 0


@on_devices
def test_a_vectors_own_mean_square_is_that_of_what_is_coded(place: Place) -> None:
    codec = ErrorFeedback(Adaptive(layout_of(3000)))
    memory, memory_here = codec.start(), codec.start()
    with place() as device:
        twin = placed(codec, device)
        for step in range(3):
            values = vector(codec.layout.size, step)
            found = twin.encode(values.to(device), Key(0, 0, step), memory)
            expected = codec.encode(values, Key(0, 0, step), memory_here)
            steps = found[0].cpu()
            assert torch.allclose(steps, torch.from_numpy(expected[0]), rtol=1e-6)
            assert torch.allclose(memory.residual.cpu(), memory_here.residual, atol=1.01 * float(steps.max()))


# --- what is entropy coded on top ------------------------------------------------------------------------------------

CODED: dict[str, Callable[[Layout], EntropyCoded]] = {
    "uniform": lambda layout: coded_uniform(Uniform(layout, 4)),
    "bytes": lambda layout: coded_uniform(Uniform(layout, 8)),
    "qsgd": lambda layout: coded_qsgd(QSGD(layout, smallest=8)),
}


@on_devices
@pytest.mark.parametrize("name", CODED)
def test_a_twins_message_is_entropy_coded_alike(place: Place, name: str) -> None:
    coder = CODED[name](layout_of(1025))
    values, key = vector(coder.layout.size, 1), Key(1, 2, 3)
    plain = coder.codec.encode(values, key)
    with place() as device:
        twin = placed(coder.codec, device)
        message = twin.encode(values.to(device), key)
        coded = coder.pack(message)
        assert bytes(coded[-1]) == bytes(coder.pack(plain)[-1])
        opened = coder.unpack(coded)
        assert as_bytes(opened) == as_bytes(message)
        assert same_bits(twin.decode(opened).cpu(), coder.codec.decode(plain))
