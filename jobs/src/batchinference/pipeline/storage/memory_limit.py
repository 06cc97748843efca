"""Limits the memory that decoding one untrusted file may allocate."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

_changes = threading.Condition()
_active: list[int] = []
"""The limits of all threads that are within `memory_limit`."""
_outside: tuple[tuple[int, int], int, pa.MemoryPool]
"""The limit of the process, its memory and Arrow's pool before the first of these threads."""


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """Let the process allocate at most `size` bytes more than now. Above that, allocations fail,
    in Arrow with a MemoryError.

    Neither pyarrow nor Parquet can bound what a page or a dictionary expands to, and the sizes in
    a file may be false. The kernel counts private writable memory of the whole process, so the
    limits of several threads add up. Only Linux has such a limit."""
    if sys.platform != "linux":
        yield
        return
    with _changes:
        _enter(size)
    try:
        yield
    finally:
        with _changes:
            _leave(size)
            _changes.notify_all()


@contextmanager
def no_memory_limit() -> Iterator[None]:
    """Wait until no thread is within `memory_limit`, and let none enter it within the block."""
    with _changes:
        _changes.wait_for(lambda: not _active)
        yield


def _enter(size: int) -> None:
    global _outside  # noqa: PLW0603 - the limit is one of the process
    if not _active:
        limit = resource.getrlimit(resource.RLIMIT_DATA)
        _outside = (limit, _data_bytes(), pa.default_memory_pool())
        # other pools have reserved memory before, which the limit would not include
        pa.set_memory_pool(pa.system_memory_pool())
    _active.append(size)
    _apply()


def _leave(size: int) -> None:
    _active.remove(size)
    _apply()
    if not _active:
        pa.set_memory_pool(_outside[2])


def _apply() -> None:
    (soft, hard), base, _ = _outside
    if _active:
        limits = [base + sum(_active), soft, hard]
        soft = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return the private writable memory of the process, as RLIMIT_DATA counts it."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()
