"""The base classes of output formats."""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from batchinference.spec.base import ColumnName, Columns, SpecModel, Unique, invalid
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import Uri

KeyColumns = Annotated[list[ColumnName], Field(min_length=1, max_length=8), Unique]


class WriteModel(SpecModel):
    """Base class of outputs."""

    CASELESS: ClassVar[bool] = False
    """Whether the case of column names is ignored."""
    STORES_COLUMNS: ClassVar[bool] = True
    """Whether a file stores its columns even if it has no rows."""
    READ_IN_PARTS: ClassVar[bool] = False
    """Whether the first rows of a file can be read without reading the rest of the file."""
    STORES_VALUES: ClassVar[bool] = True
    """Whether the values of rows can be read from the written files."""

    MERGES_FILES: ClassVar[bool] = False
    """Whether small files of the output are merged."""

    format: str
    """The format of the output."""
    path: Uri
    """The directory or s3://, gs:// or az:// prefix of the output. No other job may use it."""
    mode: Literal["error", "append", "overwrite"] = "error"
    """What to do if the path or the table is not empty. `error`: fail. `append`: add rows.
    `overwrite`: replace the content. If the job runs again after its output is complete, `append`
    reads only new files, `overwrite` starts over, and `error` does nothing. On a cluster, applying
    a complete BatchInference again does nothing in any mode."""

    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of the output and of the error records."""

    @property
    def adds(self) -> bool:
        """Return whether the mode keeps existing rows of the output, and adds rows or columns."""
        return self.mode not in ("error", "overwrite")

    @property
    def number_column(self) -> str | None:
        """Return the name of the first column if it has the number of the input row, or None."""
        return None

    @property
    def id_column(self) -> str | None:
        """Return the column that identifies failed rows in the error file; None without a file."""
        return None

    @property
    def connection(self) -> str:
        """Return a text that identifies the catalog, database or server; empty if there is none."""
        return ""

    @property
    def locations(self) -> dict[str, str]:
        """Return the paths and URIs of the output, by field."""
        return {"path": self.path}

    def map_locations(self, change: Callable[[str], str]) -> Self:
        """Return a copy with `change` applied to all paths and URIs."""
        return self.model_copy(update={"path": change(self.path)})

    @property
    def column_fields(self) -> dict[str, list[str]]:
        """Return the columns that each field names, by field. All these columns must exist."""
        return {}

    @property
    def columns_needed(self) -> list[str] | None:
        """Return the columns that are written or that a field names; None for all columns."""
        return None


class WritePartitioned(WriteModel):
    partition_by: KeyColumns | None = None
    """Columns whose values become directories (`class=cat/`) and are left out of the files. Parts
    of columns, such as `a.b` or `a[0]`, are allowed too, and stay in the files. For delta and
    iceberg, the columns partition a new table, and cannot be parts."""

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


class WriteKeyed(WriteModel):
    """An output whose rows can have a key."""

    mode: Literal["error", "append", "overwrite", "merge"] = "error"  # type: ignore[assignment]
    """What to do if the path or the table is not empty. `error`: fail. `append`: add rows.
    `overwrite`: replace the content. `merge`: update existing rows that have the key of a row of
    the job, and add all other rows of the job. If the job runs again after its output is complete,
    `append` and `merge` read only new files, `overwrite` starts over, and `error` does nothing. On
    a cluster, applying a complete BatchInference again does nothing in any mode."""
    key: KeyColumns | None = None
    """The columns whose values identify a row, for the mode merge. No two rows of a job may have
    the same values, and no value may be null."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return super().column_fields | {"key": self.key or []}

    def _check(self) -> None:
        super()._check()
        if (self.mode == "merge") != (self.key is not None):
            problem = "mode: merge needs the columns that identify a row. Write key: [COLUMN]"
            if self.key is not None:
                problem = "key: only the mode merge uses it. Set mode to merge, or remove key"
            raise invalid(problem)
        columns = getattr(self, "columns", None) or self.key or ()
        for column in self.key or ():
            if column not in columns:
                raise invalid(f"key: column '{column}' is not written. Add it to columns")


class WriteSized(WriteColumns):
    rows_per_file: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Maximum number of rows of a file. Most files have about this number. By default, a file has
    up to about 64 MiB, or less if progress would be committed too late."""


class WriteRows(WriteSized, WritePartitioned):
    """Base class of outputs whose files have many rows each."""
