"""Errors of steps and storage: failed rows are isolated by splitting a batch in half at a low cost,
their causes are counted, and transient errors of storage are retried."""

from __future__ import annotations

import errno
import math
import traceback
import weakref
from dataclasses import dataclass, field
from gzip import BadGzipFile

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchinference.pipeline.error_classification import (
    has_stopped_kernel,
    is_about_the_row,
    is_device_fault,
    is_transient,
)
from batchinference.pipeline.errors import BadInput, JobFailure, ModelLoad
from batchinference.pipeline.execution.step_runner import Part, bisect_failures
from batchinference.pipeline.output.error_groups import OTHER_CAUSES, cause_of, group_errors
from batchinference.pipeline.row_warnings import count_tokens, warn
from batchinference.pipeline.storage import retry
from batchinference.pipeline.storage.retry import ATTEMPTS, with_retries
from batchinference.spec.progress import TokenKind
from batchinference.spec.warnings import WarningName
from support.failure_costs import BY_NAME, measure
from support.tiers import examples


@dataclass
class Picky:
    """Raises for a batch with a bad number, and records the sizes of batches."""

    bad: set[int]
    calls: list[int] = field(default_factory=list)

    def __call__(self, table: pa.Table) -> pa.Table:
        numbers = table.column("n").to_pylist()
        self.calls.append(len(numbers))
        if bad := self.bad & set(numbers):
            raise ValueError(f"cannot take {min(bad)}")
        return table.append_column("twice", pa.array([2 * number for number in numbers]))


def rows(count: int) -> pa.Table:
    return pa.table({"n": list(range(count))})


def errors(parts: list[Part]) -> dict[int, Exception]:
    return {part.start + row: e for part in parts for row, e in part.result.failed.items()}


CASES = st.integers(1, 300).flatmap(
    lambda count: st.tuples(st.just(count), st.sets(st.integers(0, count - 1), max_size=12))
)


@settings(max_examples=examples(300), deadline=None)
@given(case=CASES)
@example(case=(1, {0}))
@example(case=(7, set(range(7))))
def test_exactly_the_bad_rows_fail(case: tuple[int, set[int]]) -> None:
    count, bad = case
    picky = Picky(bad)
    parts = list(bisect_failures(picky, rows(count)))
    assert {start: str(error) for start, error in errors(parts).items()} == {
        number: f"cannot take {number}" for number in bad
    }
    good = [part.result.table for part in parts if not part.result.failed]
    numbers = [number for table in good for number in table.column("n").to_pylist()]
    assert numbers == [number for number in range(count) if number not in bad]
    assert [number for table in good for number in table.column("twice").to_pylist()] == [
        2 * number for number in numbers
    ]
    sizes = [1 if part.result.failed else part.result.table.num_rows for part in parts]
    assert [part.rows for part in parts] == sizes
    assert [part.start for part in parts] == [sum(sizes[:path]) for path in range(len(sizes))]
    assert sum(sizes) == count
    assert len(picky.calls) <= 1 + 2 * len(bad) * math.ceil(math.log2(count))


def test_failed_batch_is_released_before_its_halves_are_computed() -> None:
    class Tensor: ...

    tensors: list[weakref.ref[Tensor]] = []
    kept = []

    def one_row_only(table: pa.Table) -> pa.Table:
        kept.append(sum(tensor() is not None for tensor in tensors))
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        if table.num_rows > 1:
            raise RuntimeError("too many")
        return table

    assert errors(list(bisect_failures(one_row_only, rows(4)))) == {}
    assert kept == [0] * 7


class OutOfMemoryError(RuntimeError):
    """Has the same name as torch's error."""


class UnidentifiedImageError(OSError):
    """Has the same name as Pillow's error."""


@pytest.mark.parametrize(
    "error",
    [JobFailure("no"), BadInput("no"), ModelLoad("no"), OSError(errno.ENOSPC, "full"),
     ConnectionError("gone"), TimeoutError("late"), MemoryError(), OutOfMemoryError("device"),
     RuntimeError("CUDA error: device-side assert triggered"), KeyboardInterrupt()])  # fmt: skip
