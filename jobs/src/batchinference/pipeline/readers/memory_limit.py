"""Bounds the memory that Arrow takes to decode.

A few hundred bytes of a Parquet file can stand for any amount of memory: a dictionary with a large
value, runs of the same level, a page that unpacks to 2 GiB. Arrow has no limit of its own. The
kernel has one, above which Arrow's allocations fail.
"""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

_LIMIT_OF_PROCESS = threading.Lock()
_DATA = 5
"""The place of the bytes that a limit counts among the numbers of /proc/self/statm, in pages."""


@contextmanager
def limited(more: int) -> Iterator[None]:
    """Let this process allocate so many bytes more than it has, and raise MemoryError beyond that.

    Memory that the allocator has already reserved does not count. Only Linux has such a limit.
    """
    if sys.platform != "linux":
        yield
        return
    with _LIMIT_OF_PROCESS:
        before = resource.getrlimit(resource.RLIMIT_DATA)
        limits = [_data_bytes() + more, *(one for one in before if one != resource.RLIM_INFINITY)]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[_DATA]) * resource.getpagesize()


def decoded(tables: Iterator[pa.Table], most: int) -> Iterator[pa.Table]:
    """Yield tables that Arrow decodes one after the other. Raises MemoryError if that takes more
    bytes than `most`, together with what the decoder keeps for the tables to come."""
    kept = 0
    while True:
        before = pa.total_allocated_bytes()
        with limited(max(0, most - kept)):
            table = next(tables, None)
        if table is None:
            return
        grown = pa.total_allocated_bytes() - before
        kept = max(0, kept + grown - table.get_total_buffer_size())
        yield table
