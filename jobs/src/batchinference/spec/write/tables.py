"""Output formats that are tables. All rows of a job appear in one commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal, Self

from pydantic import model_validator

from batchinference.spec.base import invalid
from batchinference.spec.databases import CatalogTable, Database, TableName
from batchinference.spec.reserved import OWN_PREFIX
from batchinference.spec.write.base import WriteKeyed, WriteRows, WriteSized
from batchinference.spec.write.stores import WriteVectors


class WriteLance(WriteSized):
    """A Lance dataset at the path. Its vectors have a fixed size, so that they can be indexed."""

    format: Literal["lance"]
    mode: Literal["error", "append", "overwrite", "addColumn"] = "error"  # type: ignore[assignment]
    """What to do if the dataset is not empty. error: fail. append: add rows. overwrite: replace the
    content. addColumn: add the new `columns` to the rows of the dataset, which the job reads too;
    the other columns are not written again. If a job runs again on its own complete output, append
    and addColumn do nothing, overwrite starts over, and error does nothing. A BatchInference on a
    cluster runs once: if a complete one is applied again, nothing happens in any mode."""

    @property
    def number_column(self) -> str | None:
        return f"{OWN_PREFIX}row" if self.mode == "addColumn" else None

    @model_validator(mode="after")
    def _check_new_columns(self) -> Self:
        if self.mode == "addColumn" and not self.columns:
            raise invalid("mode: addColumn needs the new columns. Set columns")
        return self


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
