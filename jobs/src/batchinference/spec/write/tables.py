"""Outputs that are tables. The rows of a job appear in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.databases import (
    Catalog,
    Database,
    TableName,
    sqlite_file,
    with_sqlite_moved,
)
from batchinference.spec.write.base import WriteColumns, WriteRows, WriteSized

_PATHS = ("/", ".", "~", "file:")
"""How local paths begin."""


class WriteLance(WriteSized):
    """A Lance dataset at the path. Its vectors have a fixed size, so that they can be indexed."""

    format: Literal["lance"]
    """The format of the output."""


class WriteDelta(WriteRows):
    """A Delta Lake table at the path."""

    format: Literal["delta"]
    """The format of the output."""


class WriteIceberg(WriteRows):
    """An Iceberg table in a catalog. The path is for the report and error records of the job."""

    format: Literal["iceberg"]
    """The format of the output."""
    table: TableName
    """The table, with its namespace or schema before a dot. It is created if it does not exist."""
    catalog: Catalog = Catalog()
    """The catalog of the table."""

    @property
    def places(self) -> dict[str, str]:
        own = {f"catalog.properties.{name}": path for name, path in self._paths.items()}
        return super().places | own

    def moved(self, move: Callable[[str], str]) -> Self:
        given = self.catalog.properties
        own = {
            name: with_sqlite_moved(given[name], move) if sqlite_file(given[name]) else move(path)
            for name, path in self._paths.items()
        }
        catalog = self.catalog.model_copy(update={"properties": given | own})
        return super().moved(move).model_copy(update={"catalog": catalog})

    @property
    def _paths(self) -> dict[str, str]:
        """The paths among the catalog's properties; a warehouse may also be a mere name."""
        given = {name: self.catalog.properties.get(name, "") for name in ("uri", "warehouse")}
        paths = {
            name: sqlite_file(value) or (value if value.startswith(_PATHS) else "")
            for name, value in given.items()
        }
        return {name: path for name, path in paths.items() if path}

    @model_validator(mode="after")
    def _check_names(self) -> WriteIceberg:
        if "." not in self.table:
            raise PydanticCustomError(
                "iceberg_table", "table: Iceberg has namespaces: write namespace.table", {}
            )
        if self.catalog.properties.get("warehouse", "").startswith("az://"):
            raise PydanticCustomError(
                "iceberg_warehouse",
                "catalog.properties.warehouse: Iceberg does not know az://: write "
                "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
                {},
            )
        return self


class WriteSql(WriteColumns, Database):
    """A table of a database, written with SQLAlchemy. Lists, structs and tensors become JSON. The
    path is for the rows before the commit, and for the report and the error records of the job."""

    format: Literal["sql"]
    """The format of the output."""
    table: TableName
    """The table, with its namespace or schema before a dot. It is created if it does not exist."""

    @property
    def places(self) -> dict[str, str]:
        return super().places | self.file

    def moved(self, move: Callable[[str], str]) -> Self:
        return super().moved(move).with_file_moved(move)
