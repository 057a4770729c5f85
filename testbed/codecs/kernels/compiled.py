"""How a kernel is declared, compiled and cached.

Numba's cache notices changes of the file that a kernel is in, and of no other; `warm_up` throws it away when any
file of this folder, which all kernels are in, has changed, since they use each other's parts.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit, types

from testbed.codecs.kernels.absent import is_absent

F32, F64, I64 = types.float32, types.float64, types.int64
U8, U16, U32, U64 = types.uint8, types.uint16, types.uint32, types.uint64


def read_only(dtype: types.Type) -> types.Array:
    return types.Array(dtype, 1, "C", readonly=True)


def writable(dtype: types.Type) -> types.Array:
    return types.Array(dtype, 1, "C")


_pending: list[tuple[Any, tuple[tuple[types.Type, ...], ...]]] = []  # declared, not compiled yet


def kernel(*signatures: tuple[types.Type, ...], **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Declare a kernel: cached on disk, without the GIL, compiled by `warm_up` for just these signatures."""

    def declare(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
        if not is_absent():
            _pending.append((dispatcher, signatures))
        return dispatcher

    return declare


_needed: ContextVar[bool] = ContextVar("kernels_needed", default=True)


@contextmanager
def not_needed() -> Iterator[None]:
    """Within it codecs are made that code nothing, so that no kernel has to be loaded for them."""
    token = _needed.set(False)
    try:
        yield
    finally:
        _needed.reset(token)


def warm_up() -> None:
    """Compile every kernel, or load it from numba's cache; later calls return at once.

    A lock file beside the cache lets one process compile while others wait: numba replaces cache files
    atomically, but two writers (on a shared home, perhaps of two CPU types) could pair one's index with
    the other's code. Kernels of a plug-in have a cache beside it.
    """
    while _needed.get() and (declared := _pending[:1]):
        folder = _cache_of(declared[0])
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "kernels.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _discard_stale(folder)
            while _pending and _cache_of(_pending[0]) == folder:
                dispatcher, signatures = _pending[0]
                for signature in signatures:
                    dispatcher.compile(signature)
                dispatcher.disable_compile()
                del _pending[0]


def _cache_of(declared: tuple[Any, object]) -> Path:
    """The folder of a kernel's cache."""
    return Path(declared[0].stats.cache_path)


def _discard_stale(folder: Path) -> None:
    """Empty the cache if it was compiled from other sources."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    stamp = folder / "kernels.sha256"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    for compiled in (*folder.glob("*.nbi"), *folder.glob("*.nbc")):
        compiled.unlink(missing_ok=True)
    stamp.write_text(digest)
