"""Files read as a job reads them, without Ray: frozen, sampled, decoded, with ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from batchinference.pipeline import rows
from batchinference.pipeline.blocks import concat, to_batch
from batchinference.pipeline.file_input import FileInput, open_files, parts_of
from batchinference.pipeline.file_rows import FileRows
from batchinference.pipeline.inputs import FrozenInput, InputFile
from batchinference.pipeline.readers.base import DivisibleReader
from batchinference.pipeline.sizing import SAMPLED_FILES
from batchinference.spec.read import Read, ReadFiles

_READ: TypeAdapter[Read] = TypeAdapter(Read)
Place = tuple[int, int]
"""The number of a file and of a row in it."""


@dataclass(frozen=True)
class Outcome:
    """What came of reading: the tables one after the other, with all of the product's columns."""

    tables: list[pa.Table]

    @property
    def good(self) -> list[dict[str, Any]]:
        """The rows that could be read, as they come together in an output file: without the
        product's columns, and with null in columns that their file lacks."""
        return data_of(self.tables)

    @property
    def bad(self) -> dict[Place, str]:
        """The error of each row that could not be read."""
        failed = self._in_state(rows.FAILED)
        return {_place(row): row[rows.ERROR] for row in failed}

    @property
    def places(self) -> list[Place]:
        """Where each good row is, in the order of reading."""
        return [_place(row) for row in self._in_state(rows.GOOD)]

    @property
    def ends(self) -> dict[int, int]:
        """The number of rows that the END row of each file tells."""
        return dict(_place(row) for row in self._in_state(rows.END))

    @property
    def table(self) -> pa.Table:
        """The good rows as a table."""
        return _data(self.tables)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the good rows."""
        return self.table.schema

    def column(self, name: str) -> np.ndarray:
        """A column of the good rows, as a step is given it."""
        return to_batch(_data(self.tables).select([name]))[name]

    def _in_state(self, state: int) -> list[dict[str, Any]]:
        found = (own_columns(table) for table in self.tables)
        return [row for part in found for row in part if row[rows.STATE] == state]


def own_columns(table: pa.Table) -> list[dict[str, Any]]:
    """The product's columns of each row."""
    own = [name for name in rows.OWN_COLUMNS if name in table.column_names]
    return list(table.select(own).to_pylist())


def data_of(tables: Iterable[pa.Table]) -> list[dict[str, Any]]:
    """The user's columns of the good rows."""
    return list(_data(tables).to_pylist())


def _data(tables: Iterable[pa.Table]) -> pa.Table:
    good = [good for good, _ in map(rows.split, tables) if good.num_rows]
    table = concat(good) if good else pa.table({})
    return table.select(rows.data_columns(table))


def _place(row: dict[str, Any]) -> Place:
    file, number = rows.unpack(np.array([row[rows.ID]]))
    return int(file[0]), int(number[0])


@dataclass(frozen=True)
class Input:
    """An input that can be read, as a whole or from any file on."""

    given: FileInput

    @property
    def frozen(self) -> FrozenInput:
        return self.given.frozen

    @property
    def file_rows(self) -> FileRows:
        return self.given.rows

    def read(self, first: int = 0, after: int | None = None) -> Outcome:
        """Read the files `first` up to `after`."""
        return Outcome(list(self.file_rows.read(self.frozen.files()[first:after])))


def cut_up(opened: Input, parts: int) -> list[InputFile]:
    """The files of an input as about so many parts."""
    reader = opened.file_rows.reader
    assert isinstance(reader, DivisibleReader)
    return parts_of(opened.frozen.files(), reader, opened.file_rows.root, parts)


def open_input(
    format_: str, *paths: Path | str, sampled: int = SAMPLED_FILES, **options: Any
) -> Input:
    """An input of some format, after the reader has looked at so many of its files."""
    fields = {"format": format_, "paths": [str(path) for path in paths], "options": options}
    read = _READ.validate_python(fields)
    assert isinstance(read, ReadFiles)
    return Input(open_files(read, sampled))


def read_files(format_: str, *paths: Path | str, **options: Any) -> Outcome:
    """All rows of these files and directories."""
    return open_input(format_, *paths, **options).read()