def test_errors_not_about_a_row_are_raised_at_once(error: BaseException) -> None:
    calls = []

    def fail(table: pa.Table) -> pa.Table:
        calls.append(table.num_rows)
        raise error

    with pytest.raises(type(error)):
        list(bisect_failures(fail, rows(8)))
    assert calls == [8]
    assert not (isinstance(error, Exception) and is_about_the_row(error))


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyError("x"), TypeError("x"), RuntimeError("x"), ZeroDivisionError(),
     pa.ArrowInvalid("x"), UnidentifiedImageError("x"), AssertionError(), RecursionError(),
     FileNotFoundError(errno.ENOENT, "x"), OSError("Truncated File Read"), BadGzipFile("x")],
)  # fmt: skip
def test_errors_about_rows_fail_the_rows(error: Exception) -> None:
    def fail(table: pa.Table) -> pa.Table:
        raise error

    assert set(errors(list(bisect_failures(fail, rows(3))))) == {0, 1, 2}
    assert is_about_the_row(error)


class Fail(Exception):
    """An error of the native code of ONNX Runtime."""

    __module__ = "onnxruntime.capi.onnxruntime_pybind11_state"


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (RuntimeError("HIP error: invalid device ordinal"), True),
        (RuntimeError("NCCL error in: ../NCCLUtils.cpp:328, unhandled system error"), True),
        (RuntimeError("No CUDA GPUs are available"), True),
        (RuntimeError("worker 3 failed: [Rank 0] CUDA error: unknown error"), True),
        (RuntimeError("it failed\nRuntimeError: CUDA driver error: not initialized"), True),
        (RuntimeError("Found no NVIDIA driver on your system"), True),
        (Fail("CUDA failure 719: unspecified launch failure ; GPU=0"), True),
        (RuntimeError("CUDA error: out of memory"), False),
        (RuntimeError("CUDA error: no kernel image is available for execution"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (Fail("CUDA failure 700: an illegal memory access was encountered ; GPU=0"), False),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), False),
        (RuntimeError("The NVIDIA driver on your system is too old"), False),
        (ValueError("CUDA error: in the text of a row"), False),
        (RuntimeError("cannot parse: 'CUDA error: in the text of a row'"), False),
        (RuntimeError("cannot parse why there is a CUDA error: help"), False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_faults_of_devices_are_told_from_errors_of_rows_and_code(
    error: Exception, *, fault: bool
) -> None:
    loading = ModelLoad("the model cannot be loaded")
    loading.__cause__ = error
    assert is_device_fault(error) is is_device_fault(loading) is fault
    caused, raised_after = ValueError("own"), ValueError("own")
    caused.__cause__, raised_after.__context__ = error, error
    for wrapped in (error, caused, raised_after):
        assert is_device_fault(wrapped) is fault
        assert has_stopped_kernel(wrapped) is has_stopped_kernel(error)
        assert not (is_about_the_row(wrapped) and (fault or has_stopped_kernel(error)))


def test_error_of_a_row_has_no_context() -> None:
    (error,) = errors(list(bisect_failures(Picky({2}), rows(64)))).values()
    assert error.__context__ is None
    trace = "".join(traceback.format_exception(error))
    assert trace.count("ValueError: cannot take 2") == 1
    assert "in __call__" in trace


def test_tokens_of_a_batch_that_raises_are_counted() -> None:
    def ask(table: pa.Table) -> pa.Table:
        for row in range(table.num_rows):
            count_tokens(row, read=1)
            warn(WarningName.ROTATED, row=row)
        return Picky({5})(table)

    parts = list(bisect_failures(ask, rows(8)))
    used = [w for part in parts for w in part.warnings if isinstance(w.name, TokenKind)]
    assert sum(warning.amount for warning in used) == 8 + 4 + 4 + 2 + 2 + 1 + 1
    assert all(warning.row < part.rows for part in parts for warning in part.warnings)
    shown = [w for part in parts for w in part.warnings if w.name is WarningName.ROTATED]
    assert len(shown) == 8 - 1, "of the rows that have not failed"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("KeyError: 'a b' (own.py:7 in f)", "KeyError: ... (own.py:7 in f)"),
        ('KeyError: "it\'s"', "KeyError: ..."),
        ("ValueError: 12 of 4.5 rows", "ValueError: ... of ... rows"),
        ("OSError: utf8 in a1b2", "OSError: utf8 in a1b2"),
        ("OSError: img_00123.jpg:17 at -1.5", "OSError: img_....jpg:... at -..."),
        ("TypeError: <Row at 0x7f3a> of 0x7F3B", "TypeError: <Row at ...> of ..."),
        ("TypeError: <class 'int'> < 3", "TypeError: <class ...> < ..."),
        ("ValueError: bad value\nin a.txt", "ValueError: bad value"),
        ("RuntimeError: \n\nCUDA out of memory\nTry 1", "RuntimeError: CUDA out of memory"),
        ("", ""),
    ],
)
def test_cause_has_no_values_of_the_row(error: str, cause: str) -> None:
    assert cause_of(error) == cause


