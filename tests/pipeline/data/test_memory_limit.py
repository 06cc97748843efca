"""The memory limit of a process while it decodes untrusted data."""

from __future__ import annotations

import resource
import sys
from threading import Event, Thread

import pyarrow as pa
import pytest

from batchinference.pipeline.storage.memory_limit import memory_limit

GIB = 1 << 30
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this limit")


def allocate(size: int) -> None:
    pa.allocate_buffer(size)  # it is freed at once


def test_allocation_above_the_limit_fails_and_the_limit_ends() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    pool = pa.default_memory_pool().backend_name
    allocate(4 * GIB)  # the pool may keep this memory
    with memory_limit(GIB):
        allocate(GIB // 2)
        with pytest.raises(MemoryError):
            allocate(2 * GIB)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert pa.default_memory_pool().backend_name == pool
    allocate(2 * GIB)


def test_limits_of_threads_add_up() -> None:
    entered, leave = Event(), Event()

    def other() -> None:
        with memory_limit(2 * GIB):
            entered.set()
            leave.wait()

    thread = Thread(target=other)
    with memory_limit(GIB):
        thread.start()
        entered.wait()
        allocate(2 * GIB)
        leave.set()
        thread.join()
        with pytest.raises(MemoryError):
            allocate(2 * GIB)


def test_lower_limit_of_the_environment_is_kept() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    lower = 64 * GIB
    resource.setrlimit(resource.RLIMIT_DATA, (lower, before[1]))
    try:
        with memory_limit(128 * GIB):
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] == lower
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == lower
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
