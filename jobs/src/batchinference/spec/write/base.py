"""The fields that outputs have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field

from batchinference.spec.base import ColumnName, Columns, SpecModel, Unique
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

PartitionColumns = Annotated[list[ColumnName], Field(min_length=1, max_length=8), Unique]


class WriteModel(SpecModel):
    path: Uri
    """The directory or s3://, gs:// or az:// prefix of the output. No other job may use it."""
    mode: Literal["error", "append", "overwrite", "ignore"] = "error"
    """What to do when the path, or the table, already holds something: refuse, add to it, replace
    it, or leave it and do nothing. If a job is run again over its own complete output, append reads
    the files that are new, overwrite starts over, and the other modes do nothing. A BatchInference
    on a cluster does its work once: applying a complete one again does nothing in any mode."""

    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the output and of the error records."""

    @property
    def places(self) -> dict[str, str]:
        """The paths and addresses of the output, by field."""
        return {"path": self.path}

    def moved(self, move: Callable[[str], str]) -> Self:
        """Return a copy with other paths and addresses."""
        return self.model_copy(update={"path": move(self.path)})

    @property
    def column_fields(self) -> dict[str, list[str]]:
        """The columns that fields name, by field. All of them must exist."""
        return {}

    @property
    def columns_needed(self) -> list[str] | None:
        """The columns that are written or that a field names; None for all."""
        return None


class WritePartitioned(WriteModel):
    partition_by: PartitionColumns | None = None
    """Columns whose values become directories (`class=cat/`). The files do not contain them. For
    delta and iceberg, the columns by which a new table is partitioned."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return {"partitionBy": self.partition_by or []}


class WriteColumns(WriteModel):
    columns: Columns | None = None
    """The columns to write, in this order. All columns by default."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return {"columns": self.columns or []} | super().column_fields

    @property
    def columns_needed(self) -> list[str] | None:
        return self.columns


class WriteSized(WriteColumns):
    rows_per_file: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Maximum and approximate number of rows of a file. By default, a file has up to about 64 MiB,
    or less so that progress can be reported."""


class WriteRows(WriteSized, WritePartitioned):
    """Files with many rows each."""
