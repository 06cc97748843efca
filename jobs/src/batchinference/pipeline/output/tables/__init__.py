"""Table outputs, one module per format. A format's library is imported only if a job writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchinference.pipeline.errors import FORMATS_EXTRA, BadOutput, require_package
from batchinference.pipeline.output.tables.base import Table

if TYPE_CHECKING:
    from batchinference.spec.write import Write, WriteTable

_LIBRARIES = {"lance": "lance", "delta": "deltalake", "iceberg": "pyiceberg", "sql": "sqlalchemy"}


def table_for(write: WriteTable) -> Table:
    """Return the table that a job writes.

    Raises BadOutput, which states what to install, if the format's library is missing.
    """
    from batchinference.spec.write import WriteDelta, WriteIceberg, WriteLance, WriteSql

    require_package(
        f"the format '{write.format}'", _LIBRARIES[write.format], FORMATS_EXTRA, BadOutput
    )
    match write:
        case WriteLance():
            from batchinference.pipeline.output.tables.lance import LanceTable

            return LanceTable(write)
        case WriteDelta():
            from batchinference.pipeline.output.tables.delta import DeltaLakeTable

            return DeltaLakeTable(write)
        case WriteIceberg():
            from batchinference.pipeline.output.tables.iceberg import IcebergTable

            return IcebergTable(write)
        case WriteSql():
            from batchinference.pipeline.output.tables.sql import SqlTable

            return SqlTable(write)


def table_of(write: Write) -> Table | None:
    """Return the table that a job writes, or None if it writes files."""
    from batchinference.spec.write import WriteTable

    return table_for(write) if isinstance(write, WriteTable) else None


__all__ = ["Table", "table_for", "table_of"]
