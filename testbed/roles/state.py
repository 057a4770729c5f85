"""What a role remembers between steps, as a file: plain dataclasses of tensors and numbers, no pickle.

A state is written as one `.npz`: the member "state" is the dataclass as JSON with `{"array": k}` in place of
each tensor, the member "k" is that tensor.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np
import torch

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
            saved = msgspec.json.decode(file["state"].tobytes())
            arrays = [file[str(k)] for k in range(len(file.files) - 1)]
        _fill(state, saved, arrays)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, IndexError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: no checkpoint can be read there ({error}); start the run anew") from None


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
