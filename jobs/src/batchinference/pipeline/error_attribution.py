"""Finding the bad row: a batch that raises is halved until the row that raises stands alone."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.execution.batch_size import is_out_of_memory
from batchinference.pipeline.storage.retry import is_passing

_TROUBLE = frozenset(
    {"APIConnectionError", "ClientConnectionError", "ConnectionError", "Timeout", "TimeoutError",
     "TransportError", "URLError", "gaierror"}
)  # fmt: skip
_TRIED_ENOUGH = "EndpointDown"
_BROKEN_DEVICE = ("CUDA error", "NPU error", "device-side assert")
"""What torch says once a device has failed: all that follows in the process fails like it."""
_TROUBLE_NUMBERS = frozenset(
    {errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EROFS,
     errno.ESTALE}
)  # fmt: skip
Apply = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Part:
    """Neighbouring rows of a batch, and what came of them: a table, or an error for one row."""

    start: int
    rows: int
    result: pa.Table | Exception


def isolate(apply: Apply, batch: pa.Table, start: int = 0) -> Iterator[Part]:
    """The results of `apply` over a batch, in order, with each row that raises set aside alone.

    Costs up to 2 x log2(rows) further calls a bad row. What says nothing about a row is raised:
    see `is_about_the_row`.
    """
    result = _try(apply, batch)
    if isinstance(result, pa.Table) or batch.num_rows == 1:
        yield Part(start, batch.num_rows, result)
        return
    half = batch.num_rows // 2
    yield from isolate(apply, batch.slice(0, half), start)
    yield from isolate(apply, batch.slice(half), start + half)


def _try(apply: Apply, batch: pa.Table) -> pa.Table | Exception:
    # not halved in here, where the error of the whole would become the context of each row's own
    try:
        return apply(batch)
    except Exception as error:
        if not is_about_the_row(error):
            raise
        return error


def may_pass(error: BaseException) -> bool:
    """Whether an error that is not about a row is of the kind that a moment may heal."""
    if type(error).__name__ == _TRIED_ENOUGH:
        return False
    named = _TROUBLE.intersection(kind.__name__ for kind in type(error).__mro__)
    return bool(named) or isinstance(error, OSError)


def is_about_the_row(error: BaseException) -> bool:
    """Whether an error may be blamed on a row: not a failed job, and no trouble of storage,
    network, memory or a device, after which the same row may well succeed."""
    # by their names: torch, requests and their like are not imported here
    if _TROUBLE.intersection(kind.__name__ for kind in type(error).__mro__):
        return False
    if is_out_of_memory(error):
        return False
    if isinstance(error, OSError) and (error.errno in _TROUBLE_NUMBERS or is_passing(error)):
        return False
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _BROKEN_DEVICE):
        return False
    return not isinstance(error, JobFailure)


def is_about_the_file(error: BaseException) -> bool:
    """Whether an error of reading or decoding may be blamed on one file: as `is_about_the_row`, and
    what memory runs out by, because files claim to hold more than there is."""
    if isinstance(error, ImportError):
        return False  # no file lacks a library
    return isinstance(error, MemoryError) or is_about_the_row(error)
