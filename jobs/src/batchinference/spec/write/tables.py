"""Output formats that are tables. All rows of a job appear in one commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, Self

from batchinference.spec.databases import CatalogTable, Database, TableName
from batchinference.spec.write.base import WriteColumns, WriteRows, WriteSized


class WriteLance(WriteSized):
    """A Lance dataset at the path. Its vectors have a fixed size, so that they can be indexed."""

    format: Literal["lance"]


class WriteDelta(WriteRows):
    """A Delta Lake table at the path."""

    CASELESS = True

    format: Literal["delta"]


class WriteIceberg(WriteRows, CatalogTable):
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


class WriteSql(WriteColumns, Database):
    """A database table, written with SQLAlchemy. Lists, structs and tensors become JSON.
    `path` is for the rows before the commit, the report and the error records of the job."""

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
        return super().locations | self.file

    def map_locations(self, change: Callable[[str], str]) -> Self:
        return super().map_locations(change).map_file(change)
