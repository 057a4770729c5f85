"""Work on a device that is captured once and then launched as a whole.

A step of a small network is hundreds of operations of a few microseconds, and starting each costs the program as much
again. A CUDA graph starts all of them at once. It works on the memory that it was captured with: whoever launches it
writes its inputs there before and takes its results from there afterwards.

Independent parts of the work can be captured side by side (`branches`), so that a GPU which one of them leaves half
empty works on several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from testbed.gpu import standin
from testbed.gpu.moves import copies, refill_all, upload
from testbed.gpu.notes import note

T = TypeVar("T")
WORTH_CAPTURING = 16_000_000  # elements of a vector: 20 us of memory on a GPU, an operation's start is 5
WARM_UPS = 3  # what libraries set up at the first calls must not be captured


@dataclass
class Captured(Generic[T]):
    """Work that can be launched again.

    Attributes
    ----------
    launch : starts it; it works on what the captured function worked on
    made : what the function returned: the memory in which results are after each launch
    """

    launch: Callable[[], None]
    made: T


def captured(work: Callable[[], T], device: torch.device) -> Captured[T]:
    """Capture `work`, which must not wait for the device, nor move anything between it and the CPU.

    Raises
    ------
    RuntimeError
        It cannot be captured.
    """
    if device.type == "cuda":
        return _captured_on_gpu(work, device)
    again, made = standin.recorded(work)
    return Captured(again, made)


def can_capture(device: torch.device) -> bool:
    """Whether there are graphs on this device."""
    return device.type == "cuda" or (device == standin.DEVICE and standin.is_open())


def branches(parts: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """Do independent parts of captured work side by side where the device can."""
    if device.type != "cuda" or len(parts) == 1:
        return [part() for part in parts]
    main, streams = torch.cuda.current_stream(device), [torch.cuda.Stream(device) for _ in parts]
    made = []
    for part, stream in zip(parts, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            made.append(part())
    for stream in streams:
        main.wait_stream(stream)
    return made


def _captured_on_gpu(work: Callable[[], T], device: torch.device) -> Captured[T]:
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            work()
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()
    return Captured(graph.replay, made)


class Pass:
    """A function of tensors that returns tensors; captured at its second call, for inputs of the shapes of that.

    It is called as the function is, and what it returns is the caller's. Inputs of other shapes go operation by
    operation.

    Parameters
    ----------
    work : waits for nothing
    elements : of the vectors it is about: of long ones each operation takes longer than its start, and nothing is
        gained by a graph, which holds all of its memory
    """

    def __init__(self, work: Callable[..., list[Tensor]], elements: int) -> None:
        self._work = work
        self._calls = 0 if elements <= WORTH_CAPTURING else -1
        self._graph: Captured[list[Tensor]] | None = None
        self._inputs: list[Tensor] = []

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        device = next((each.device for each in inputs if each.device.type != "cpu"), torch.device("cpu"))
        if self._calls < 0 or not can_capture(device):
            return self._eagerly(inputs, device)
        self._calls += 1
        if self._calls == 1:
            return self._eagerly(inputs, device)
        if self._graph is None and not self._capture(inputs, device):
            return self._eagerly(inputs, device)
        if any(one.shape != other.shape for one, other in zip(inputs, self._inputs, strict=True)):
            return self._eagerly(inputs, device)
        assert self._graph is not None
        refill_all(self._inputs, inputs)
        self._graph.launch()
        return copies(self._graph.made)

    def _eagerly(self, inputs: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        return self._work(*(upload(each, device) for each in inputs))

    def _capture(self, inputs: Sequence[Tensor], device: torch.device) -> bool:
        self._inputs = [upload(each, device).clone() for each in inputs]
        try:
            self._graph = captured(lambda: self._work(*self._inputs), device)
        except RuntimeError as error:
            note(f"{self._work.__qualname__} is launched operation by operation: {error}")
            self._calls = -1
        return self._graph is not None
