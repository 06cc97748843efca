"""Reads files like a job, without Ray: input snapshot, sampling, decoding and row ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from batchinference.pipeline import row_ids
from batchinference.pipeline.arrow import concat, to_batch
from batchinference.pipeline.input.files import FileInput, open_files, parts_of
from batchinference.pipeline.input.listing import InputFile, InputSnapshot
from batchinference.pipeline.input.planning import SAMPLED_FILES
from batchinference.pipeline.input.readers.base import DivisibleReader
from batchinference.pipeline.input.scan import FileRows
from batchinference.pipeline.input.statistics import with_row_counts
from batchinference.spec.read import Read, ReadFiles

_READ: TypeAdapter[Read] = TypeAdapter(Read)
Place = tuple[int, int]
"""File number and row number."""


@dataclass(frozen=True)
class Outcome:
    """The tables that were read, with the internal columns."""

    tables: list[pa.Table]

    @property
    def good(self) -> list[dict[str, Any]]:
        """The good rows without internal columns; null in columns that their file lacks."""
        return data_of(self.tables)

    @property
    def bad(self) -> dict[Place, str]:
        """The error of each failed row."""
        failed = self._in_state(row_ids.FAILED)
        return {_place(row): row[row_ids.ERROR] for row in failed}

    @property
    def places(self) -> list[Place]:
        """The place of each good row, in the order of reading."""
        return [_place(row) for row in self._in_state(row_ids.GOOD)]

    @property
    def ends(self) -> dict[int, int]:
        """The number of rows of each file, from its END row."""
        return dict(_place(row) for row in self._in_state(row_ids.END))

    @property
    def table(self) -> pa.Table:
        """The good rows as a table."""
        return _data(self.tables)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the good rows."""
        return self.table.schema

    def column(self, name: str) -> np.ndarray:
        """Return a column of the good rows, as a step receives it."""
        return to_batch(_data(self.tables).select([name]))[name]

    def _in_state(self, state: int) -> list[dict[str, Any]]:
        found = (own_columns(table) for table in self.tables)
        return [row for part in found for row in part if row[row_ids.STATE] == state]


def own_columns(table: pa.Table) -> list[dict[str, Any]]:
    """Return the internal columns of each row."""
    own = [name for name in row_ids.OWN_COLUMNS if name in table.column_names]
    return list(table.select(own).to_pylist())


def data_of(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """Return the user's columns of the good rows."""
    return list(_data(tables).to_pylist())


def _data(tables: Iterable[pa.Table]) -> pa.Table:
    good = [good for good, _ in map(row_ids.split, tables) if good.num_rows]
    table = concat(good) if good else pa.table({})
    return table.select(row_ids.data_columns(table))


def _place(row: dict[str, Any]) -> Place:
    file, number = row_ids.unpack(np.array([row[row_ids.ID]]))
    return int(file[0]), int(number[0])


@dataclass(frozen=True)
class Input:
    """An opened input."""

    given: FileInput

    @property
    def frozen(self) -> InputSnapshot:
        return self.given.frozen

    @property
    def file_rows(self) -> FileRows:
        return self.given.rows

    def read(self, first: int = 0, after: int | None = None) -> Outcome:
        """Read the files from `first` to before `after`."""
        return Outcome(list(self.file_rows.read(self.frozen.files()[first:after])))


def cut_up(opened: Input, parts: int) -> list[InputFile]:
    """Divide the files of an input into about `parts` parts."""
    reader = opened.file_rows.reader
    assert isinstance(reader, DivisibleReader)
    files = opened.frozen.files()
    return parts_of(files, with_row_counts(opened.frozen, reader, files).stats, parts)


def open_input(
    format_: str, *paths: Path | str, sampled: int = SAMPLED_FILES, **options: Any
) -> Input:
    """Open an input and sample up to `sampled` of its files."""
    fields = {"format": format_, "paths": [str(path) for path in paths], "options": options}
    read = _READ.validate_python(fields)
    assert isinstance(read, ReadFiles)
    return Input(open_files(read, sampled))


def read_files(format_: str, *paths: Path | str, **options: Any) -> Outcome:
    """Read all rows of files and directories."""
    return open_input(format_, *paths, **options).read()
