"""Output formats that are files."""

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.base import WRITTEN_DELIMITER, ColumnName, invalid
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.write.base import WriteModel, WritePartitioned, WriteRows

_HIDDEN_PREFIXES = ("_", ".")
"""Prefixes of names of files and directories that readers skip."""


class WriteDirectories(WritePartitioned):
    """Base class of formats that can write files to directories named after values of columns."""

    def _check(self) -> None:
        super()._check()
        for column in self.partition_by or []:
            if column.startswith(_HIDDEN_PREFIXES):
                raise invalid(
                    "partitionBy: readers leave out directories whose names begin with "
                    f"'{column[0]}', as those of column '{column}' would. Rename it first, with a "
                    "step renameColumns"
                )


class WriteNumbered(WriteRows, WriteDirectories):
    """Base class of formats whose files can have a column with row numbers."""

    MERGES_FILES = True

    row_number: ColumnName | None = None
    """The name of a new first column with the number of the input row. Rows are numbered from 0 in
    each input file, plus 1000000000000 times the number of the file."""

    @property
    def number_column(self) -> str | None:
        return self.row_number

    def _check(self) -> None:
        super()._check()
        for field, columns in self.column_fields.items():
            if self.row_number in columns:
                both = f"it adds column '{self.row_number}', which {field} names"
                raise invalid(f"rowNumber: {both}. Choose another name")


class WriteParquet(WriteNumbered):
    """Parquet files. Tensors are written as lists."""

    READ_IN_PARTS = True

    format: Literal["parquet"]
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = "snappy"
    """Compression of the files."""


class WriteJson(WriteNumbered):
    """JSON Lines files."""

    STORES_COLUMNS = False

    format: Literal["json"]
    compression: Literal["gzip", "none"] = "none"
    """Compression of the files."""


class WriteOpenaiBatch(WriteModel):
    """Result files of the OpenAI batch API: JSON Lines with `custom_id` and `response`. The failed
    rows are in the error file of this API too: `_errors.jsonl`."""

    STORES_COLUMNS = False
    STORES_VALUES = False
    MERGES_FILES = True

    format: Literal["openaiBatch"]
    custom_id_column: ColumnName = "custom_id"
    """The column with the id of each line."""
    response_column: ColumnName = "response"
    """The column with the body of each response, as JSON text. Models with `request` make it."""

    @property
    def number_column(self) -> str | None:
        return f"{OWN_PREFIX}row"

    @property
    def id_column(self) -> str | None:
        return self.custom_id_column

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return {"customIdColumn": [self.custom_id_column], "responseColumn": [self.response_column]}

    @property
    def columns_needed(self) -> list[str] | None:
        return [self.custom_id_column, self.response_column]


class WriteCsv(WriteNumbered):
    """Files of delimiter-separated values with a header line. Lists and tensors become JSON."""

    format: Literal["csv"]
    compression: Literal["gzip", "none"] = "none"
    """Compression of the files."""
    delimiter: Annotated[str, Field(pattern=WRITTEN_DELIMITER, max_length=1)] = ","
    """The character between two fields: a tab, or punctuation that is not in numbers or dates."""


class WriteWebdataset(WriteRows, WriteDirectories):
    """Tar files in WebDataset format. Each value of a row is a member of the archive. The column
    name or its extension decides the encoding: txt, cls, json, npy, jpg, jpeg, png or webp. For
    other names, the type decides: png for pixels, npy for other tensors, txt for text, cls for
    integers, json for other values."""

    STORES_COLUMNS = False
    STORES_VALUES = False

    format: Literal["webdataset"]
    key_column: ColumnName | None = None
    """The column with the key of each row. The names of a row's members begin with the key. By
    default, the key is a number."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        return super().column_fields | {"keyColumn": self._key_columns}

    @property
    def columns_needed(self) -> list[str] | None:
        return [*self.columns, *self._key_columns] if self.columns else None

    @property
    def _key_columns(self) -> list[str]:
        return [self.key_column] if self.key_column else []
