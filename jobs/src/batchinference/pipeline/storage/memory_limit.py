"""Limits the memory that decoding one untrusted file may allocate.

The kernel can limit only the whole process, so the limit also applies to other threads meanwhile,
for example to a thread that commits rows or fetches a file. These threads do not wait, because
files that reach the limit are rare, and commits and fetches are slow. Instead, work that ran out of
memory is repeated without a limit (`retry_without_limit`), and a row fails only if it takes too
much memory while no such work runs (`alone`). So no thread fails because of the file of another
thread.
"""

from __future__ import annotations

import errno
import re
import resource
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import TypeVar

import pyarrow as pa

Result = TypeVar("Result")


class _State(Enum):
    """The call that a thread is in, or waits for."""

    ALONE = "memory_limit alone"
    FIRST_CALL = "the first call of retry_without_limit"
    SECOND_CALL = "the second call of retry_without_limit"


_changes = threading.Condition()
_threads: Counter[_State] = Counter()
"""The number of threads in each state."""
_this_thread = threading.local()
"""`state` is FIRST_CALL or SECOND_CALL if this thread is within `retry_without_limit`. It does not
wait for threads in these states, because it would wait for itself."""
_active: list[int] = []
"""The limits of all threads that are within `memory_limit`."""
_begun = 0
"""The number of times that a thread has entered `memory_limit`."""
_outside: tuple[tuple[int, int], int, pa.MemoryPool]
"""The limit and the memory of the process, and Arrow's pool, before the first of these threads."""
_NO_THREAD = re.compile("can't start new thread|(Unknown error: )?Failed to launch worker thread")
"""Matches the errors of Python and of Arrow if there is no memory for the stack of a thread."""


@contextmanager
def memory_limit(size: int, *, alone: bool = False) -> Iterator[None]:
    """Let the process allocate at most `size` bytes more than now. Above that, allocations fail, in
    Arrow with a MemoryError. If `alone`, wait until no thread is within the first call of
    `retry_without_limit`, and let none enter it meanwhile. If this thread itself is within that
    call, raise MemoryError.

    Neither pyarrow nor Parquet can bound what a page or a dictionary expands to, and the sizes in
    a file may be false. The kernel counts private writable memory of the whole process, so the
    limits of several threads add up. Only Linux has such a limit."""
    if sys.platform != "linux":
        yield
        return
    if alone and _own_state() is _State.FIRST_CALL:
        raise MemoryError("a limit alone needs the second call of retry_without_limit")
    with ExitStack() as stack:
        if alone:
            stack.enter_context(_counted(_State.ALONE))
        stack.enter_context(_limited(size, alone))
        yield


def retry_without_limit(work: Callable[[], Result]) -> Result:
    """Return work(), which may run while other threads are within `memory_limit`. If it runs out of
    memory, call it again while there is no limit. `work` must be repeatable, and must not call this
    function."""
    try:
        with _counted(_State.FIRST_CALL, lambda: not _threads[_State.ALONE]):
            return work()
    except Exception as error:
        if not _ran_out(error):
            raise
        # its traceback, which holds the memory of the first call, ends here
    with _counted(_State.SECOND_CALL):
        with _changes:
            _changes.wait_for(lambda: not _active)
        return work()


@contextmanager
def errors_within_limits() -> Iterator[None]:
    """Raise MemoryError instead of an error of this block if another thread was within
    `memory_limit` meanwhile. `retry_without_limit` then repeats the work, and the second call gets
    the error itself. Use it for libraries that do not report why they failed, such as image codecs.
    """
    before = _begun if not _active else None
    try:
        yield
    except Exception as error:
        if _begun != before:
            raise MemoryError(f"within the memory limit of another thread: {error}") from error
        raise


@contextmanager
def _counted(state: _State, may_begin: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Wait until `may_begin` returns true, then count this thread in a state."""
    before = _own_state()
    with _changes:
        _changes.wait_for(may_begin)
        _threads[state] += 1
    try:
        if state is not _State.ALONE:
            _this_thread.state = state
        yield
    finally:
        _this_thread.state = before
        with _changes:
            _threads[state] -= 1
            _changes.notify_all()


def _own_state() -> _State | None:
    return getattr(_this_thread, "state", None)


def _ran_out(error: Exception) -> bool:
    """Return whether memory ran out, also for the stack of a new thread.

    Other errors are not matched, because an untrusted server may control their message."""
    if type(error) in (RuntimeError, OSError) or isinstance(error, pa.ArrowException):
        no_thread = _NO_THREAD.match(str(error)) is not None
    else:
        no_thread = False
    return (
        isinstance(error, MemoryError)
        or no_thread
        or (isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EAGAIN))
    )


@contextmanager
def _limited(size: int, alone: bool) -> Iterator[None]:
    """Wait until no thread is in a state that forbids a limit, then apply the limit."""
    global _begun, _outside  # noqa: PLW0603 - it limits the process

    def may_begin() -> bool:
        waits_for_calls = alone and _threads[_State.FIRST_CALL]
        return _own_state() is not None or not (waits_for_calls or _threads[_State.SECOND_CALL])

    with _changes:
        _changes.wait_for(may_begin)
        if not _active:
            limit = resource.getrlimit(resource.RLIMIT_DATA)
            _outside = (limit, _data_bytes(), pa.default_memory_pool())
        _active.append(size)
        _begun += 1
    try:
        with _changes:
            _apply()
        yield
    finally:
        with _changes:
            _active.remove(size)
            _changes.notify_all()
            _apply()


def _apply() -> None:
    (soft, hard), base, pool = _outside
    if _active:
        limits = [base + sum(_active), soft, hard]
        soft = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
        # other pools may have reserved memory earlier, which the limit would not include
        pool = pa.system_memory_pool()
    pa.set_memory_pool(pool)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return the private writable memory of the process, as RLIMIT_DATA counts it."""
    with open("/proc/self/statm", "rb", buffering=0) as statm:
        return int(statm.read(256).split()[5]) * resource.getpagesize()
