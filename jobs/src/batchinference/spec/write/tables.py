"""Output formats that are tables or stores. All rows of a table appear in one commit. Rows are put
into a store, such as Qdrant or OpenSearch, by their key."""

import json
from collections.abc import Callable
from typing import Annotated, Literal, Self

from pydantic import Field

from batchinference.spec.base import ENV_NAME, ColumnName, invalid
from batchinference.spec.databases import CatalogTable, Database, Server, TableName
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.write.base import (
    KeyColumns,
    WriteColumns,
    WriteKeyed,
    WriteRows,
    WriteSized,
)

COLLECTION = r'^[^\x00-\x20<>:"/\\|?*]+$'
INDEX = r'^[^-_+A-Z\x00-\x20\\/*?"<>|,#:][^A-Z\x00-\x20\\/*?"<>|,#:]*$'


class WriteVectors(WriteColumns):
    """Base class of outputs with a column of vectors for search."""

    vector_column: ColumnName | None = None
    """The column with the vectors: lists or one-dimensional tensors of numbers. They are stored as
    float32. A row whose vector is null, is not finite or has another length is a failed row."""
    dimensions: Annotated[int, Field(ge=1, le=65536)] | None = None
    """The length of the vectors. Required if the table, collection or index does not exist."""

    @property
    def column_fields(self) -> dict[str, list[str]]:
        names = [self.vector_column] if self.vector_column else []
        return super().column_fields | {"vectorColumn": names}

    def _check(self) -> None:
        super()._check()
        if self.dimensions and not self.vector_column:
            what = f"the length of the vectors ({self.dimensions}), but vectorColumn is not set"
            raise invalid(f"dimensions: {what}. Set vectorColumn, or remove dimensions")
        if self.vector_column and self.vector_column not in (self.columns or [self.vector_column]):
            problem = f"vectorColumn: column '{self.vector_column}' is not written"
            raise invalid(f"{problem}. Add it to columns")


class WriteStore(WriteKeyed, WriteVectors, Server):
    """A store that is reached over HTTP. `path` is for the report and the error records of the job,
    and for rows before they are put into the store."""

    mode: Literal["merge"] = "merge"  # type: ignore[assignment]
    """`merge`: replace the entries of the store that have the key of a row, and add the other rows.
    If the job runs again after its output is complete, it reads only new files."""
    key: KeyColumns
    """The columns whose values identify a row: integers or texts. No two rows of a job may have the
    same values, and no value may be null."""
    distance: Literal["cosine", "dot", "euclidean"] | None = None
    """How a search compares vectors in a new collection or index. Cosine by default."""

    @property
    def connection(self) -> str:
        address = f"in the variable {self.url_env}" if self.url_env else json.dumps(self.url)
        return f"the server {address}"


class WriteQdrant(WriteStore):
    """Points of a Qdrant collection. The id of a point is its key, if this is a single integer from
    0. Otherwise, it is a UUID made from the key. The payload has all columns except `vectorColumn`,
    and the version of the commit."""

    format: Literal["qdrant"]
    collection: Annotated[str, Field(pattern=COLLECTION, max_length=255)]
    """The collection. It is created if it does not exist."""
    vector_column: ColumnName
    """The column with the vectors: lists or one-dimensional tensors of numbers. They are stored as
    float32. A row whose vector is null, is not finite or has another length is a failed row."""
    api_key_env: Annotated[str, Field(pattern=ENV_NAME, max_length=128)] | None = None
    """The environment variable with the API key of the server."""


class WriteOpensearch(WriteStore):
    """Documents of an OpenSearch index. The id of a document is made from its key."""

    format: Literal["opensearch"]
    index: Annotated[str, Field(pattern=INDEX, max_length=255)]
    """The index. It is created if it does not exist."""


class WriteLance(WriteSized):
    """A Lance dataset at the path. Its vectors have a fixed size, which an index requires."""

    format: Literal["lance"]
    mode: Literal["error", "append", "overwrite", "addColumn"] = "error"  # type: ignore[assignment]
    """What to do if the dataset is not empty. `error`: fail. `append`: add rows. `overwrite`:
    replace the content. `addColumn`: add the new `columns` to the rows of the dataset, which the
    job must also read. Other columns are not written again. If the job runs again after its output
    is complete, only `overwrite` starts over, and other modes do nothing. On a cluster, applying a
    complete BatchInference again does nothing in any mode."""

    @property
    def number_column(self) -> str | None:
        return f"{OWN_PREFIX}row" if self.mode == "addColumn" else None

    def _check(self) -> None:
        if self.mode == "addColumn" and not self.columns:
            raise invalid("mode: addColumn needs the new columns. Set columns")


class WriteDelta(WriteKeyed, WriteRows):
    """A Delta Lake table at the path."""

    CASELESS = True

    format: Literal["delta"]


class WriteIceberg(WriteKeyed, WriteRows, CatalogTable):
    """An Iceberg table in a catalog. `path` is for the report and the error records of the job."""

    CASELESS = True

    format: Literal["iceberg"]

    @property
    def connection(self) -> str:
        return f"the Iceberg catalog {self.catalog.model_dump_json(ensure_ascii=True)}"

    @property
    def locations(self) -> dict[str, str]:
        return super().locations | self.catalog_files

    def map_locations(self, change: Callable[[str], str]) -> Self:
        return super().map_locations(change).map_catalog(change)


class WriteSql(WriteKeyed, WriteVectors, Database):
    """A database table, written with SQLAlchemy. Lists, structs and tensors become JSON. `path` is
    for the report and the error records of the job, and for rows before the commit."""

    CASELESS = True

    format: Literal["sql"]
    table: TableName
    """The table, with its namespace or schema before a dot. It is created if it does not exist."""

    @property
    def connection(self) -> str:
        address = f"in the variable {self.url_env}" if self.url_env else json.dumps(self.url)
        return f"the database {address}"

    @property
    def locations(self) -> dict[str, str]:
        return super().locations | self.file_location

    def map_locations(self, change: Callable[[str], str]) -> Self:
        return super().map_locations(change).map_file(change)