def test_number_of_causes_is_limited() -> None:
    records = [{"step": "own", "error": error} for error in "ABCB"]
    groups = group_errors(records, max_causes=1)
    assert [(group.cause, group.rows) for group in groups] == [(OTHER_CAUSES, 3), ("A", 1)]


SLACK_SECONDS = 0.1
"""CPU seconds that a failure may take once, for example to import a module."""


@pytest.mark.parametrize("name", BY_NAME)
def test_failures_do_not_make_the_work_much_slower(name: str) -> None:
    cost = measure(BY_NAME[name])
    assert cost.twice < 3 * cost.many + SLACK_SECONDS, cost
    assert cost.one < 2 * cost.clean + SLACK_SECONDS, cost


TRANSIENT = [
    OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation"),
    OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate"),
    OSError("AWS Error UNKNOWN (HTTP status 503) during GetObject operation: No response body."),
    OSError("AWS Error UNKNOWN (HTTP status 429) during GetObject operation"),
    OSError("Azure Error: [ServerBusy] 503 Server busy"),
    OSError("Azure Error: [] Fail to get a new connection for: https://a. Could not connect"),
    OSError("google::cloud::Status(UNAVAILABLE: Retry policy exhausted"),
    OSError(errno.ESTALE, "Stale file handle"),
    OSError(errno.ETIMEDOUT, "Connection timed out"),
]
PERMANENT = [
    FileNotFoundError(errno.ENOENT, "Path does not exist"),
    OSError("AWS Error ACCESS_DENIED during GetObject operation: Access Denied"),
    OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation"),
    OSError("AWS Error UNKNOWN (HTTP status 400) during HeadObject operation"),
    OSError("Azure Error: [AuthorizationFailure] 403 Server failed to authenticate the request"),
    OSError("google::cloud::Status(PERMISSION_DENIED: no"),
    OSError(errno.ENOSPC, "No space left on device"),
    OSError("Corrupt snappy compressed data."),
]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace sleep, and return the list of the seconds that each call was asked to sleep."""
    slept: list[float] = []
    monkeypatch.setattr(retry.time, "sleep", slept.append)
    return slept


class Call:
    """A call that fails a given number of times."""

    def __init__(self, error: OSError, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return "done"


@pytest.mark.usefixtures("waits")
def test_temporary_errors_are_retried() -> None:
    for error in TRANSIENT:
        call = Call(error, ATTEMPTS - 1)
        assert is_transient(error), error
        assert with_retries(call) == "done"
        assert call.calls == ATTEMPTS


def test_permanent_errors_are_raised_at_once(waits: list[float]) -> None:
    for error in PERMANENT:
        call = Call(error, 1)
        assert not is_transient(error), error
        with pytest.raises(OSError) as raised:  # noqa: PT011 - the same object
            with_retries(call)
        assert raised.value is error
        assert (call.calls, waits) == (1, [])


def test_last_error_is_raised_after_all_attempts(waits: list[float]) -> None:
    call = Call(TRANSIENT[0], 99)
    with pytest.raises(OSError, match="NETWORK_CONNECTION"):
        with_retries(call)
    assert call.calls == ATTEMPTS
    assert len(waits) == ATTEMPTS - 1


def test_backoff_doubles_with_jitter(waits: list[float]) -> None:
    for _ in range(2):
        with_retries(Call(TRANSIENT[0], ATTEMPTS - 1))
    first, second = waits[: ATTEMPTS - 1], waits[ATTEMPTS - 1 :]
    for number, wait in enumerate(first):
        assert 2**number / 2 <= wait <= 2**number
    assert first != second
