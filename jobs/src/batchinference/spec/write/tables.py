"""Tables: the rows of a job appear in them together, when all of them are there."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.databases import Catalog, Database, TableName
from batchinference.spec.write.base import WriteColumns, WriteRows, WriteSized


class WriteLance(WriteSized):
    """A Lance dataset at the path. Vectors have a fixed size there, so that they can be indexed."""

    format: Literal["lance"]
    """The format of the output."""


class WriteDelta(WriteRows):
    """A Delta Lake table at the path."""

    format: Literal["delta"]
    """The format of the output."""


class WriteIceberg(WriteRows):
    """An Iceberg table of a catalog. The path takes the job's report and bad rows."""

    format: Literal["iceberg"]
    """The format of the output."""
    table: TableName
    """The table, with its namespace or schema before a dot. It is made when it is not there."""
    catalog: Catalog = Catalog()
    """The catalog that has the table."""

    @model_validator(mode="after")
    def _has_namespace(self) -> WriteIceberg:
        if "." not in self.table:
            raise PydanticCustomError(
                "iceberg_table",
                "table: an Iceberg table has a namespace: write namespace.table",
                {},
            )
        return self


class WriteSql(WriteColumns, Database):
    """A table of a database, by SQLAlchemy. Lists, structs and tensors become JSON. The path takes
    the rows until all are there, and the job's report and bad rows."""

    format: Literal["sql"]
    """The format of the output."""
    table: TableName
    """The table, with its namespace or schema before a dot. It is made when it is not there."""
