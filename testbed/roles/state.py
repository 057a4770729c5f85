"""What a role remembers between steps, as a file: plain dataclasses of tensors and numbers, no pickle.

A state is written as one `.npz`: the member "state" is the dataclass as JSON with `{"array": k}` in place of
each tensor, the member "k" is that tensor.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.lib import format as npy

from testbed.errors import InputError


def save(path: Path, state: Any) -> None:
    """Write `state` to `path`."""
    arrays: list[np.ndarray] = []

    def take(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"a state cannot hold a {type(value).__name__}")
        arrays.append(value.detach().cpu().numpy())
        return {"array": len(arrays) - 1}

    text = np.frombuffer(msgspec.json.encode(state, enc_hook=take), np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, state=text, **{str(k): array for k, array in enumerate(arrays)})


def load(path: Path, state: Any) -> None:
    """Fill `state`, a fresh one of the same role, with what `save` wrote; tensors keep its device.

    Raises
    ------
    InputError
        The file is missing, torn, or of another kind of state.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            saved = msgspec.json.decode(_array(file, "state").tobytes())
            arrays = [_array(file, str(k)) for k in range(len(file.files) - 1)]
        _fill(state, saved, arrays)
    except Exception as error:  # of bytes that are no archive, zipfile and NumPy raise almost anything
        why = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path}: no checkpoint can be read there ({why}); start the run anew") from None


def _array(file: Any, name: str) -> np.ndarray:
    """A member of an open `.npz`; ValueError, before anything is allocated, where it says to be larger than it is."""
    with file.zip.open(f"{name}.npy") as member:
        read_header = npy.read_array_header_1_0 if npy.read_magic(member) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(member)
    if prod(shape) * dtype.itemsize > file.zip.getinfo(f"{name}.npy").file_size:
        raise ValueError(f"its member {name} is cut off")
    return file[name]


def _fill(state: Any, saved: dict[str, Any], arrays: list[np.ndarray]) -> None:
    names = {field.name for field in fields(state)}
    if set(saved) != names:
        raise ValueError(f"it holds {', '.join(sorted(saved))}, not {', '.join(sorted(names))}")
    for name, value in saved.items():
        present = getattr(state, name)
        if is_dataclass(present):
            _fill(present, value, arrays)
        elif isinstance(value, dict) and set(value) == {"array"}:
            device = present.device if isinstance(present, torch.Tensor) else None
            setattr(state, name, torch.from_numpy(arrays[value["array"]]).to(device))
        else:
            setattr(state, name, value)
