"""Encodes the rows of a commit as files: data files in the output's format, and error files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.commit.committer import Committer
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.errors import JobFailure, UnwritableValue
from batchinference.pipeline.execution.step_runner import ErrorHandling
from batchinference.pipeline.output.error_records import error_records
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.row_batch import WRITE_STEP, RowBatch, numbers_of
from batchinference.pipeline.row_warnings import RowWarning, errors_of, warning_table
from batchinference.spec.warnings import WarningName

if TYPE_CHECKING:
    from batchinference.spec.write import Write


def committer_for(
    write: Write,
    job_pass: JobPass,
    writer: Writer,
    errors: ErrorHandling,
    first_file: int = 0,
    *,
    by_file: bool = False,
) -> Committer:
    """Return the committer of a pass that uses this writer. `first_file` is the number of input
    files of earlier appends, after which row numbers go on. With `by_file`, manifests record the
    input file of each row, so that later runs can remove the rows of a file."""
    files = OutputFiles(writer, FileSplit.of(write), errors, first_file)
    return Committer(job_pass, files, by_file)


@dataclass(frozen=True)
class OutputFiles:
    """Encodes rows as the data files and error files of an output."""

    writer: Writer
    layout: FileSplit
    handling: ErrorHandling
    first_file: int = 0

    def check_columns(self, columns: Sequence[str]) -> None:
        """Raise JobFailure if the layout adds a row number column whose name is among `columns`."""
        name = self.layout.row_number
        if name in columns:
            raise JobFailure(
                f"write.rowNumber: there is a column '{name}' already. Choose another name"
            )

    def stored_rows(self, batch: RowBatch) -> pa.Table:
        """Return the rows as they are stored. If the layout has a row number column, it is added,
        and the rows are in input order."""
        if self.layout.row_number is None or not len(batch.ids):
            return batch.table
        self.check_columns(batch.table.column_names)
        return self._numbered(batch.reordered(np.argsort(batch.ids, kind="stable")))

    def _numbered(self, batch: RowBatch) -> pa.Table:
        """Return the rows of a batch, with row numbers if the layout has a column for them."""
        if (name := self.layout.row_number) is None:
            return batch.table
        return batch.table.add_column(0, name, pa.array(numbers_of(batch.ids, self.first_file)))

    def encode_data(self, table: pa.Table) -> Iterator[tuple[str, str, Content]]:
        """Yield the directory, the end of the name and the content of each data file."""
        for directory, rows in self.layout.split(table):
            for ending, content in self.writer.files(rows):
                yield directory, ending, content

    def row_indexes(self, table: pa.Table) -> Iterator[np.ndarray]:
        """Yield the table indexes (int64) of the rows of each data file."""
        yield from self.layout.indexes(table) if table.num_rows else ()

    def column_types(self, table: pa.Table) -> list[tuple[str, str]]:
        """Return the name and the type of each column in the data files of a table."""
        names = self.layout.names_in_files(table.column_names)
        table = self.writer.converted(table.slice(0, 0).select(names))
        return [(field.name, str(field.type)) for field in table.schema]

    def with_warnings(self, batch: RowBatch) -> RowBatch:
        """Return the batch with a warning about each row with values that the output writes as
        other values, such as null. These rows become failed rows if the job does not accept the
        warning."""
        written = batch.table.select(self.layout.names_in_files(batch.table.column_names))
        nulled = Counter(self.writer.nulled_rows(written))
        nulled.update(self.layout.null_names(batch.table))
        changed = {
            WarningName.WRITTEN_AS_NULL: nulled,
            WarningName.ZERO_SIGN_LOST: self.writer.unsigned_zeros(written),
        }
        warnings = [
            RowWarning(row, name, count)
            for name, rows in changed.items()
            for row, count in rows.items()
        ]
        if not warnings:
            return batch
        if errors := errors_of(warnings, self.handling.failing):
            return self._without(batch, errors)
        return batch.with_warnings(warning_table(WRITE_STEP, batch.ids, warnings))

    def without_unwritable(self, batch: RowBatch, error: UnwritableValue) -> RowBatch:
        """Return the batch with the rows that cannot be encoded as failed rows of `write`. Raises
        JobFailure if failed rows are not allowed. Raises `error` if no row is the cause."""
        table = self._numbered(batch)
        errors: dict[int, Exception] = {**self.layout.unwritable(table)}
        if errors:
            return self._without(batch, errors)
        split, indexes = self.layout.split(table), self.layout.indexes(table)
        for (_, rows), positions in zip(split, indexes, strict=True):
            unwritable = self.writer.unwritable(rows)
            errors |= {int(positions[row]): failure for row, failure in unwritable.items()}
        if not errors:
            raise error
        return self._without(batch, errors)

    def _without(self, batch: RowBatch, errors: Mapping[int, Exception]) -> RowBatch:
        """Return the batch with the rows in `errors` (by row index) as failed rows."""
        remaining = np.setdiff1d(np.arange(batch.table.num_rows), list(errors))
        failed = self.handling.failed_rows(WRITE_STEP, batch, errors)
        return batch.derived(batch.table.take(pa.array(remaining)), remaining, failed)

    def encode_errors(self, failed: pa.Table) -> tuple[str, Content]:
        """Return the end of the name and the content of the error file for failed rows."""
        records = error_records(failed, self.handling.paths)
        ((ending, content),) = ParquetWriter("snappy").files(records)
        return ending, content
