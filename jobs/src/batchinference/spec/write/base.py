"""What all targets have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field

from batchinference.spec.base import ColumnName, Columns, EachOnce, SpecModel
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uris import Uri

PartitionColumns = Annotated[list[ColumnName], Field(min_length=1, max_length=8), EachOnce]


class WriteModel(SpecModel):
    path: Uri
    """The directory, or s3://, gs:// or az:// prefix, that takes the output. It is the job's
    alone."""
    mode: Literal["error", "append", "overwrite", "ignore"] = "error"
    """What to do when the path, or the table, already holds something: refuse, add to it, replace
    it, or leave it and do nothing. The same job over its own complete output does nothing in any
    mode but overwrite."""

    storage: Storage = FROM_ENVIRONMENT
    """How the object store that takes the output, and bad rows, is reached."""

    @property
    def places(self) -> dict[str, str]:
        """The paths and addresses to which is written, by field."""
        return {"path": self.path}

    def moved(self, move: Callable[[str], str]) -> Self:
        """The same with other paths and addresses in the place of those."""
        return self.model_copy(update={"path": move(self.path)})

    @property
    def column_fields(self) -> dict[str, list[str]]:
        """The columns that fields name, by field: all of them must be there."""
        return {}

    @property
    def columns_needed(self) -> list[str] | None:
        """The columns that are written or say how; None for all."""
        return None


class WritePartitioned(WriteModel):
    partition_by: PartitionColumns | None = None
    """Columns whose values become directories (`class=cat/`) instead of standing in the files; of
    delta and iceberg, the columns by which a new table is partitioned."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return {"partitionBy": self.partition_by or []}


class WriteColumns(WriteModel):
    columns: Columns | None = None
    """The columns to write, in this order; all of them by default."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return {"columns": self.columns or []} | super().column_fields

    @property
    def columns_needed(self) -> list[str] | None:
        return self.columns


class WriteSized(WriteColumns):
    rows_per_file: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """The most rows of a file, and about as many as a file has. By default, enough for
    64 MiB, and few enough that progress can be seen."""


class WriteRows(WriteSized, WritePartitioned):
    """Files of many rows each."""
