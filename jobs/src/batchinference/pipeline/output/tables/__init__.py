"""One module a table format. Their libraries are imported where a job writes such a table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batchinference.pipeline.errors import MAX_MESSAGE, BadOutput, JobFailure
from batchinference.pipeline.libraries import FORMATS_EXTRA, need
from batchinference.pipeline.output.tables.base import Fence, Table
from batchinference.spec.write import (
    WriteDelta,
    WriteIceberg,
    WriteLance,
    WriteSql,
    WriteTable,
)

_LIBRARIES = {"lance": "lance", "delta": "deltalake", "iceberg": "pyiceberg", "sql": "sqlalchemy"}


def table_for(write: WriteTable) -> Table:
    """The table that a job writes.

    Raises BadOutput that says what to install when the format's library is missing.
    """
    need(f"the format '{write.format}'", _LIBRARIES[write.format], FORMATS_EXTRA, BadOutput)
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


@contextmanager
def reaching_table() -> Iterator[None]:
    """Tell what a format's library raises as a fault of the output."""
    try:
        yield
    except (JobFailure, OSError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:MAX_MESSAGE]
        raise BadOutput(
            f"the table that write names cannot be used: {type(error).__name__}: {said}"
        ) from error


def taken(write: WriteTable) -> BadOutput:
    """What to raise of a table whose rows the mode does not allow to add to or to replace."""
    return BadOutput(
        f"the table that write names ({write.format}, '{getattr(write, 'table', write.path)}') "
        "has rows already: set write.mode to append, or to overwrite, or choose another one"
    )


__all__ = ["Fence", "Table", "reaching_table", "table_for", "taken"]
