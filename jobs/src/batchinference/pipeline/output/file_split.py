"""Splits the rows of a task into files, by partition and by number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from batchinference.pipeline.arrow import decoded
from batchinference.pipeline.errors import JobFailure, UnwritableValue
from batchinference.pipeline.output.writers import unwritable_items
from batchinference.pipeline.storage.partitions import (
    NULL_DIRECTORY,
    check_has_name,
    directory_name,
)
from batchinference.pipeline.type_widening import is_text
from batchinference.spec.expression import root_of
from batchinference.spec.reserved import OWN_PREFIX

if TYPE_CHECKING:
    from batchinference.spec.write import Write

_INDEX = f"{OWN_PREFIX}index"
_SCALARS = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean),
    *(pa.types.is_date, pa.types.is_floating, pa.types.is_null, pa.types.is_dictionary),
)


@dataclass(frozen=True)
class FileSplit:
    """How the rows of a task are split into files, and the columns of these files."""

    columns: tuple[str, ...] | None = None
    """The columns to write; None for all."""
    partition_by: tuple[str, ...] = ()
    rows_per_file: int | None = None
    row_number: str | None = None
    """A column that the writer adds: the number of the input row."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """For each column, the field of the spec that names it; used in errors."""

    @classmethod
    def of(cls, write: Write) -> FileSplit:
        """Return the split for an output. A table divides its rows into partitions itself."""
        from batchinference.spec.write import WritePartitioned, WriteSized, WriteTable

        needed = write.columns_needed
        by = (write.partition_by if isinstance(write, WritePartitioned) else None) or []
        max_rows = write.rows_per_file if isinstance(write, WriteSized) else None
        if isinstance(write, WriteTable):
            needed, by = [*needed, *by] if needed else None, []
        number = write.number_column
        if needed and number:
            needed = [number, *needed]
        fields = {name: field for field, names in write.column_fields.items() for name in names}
        return cls(tuple(needed) if needed else None, tuple(by), max_rows, number, fields)

    def names_in_files(self, columns: list[str]) -> list[str]:
        """Return the names in `columns` that files contain. Files contain no partition columns."""
        chosen = self.columns or columns
        return [name for name in chosen if name in columns and name not in self.partition_by]

    def split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the directory of each file, relative to the output, and its rows. Raises
        UnwritableValue if `unwritable` has an error."""
        self._check_case(table.column_names)
        for error in self.unwritable(table).values():
            raise error
        yield from self._split(table)

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return errors by row index, for rows whose partition value readers would not get back.
        Such a value is too long for the name of a directory, and no column of the files has it."""
        errors: dict[int, UnwritableValue] = {}
        columns, written = table.column_names, self.names_in_files(table.column_names)
        for name in self.partition_by if table.num_rows else ():
            if name in columns or root_of(name) not in written:
                column = partition_column(self.columns_to_write(table), name)
                distinct = column.unique().to_pylist()
                problems = unwritable_items(partial(check_has_name, name), distinct)
                wrong = {distinct[index]: error for index, error in problems.items()}
                values = enumerate(column.to_pylist() if wrong else ())
                errors |= {row: wrong[value] for row, value in values if value in wrong}
        return errors

    def _check_case(self, columns: list[str]) -> None:
        """Raise JobFailure if the names of a partition column and another column differ only in
        case. Readers that ignore case would show one column instead of both."""
        known: dict[str, str] = {}
        in_files = self.names_in_files(columns) if self.partition_by else ()
        for name in (*self.partition_by, *in_files):
            other = known.setdefault(name.lower(), name)
            if other != name and other in self.partition_by:
                raise JobFailure(
                    f"write.partitionBy: the columns '{other}' and '{name}' differ only in case, "
                    f"which readers may not tell apart. Rename '{name}' in a step"
                )

    def _split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        for directory, part in partitions(self.columns_to_write(table), self.partition_by):
            rows = part.drop_columns(list(self.partition_by))
            size = self.rows_per_file or rows.num_rows
            for start in range(0, rows.num_rows, size):
                yield directory, rows.slice(start, size)

    def indexes(self, table: pa.Table) -> Iterator[np.ndarray]:
        """Yield, for each file, the indexes (int64) of its rows in the table."""
        numbered = table.append_column(_INDEX, pa.array(np.arange(table.num_rows)))
        for _, rows in replace(self, columns=(_INDEX,))._split(numbered):
            yield rows.column(_INDEX).to_numpy()

    def null_names(self, table: pa.Table) -> Iterator[int]:
        """Yield the index of each row with a partition text that readers take for null."""
        if not (self.partition_by and table.num_rows):
            return
        for column in map(decoded, map(self.columns_to_write(table).column, self.partition_by)):
            if is_text(column.type):
                same = pc.equal(column, pa.scalar(NULL_DIRECTORY, column.type))
                yield from np.flatnonzero(pc.fill_null(same, False).to_numpy()).tolist()

    def columns_to_write(self, table: pa.Table) -> pa.Table:
        """Return the columns to write and to partition by. Raises JobFailure if one is missing."""
        for name in self.partition_by:
            if name not in table.column_names and root_of(name) in table.column_names:
                from batchinference.pipeline.expression import ColumnExpression  # few jobs need it

                part = ColumnExpression("write.partitionBy", name)(table)
                table = table.append_column(name, part)
        wanted = [*(self.columns or table.column_names), *self.partition_by]
        for column in wanted:
            if column not in table.column_names:
                field_name = self.fields.get(column, "columns")
                known = [name for name in table.column_names if not name.startswith(OWN_PREFIX)]
                raise JobFailure(
                    f"write.{field_name}: there is no column '{column}', only {', '.join(known)}. "
                    "Name one of these"
                )
        return table.select(list(dict.fromkeys(wanted)))


def partitions(table: pa.Table, columns: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the directory and the rows of each partition. The rows of a partition have the same
    values in `columns`. Without columns, there is one partition with the directory ""."""
    if not columns:
        yield "", table
        return
    directories = pa.array(_directories(table, columns), pa.string()).dictionary_encode()
    codes = directories.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ordered = table.take(pa.array(order))
    starts = np.searchsorted(codes[order], np.arange(len(directories.dictionary) + 1))
    for directory, (start, stop) in zip(directories.dictionary, pairwise(starts), strict=True):
        yield directory.as_py(), ordered.slice(start, stop - start)


def _directories(table: pa.Table, columns: tuple[str, ...]) -> list[str]:
    parts = []
    for name in columns:
        values = partition_column(table, name).to_pylist()
        parts.append([directory_name(name, value) for value in values])
    return ["/".join(row) for row in zip(*parts, strict=True)]


def partition_column(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a partition column. Raises JobFailure if its values cannot name directories."""
    column = table.column(name)
    if not any(is_scalar(column.type) for is_scalar in _SCALARS):
        raise JobFailure(
            f"write.partitionBy: column '{name}' cannot name directories ({column.type}). "
            "Use a column of texts, integers, floats, dates or booleans"
        )
    return column
