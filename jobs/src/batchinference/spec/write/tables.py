"""Output formats that are tables. All rows of a job appear in one commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.databases import (
    Catalog,
    Database,
    TableName,
    map_sqlite_file,
    sqlite_file,
)
from batchinference.spec.write.base import WriteKeyed, WriteRows, WriteSized
from batchinference.spec.write.stores import WriteVectors

_NO_NAMESPACE = "table: Iceberg has namespaces. Write namespace.table"
_WAREHOUSE = (
    "catalog.properties.warehouse: Iceberg does not know az://. Write "
    "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"
)
_LOCAL_PREFIXES = ("/", ".", "~", "file:")


class WriteLance(WriteSized):
    """A Lance dataset at the path. Its vectors have a fixed size, so that they can be indexed."""

    format: Literal["lance"]


class WriteDelta(WriteKeyed, WriteRows):
    """A Delta Lake table at the path."""

    CASELESS = True

    format: Literal["delta"]


class WriteIceberg(WriteKeyed, WriteRows):
    """An Iceberg table in a catalog. `path` is for the report and the error records of the job."""

    CASELESS = True

    format: Literal["iceberg"]
    table: TableName
    """The table, with its namespace or schema before a dot. It is created if it does not exist."""
    catalog: Catalog = Catalog()
    """The catalog of the table."""

    @property
    def connection(self) -> str:
        return f"the Iceberg catalog {self.catalog.model_dump_json(ensure_ascii=True)}"

    @property
    def locations(self) -> dict[str, str]:
        in_catalog = {f"catalog.properties.{name}": path for name, path in self._paths.items()}
        return super().locations | in_catalog

    def map_locations(self, change: Callable[[str], str]) -> Self:
        properties = self.catalog.properties
        changed = {
            name: map_sqlite_file(properties[name], change)
            if sqlite_file(properties[name])
            else change(path)
            for name, path in self._paths.items()
        }
        catalog = self.catalog.model_copy(update={"properties": properties | changed})
        return super().map_locations(change).model_copy(update={"catalog": catalog})

    @property
    def _paths(self) -> dict[str, str]:
        """Return the catalog properties that are paths. A warehouse may also be a name."""
        properties = {name: self.catalog.properties.get(name, "") for name in ("uri", "warehouse")}
        paths = {
            name: sqlite_file(value) or (value if value.startswith(_LOCAL_PREFIXES) else "")
            for name, value in properties.items()
        }
        return {name: path for name, path in paths.items() if path}

    @model_validator(mode="after")
    def _check_names(self) -> WriteIceberg:
        if "." not in self.table:
            raise PydanticCustomError("iceberg_table", _NO_NAMESPACE, {})
        if self.catalog.properties.get("warehouse", "").startswith("az://"):
            raise PydanticCustomError("iceberg_warehouse", _WAREHOUSE, {})
        return self


class WriteSql(WriteKeyed, WriteVectors, Database):
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
