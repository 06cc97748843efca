"""The interface of a job's input, which is the same for files and tables."""

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

NOTHING: Mapping[int, int] = MappingProxyType({})
ReadRows: TypeAlias = Callable[[], Iterator[RowBatch]]
"""Yields batches of rows. The end of each part follows its last row, unless the number of rows per
part is known (`JobInput.rows_each`)."""


ReadNote: TypeAlias = Callable[[int], AbstractContextManager[object]]
"""Returns a context in which rows are read. Its argument is the id of the first row."""


AFTER_CRASH: ContextVar[bool] = ContextVar("after_crash", default=False)
"""Whether a process died that read the same rows, so that native code may crash again."""


@dataclass(frozen=True)
class RowCount:
    """The number of rows of the input, and whether it is an estimate."""

    rows: int
    estimated: bool


class JobInput(Protocol):
    """An input that does not change while the job runs: numbered parts that contain rows.

    The id of a row consists of the number of its part and its position in the part."""

    def __len__(self) -> int:
        """Return the number of parts."""

    @property
    def size(self) -> int:
        """The approximate number of bytes to read; 0 if unknown."""

    @property
    def ignored(self) -> IgnoredFiles:
        """The files of its directories that are not read."""

    @property
    def repeatable(self) -> bool:
        """Whether a part yields the same rows in the same order each time it is read."""

    @property
    def rows_each(self) -> int | None:
        """The number of rows of every part, if it is known before reading; else None."""

    def divisible(self, tasks: float) -> bool:
        """Return whether the rows can be divided about evenly among `tasks` read tasks, as far as
        it is known. Call `read_tasks` first to find out."""

    def columns(self) -> list[str] | None:
        """Return the columns of the rows; None if they are unknown until the rows are read."""

    def count(self, ends: Mapping[int, int] = NOTHING) -> RowCount | None:
        """Return the number of rows, counted or estimated; None if unknown. `ends` maps the number
        of a part to its number of rows, for the parts where this is known."""

    def share(self, gaps: MissingRows | None) -> float:
        """Return the fraction of the input (0 to 1) that must be read to get the rows in `gaps`;
        None means all rows."""

    def first_rows(self, most: int, ends: Mapping[int, int]) -> MissingRows:
        """Return the first `most` rows. `ends` are as for `count`. If the numbers of rows of parts
        are unknown, the result has fewer rows than there are, and must be asked for again with the
        ends that became known."""

    def serialized(self) -> bytes:
        """Return a Parquet file whose column `path` identifies each part."""

    def below(self, place: Location) -> str | None:
        """Return an input path that is inside the directory `place`; None if there is none."""

    def continues(self, before: str) -> bool:
        """Return whether the rows have the same ids as in the input with the digest `before`."""

    def read_tasks(
        self, tasks: int, gaps: MissingRows | None = None, note: ReadNote = nullcontext
    ) -> list[ReadRows]:
        """Return about `tasks` read tasks, or fewer if the input cannot be split further. `gaps`
        are the rows to read, for a repeatable input only; None means all rows."""


def batch_of(
    table: pa.Table,
    ids: np.ndarray,
    warnings: Sequence[RowWarning] = (),
    failing: Collection[str] = (),
) -> RowBatch:
    """Return a batch of rows that were read, with their warnings. Rows with unreadable values are
    failed rows, and so are rows with a warning whose name is in `failing`."""
    errors = {**errors_of(warnings, failing), **unreadable_rows(table)}
    about_good = [warning for warning in warnings if warning.row not in errors]
    batch = _batch_without(errors, table, ids) if errors else RowBatch.read(table, ids)
    return batch.with_warnings(warning_table(READ_STEP, ids, about_good)) if about_good else batch


def _batch_without(errors: Mapping[int, Exception], table: pa.Table, ids: np.ndarray) -> RowBatch:
    """Return rows that were read, with the rows in `errors` as failed rows."""
    readable = np.ones(len(ids), dtype=bool)
    readable[list(errors)] = False
    rows_by_error: dict[str, list[int]] = {}
    for row, error in sorted(errors.items()):
        rows_by_error.setdefault(str(error), []).append(row)
    good = RowBatch.read(table.filter(pa.array(readable)), ids[readable])
    failed = (RowBatch.unreadable(ids[rows], errors[rows[0]]) for rows in rows_by_error.values())
    return merged([good, *failed])
