"""The tables of all output formats. A module is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from batchinference.pipeline.errors import (
    DATABASES_EXTRA,
    FORMATS_EXTRA,
    BadOutput,
    require_package,
)
from batchinference.pipeline.output.tables import Table

if TYPE_CHECKING:
    from batchinference.spec.write import Write, WriteTable


TABLES = {
    "lance": ("LanceTable", "lance"),
    "delta": ("DeltaLakeTable", "deltalake"),
    "iceberg": ("IcebergTable", "pyiceberg"),
    "sql": ("SqlTable", "sqlalchemy"),
    "qdrant": ("QdrantTable", "qdrant_client"),
    "opensearch": ("OpensearchTable", "opensearchpy"),
}
"""The class of each format, and the library that it imports. The module has the name of the format,
and is imported when it is needed."""


def table_for(write: WriteTable) -> Table:
    """Return the table that a job writes. Raises BadOutput if its library is not installed."""
    name, library = TABLES[write.format]
    extra = DATABASES_EXTRA if write.format in ("qdrant", "opensearch") else FORMATS_EXTRA
    require_package(f"the format '{write.format}'", library, extra, BadOutput)
    module = importlib.import_module(f"{__package__}.{write.format}")
    return cast(Table, getattr(module, name)(write))


def table_or_none(write: Write) -> Table | None:
    """Return the table that a job writes, or None if it writes files."""
    return table_for(write) if write.format in TABLES else None  # type: ignore[arg-type]
