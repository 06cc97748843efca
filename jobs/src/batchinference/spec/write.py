"""Where to write, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import DELIMITER, ColumnName, SpecModel
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

Columns = Annotated[list[ColumnName], Field(min_length=1, max_length=256)]


class WriteModel(SpecModel):
    path: Uri
    """The directory, or s3://, gs:// or az:// prefix, that takes the output. It is the job's
    alone."""
    mode: Literal["error", "append", "overwrite", "ignore"] = "error"
    """What to do when the path already holds something: refuse, add to it, remove it first, or
    leave it and do nothing. The same job over its own complete output does nothing in any mode but
    overwrite."""
    columns: Columns | None = None
    """The columns to write, in this order; all of them unless told otherwise."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store that takes the output, and bad rows, is reached."""


class WriteRows(WriteModel):
    """Files of many rows each."""

    partition_by: Annotated[list[ColumnName], Field(min_length=1, max_length=8)] | None = None
    """Columns whose values become directories (`class=cat/`) instead of standing in the files."""
    rows_per_file: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The most rows of a file, and about as many as a file has. Unless told otherwise, enough for
    64 MiB, and few enough that progress can be seen."""


class WriteParquet(WriteRows):
    """Parquet files; tensors are written as plain lists."""

    format: Literal["parquet"]
    """The format of the output."""
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = "snappy"
    """Compression of the files."""


class WriteJson(WriteRows):
    """JSON Lines files."""

    format: Literal["json"]
    """The format of the output."""
    compression: Literal["gzip", "none"] = "none"
    """Compression of the files."""


class WriteCsv(WriteRows):
    """Files of separated values with a header line. Lists and tensors become JSON."""

    format: Literal["csv"]
    """The format of the output."""
    compression: Literal["gzip", "none"] = "none"
    """Compression of the files."""
    delimiter: Annotated[str, Field(pattern=DELIMITER, max_length=1)] = ","
    """The character between two fields."""


Write = Annotated[WriteParquet | WriteJson | WriteCsv, Field(discriminator="format")]
