"""Limits the memory that decoding one untrusted file may allocate.

The kernel can limit only the whole process, so the limit also applies to other threads meanwhile:
to one that commits rows or fetches a file, for example. These threads do not wait, because files
that reach the limit are rare, and commits and fetches are slow. Instead, work that ran out of
memory is repeated without a limit (`beside_limits`), and a row fails only if it takes too much
memory while no such work runs (`alone`). So no thread fails because of the file of another one.
"""

from __future__ import annotations

import errno
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

Result = TypeVar("Result")

_changes = threading.Condition()
_active: list[int] = []
"""The limits of all threads that are within `memory_limit`."""
_outside: tuple[tuple[int, int], int, pa.MemoryPool]
"""The limit of the process, its memory and Arrow's pool before the first of these threads."""
_alone = 0
"""The number of threads that are within `memory_limit` alone, or wait to be."""
_others = 0
"""The number of threads that are within `beside_limits`."""


@contextmanager
def memory_limit(size: int, *, alone: bool = False) -> Iterator[None]:
    """Let the process allocate at most `size` bytes more than now. Above that, allocations fail,
    in Arrow with a MemoryError. If `alone`, wait until no thread is within `beside_limits`, and let
    none enter it meanwhile.

    Neither pyarrow nor Parquet can bound what a page or a dictionary expands to, and the sizes in
    a file may be false. The kernel counts private writable memory of the whole process, so the
    limits of several threads add up. Only Linux has such a limit."""
    if sys.platform != "linux":
        yield
        return
    with _changes:
        _enter(size, alone)
    try:
        yield
    finally:
        with _changes:
            _leave(size, alone)
            _changes.notify_all()


def beside_limits(work: Callable[[], Result]) -> Result:
    """Return work(), which may run while other threads are within `memory_limit`. If it runs out of
    memory, call it again while there is no limit. `work` can be repeated, and does not call this
    function."""
    try:
        with _counted():
            return work()
    except Exception as error:
        if not _ran_out(error):
            raise
        # its traceback, which holds the memory of the first call, ends here
    with _changes:
        _changes.wait_for(lambda: not _active)
        return work()


@contextmanager
def _counted() -> Iterator[None]:
    global _others  # noqa: PLW0603 - the limit is one of the process
    with _changes:
        _changes.wait_for(lambda: not _alone)
        _others += 1
    try:
        yield
    finally:
        with _changes:
            _others -= 1
            _changes.notify_all()


def _ran_out(error: Exception) -> bool:
    """Return whether memory ran out, also for the stack of a new thread."""
    no_thread = "can't start new thread" in str(error) or "launch worker thread" in str(error)
    return (
        isinstance(error, MemoryError)
        or no_thread
        or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN))
    )


def _enter(size: int, alone: bool) -> None:
    global _outside, _alone  # noqa: PLW0603 - the limit is one of the process
    _alone += alone
    if alone:
        _changes.wait_for(lambda: not _others)
    if not _active:
        limit = resource.getrlimit(resource.RLIMIT_DATA)
        _outside = (limit, _data_bytes(), pa.default_memory_pool())
        # other pools have reserved memory before, which the limit would not include
        pa.set_memory_pool(pa.system_memory_pool())
    _active.append(size)
    _apply()


def _leave(size: int, alone: bool) -> None:
    global _alone  # noqa: PLW0603 - the limit is one of the process
    _alone -= alone
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
