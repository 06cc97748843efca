"""The memory limit of a process while it decodes untrusted data."""

from __future__ import annotations

import errno
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.storage import arrow_files
from batchinference.pipeline.storage.arrow_files import read_tables
from batchinference.pipeline.storage.http import PermanentFetchError, TransientFetchError
from batchinference.pipeline.storage.memory_limit import memory_limit, retry_without_limit

GIB = 1 << 30
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this limit")


def allocate(size: int) -> None:
    pa.allocate_buffer(size)  # it is freed immediately


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


def ends(work: Callable[[], object]) -> bool:
    """Return whether a thread ends that calls this, and does not wait forever."""
    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


def test_concurrent_work_that_fails_under_a_limit_is_repeated_without_it() -> None:
    """Other such work continues meanwhile, but no limit begins."""
    entered, failed, entered_again = Event(), Event(), Event()
    tries: list[int] = []

    def decode() -> None:
        with memory_limit(GIB):
            entered.set()
            failed.wait()

    def decode_next() -> None:
        with memory_limit(GIB):
            entered_again.set()

    def commit() -> str:
        tries.append(1)
        try:
            allocate(2 * GIB)
        except MemoryError:
            failed.set()
            raise
        Thread(target=decode_next).start()
        assert not entered_again.wait(0.1)
        assert ends(lambda: retry_without_limit(lambda: None))
        return "committed"

    Thread(target=decode).start()
    entered.wait()
    assert retry_without_limit(commit) == "committed"
    assert len(tries) == 2
    assert entered_again.wait(10)


NO_THREAD = "can't start new thread"


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (MemoryError(), 2),
        (OSError(errno.ENOMEM, "no memory"), 2),
        (RuntimeError(NO_THREAD), 2),
        (pa.ArrowException("Unknown error: Failed to launch worker thread: again"), 2),
        (OSError(f"key '{NO_THREAD}' is missing"), 1),
        (FileNotFoundError(NO_THREAD), 1),
        (PermanentFetchError(NO_THREAD), 1),
        (TransientFetchError(NO_THREAD), 1),
    ],
    ids=repr,
)
def test_only_work_that_ran_out_of_memory_is_repeated(error: Exception, tries: int) -> None:
    """A server or an address can choose the text of an error, but not its type or its beginning."""
    calls: list[int] = []

    def fetch() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retry_without_limit(fetch)
    assert len(calls) == tries


def test_exclusive_limit_within_concurrent_work_begins_when_it_is_repeated() -> None:
    happened: list[str] = []

    def decode() -> None:
        happened.append("call")
        with memory_limit(GIB, alone=True):
            happened.append("decode")

    assert ends(lambda: retry_without_limit(decode))
    assert happened == ["call", "call", "decode"]


@pytest.mark.parametrize("failing", ["_data_bytes", "_apply"])
def test_failed_start_of_a_limit_leaves_no_limit(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail() -> None:
        raise OSError("no /proc")

    with monkeypatch.context() as patched:
        patched.setattr(f"batchinference.pipeline.storage.memory_limit.{failing}", fail)
        with pytest.raises(OSError, match="no /proc"), memory_limit(GIB, alone=True):
            pass
    assert ends(lambda: retry_without_limit(lambda: None))
    with memory_limit(GIB), pytest.raises(MemoryError):
        allocate(2 * GIB)


def test_exclusive_limit_begins_after_concurrent_work() -> None:
    happened: list[str] = []
    entered = Event()

    def decode() -> None:
        with memory_limit(GIB, alone=True):
            happened.append("decode")
            entered.set()

    thread = Thread(target=decode)

    def commit() -> None:
        thread.start()
        entered.wait(0.1)
        happened.append("commit")

    retry_without_limit(commit)
    thread.join()
    retry_without_limit(lambda: happened.append("next commit"))
    assert happened == ["commit", "decode", "next commit"]


def sink_of(table: pa.Table) -> pa.BufferReader:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return pa.BufferReader(sink.getvalue())


def test_row_fails_only_if_it_takes_too_much_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def limit(_: int, *, alone: bool) -> Iterator[None]:
        if not alone:
            raise MemoryError
        yield

    monkeypatch.setattr(arrow_files, "memory_limit", limit)
    table = pa.table({"n": [1, 2, 3]})
    assert pa.concat_tables(read_tables(sink_of(table))) == table


def test_limit_does_not_depend_on_the_number_of_cpus() -> None:
    """Arrow would start a thread for each column, and the limit includes its stack."""
    cpus = pa.cpu_count()
    pa.set_cpu_count(256)
    try:
        table = pa.table({str(column): range(9) for column in range(256)})
        assert pa.concat_tables(read_tables(sink_of(table))) == table
    finally:
        pa.set_cpu_count(cpus)


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
