"""Formats whose files are tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import DELIMITER, Columns
from batchinference.spec.read.base import FileOptions, ReadFiles, RowOptions


class ParquetOptions(FileOptions):
    columns: Columns | None = None
    """The columns to read; the others are never fetched."""


class ReadParquet(ReadFiles):
    """Parquet files with their own columns."""

    format: Literal["parquet"]
    """The format of the files."""
    options: ParquetOptions = ParquetOptions()
    """Options of the format."""


class JsonOptions(RowOptions):
    lines: bool = True
    """One JSON object a line (JSON Lines). False: a file is one array of objects."""


class ReadJson(ReadFiles):
    """JSON files; the fields of an object are the columns."""

    format: Literal["json"]
    """The format of the files."""
    options: JsonOptions = JsonOptions()
    """Options of the format."""


class CsvOptions(RowOptions):
    delimiter: Annotated[str, Field(pattern=DELIMITER, max_length=1)] = ","
    """The character between two fields."""
    column_names: Columns | None = None
    """The names of the columns of files that have no header line."""


class ReadCsv(ReadFiles):
    """Files of separated values with a header line."""

    format: Literal["csv"]
    """The format of the files."""
    options: CsvOptions = CsvOptions()
    """Options of the format."""


class NumpyOptions(RowOptions):
    USUAL_ROW_BYTES = 1 << 30


class ReadNumpy(ReadFiles):
    """NumPy's files, one row an element of the first axis: .npy in a column `data`, .npz with a
    column for each of its arrays."""

    format: Literal["numpy"]
    """The format of the files."""
    options: NumpyOptions = NumpyOptions()
    """Options of the format."""
