"""The interface of a job's input: files, tables with versions, or another source."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import unreadable_rows
from batchinference.pipeline.input.ignored_files import IgnoredFiles
from batchinference.pipeline.row_batch import READ_STEP, MissingRows, RowBatch, merged
from batchinference.pipeline.row_warnings import RowWarning, errors_of, warning_table
from batchinference.pipeline.storage.location import Location

NO_ENDS: Mapping[int, int] = MappingProxyType({})
ReadRows: TypeAlias = Callable[[], Iterator[RowBatch]]
"""Yields batches of rows. If `JobInput.rows_each` is None, the last batch of a part states the
number of rows of the part (`RowBatch.ends`)."""
ReadNote: TypeAlias = Callable[[int], AbstractContextManager[object]]
"""Returns a context manager in which rows are read. The argument is the id of the first row."""
AFTER_CRASH: ContextVar[bool] = ContextVar("after_crash", default=False)
"""Whether this process replaces one that died. Native code may then crash again."""


@dataclass(frozen=True)
class RowCount:
    """The number of rows of the input, and whether it is an estimate."""

    rows: int
    estimated: bool


class JobInput(Protocol):
    """An input that does not change while the job runs. It has numbered parts, such as files.

    The id of a row consists of the number of a part and the position of the row in this part."""

    def __len__(self) -> int:
        """Return the number of parts."""

    @property
    def size(self) -> int:
        """The approximate number of bytes to read; 0 if unknown."""

    @property
    def ignored(self) -> IgnoredFiles:
        """The files in input directories that the job does not read."""

    @property
    def repeatable(self) -> bool:
        """Whether a part yields the same rows in the same order each time it is read."""

    @property
    def rows_each(self) -> int | None:
        """The number of rows of every part, if it is known before reading; else None."""

    def divisible(self, tasks: float) -> bool:
        """Return whether `tasks` read tasks can get about the same number of rows. This is a guess
        until `read_tasks` has tried to divide the input."""

    def columns(self) -> list[str] | None:
        """Return the columns of the rows; None if they are unknown until the rows are read."""

    def count(self, ends: Mapping[int, int] = NO_ENDS) -> RowCount | None:
        """Return the number of rows, counted or estimated; None if unknown. `ends` maps the number
        of a part to its number of rows, for the parts where this is known."""

    def share(self, gaps: MissingRows | None) -> float:
        """Return the fraction of the input (0 to 1) that must be read to get the rows in `gaps`.
        `gaps` is None for all rows."""

    def first_rows(self, count: int, ends: Mapping[int, int]) -> MissingRows:
        """Return the ranges of the first `count` rows. `ends` is as in `self.count`. A part that is
        not in `ends` is assumed to have enough rows. If it has fewer, call again with its end."""

    def serialized(self) -> bytes:
        """Return the input snapshot: a Parquet file whose column `path` identifies each part."""

    def path_inside(self, directory: Location) -> str | None:
        """Return the path of an input file or dataset in this directory; None without one."""

    def has_ids_of(self, before: str) -> bool:
        """Return whether rows have the same ids as in the snapshot with the digest `before`."""

    def read_tasks(
        self, tasks: int, gaps: MissingRows | None = None, note: ReadNote = nullcontext
    ) -> list[ReadRows]:
        """Return about `tasks` read tasks, or fewer if the input cannot be split further. `gaps`
        are the rows to read. It must be None (all rows) if the input is not repeatable."""


def batch_of(
    table: pa.Table,
    ids: np.ndarray,
    warnings: Sequence[RowWarning] = (),
    failing: Collection[str] = (),
) -> RowBatch:
    """Return a batch of the input rows in a table, with their warnings. A row with an unreadable
    value, or with a warning whose name is in `failing`, becomes a failed row."""
    errors = {**errors_of(warnings, failing), **unreadable_rows(table)}
    shown = [warning for warning in warnings if warning.row not in errors]
    batch = _batch_without(errors, table, ids) if errors else RowBatch.read(table, ids)
    return batch.with_warnings(warning_table(READ_STEP, ids, shown)) if shown else batch


def _batch_without(errors: Mapping[int, Exception], table: pa.Table, ids: np.ndarray) -> RowBatch:
    """Return a batch in which the rows in `errors` (by row index) are failed rows."""
    readable = np.ones(len(ids), dtype=bool)
    readable[list(errors)] = False
    rows_by_error: dict[str, list[int]] = {}
    for row, error in sorted(errors.items()):
        rows_by_error.setdefault(str(error), []).append(row)
    good = RowBatch.read(table.filter(pa.array(readable)), ids[readable])
    failed = (RowBatch.unreadable(ids[rows], errors[rows[0]]) for rows in rows_by_error.values())
    return merged([good, *failed])
