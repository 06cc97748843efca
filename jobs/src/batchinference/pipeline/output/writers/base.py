"""The interface of writers, and error messages that name the column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_row
from batchinference.pipeline.errors import BadOutput, UnwritableValue
from batchinference.pipeline.storage.memory_limit import errors_within_limits


class Writer(Protocol):
    """Converts rows to files of one format. Ray serializes it into the write tasks."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """Yield the files that hold a table: the end of each file's name, and all of its bytes."""


@runtime_checkable
class ValueWriter(Writer, Protocol):
    """A writer that cannot encode all values. Its `files` raises UnwritableValue for others."""

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return the error of each row that cannot be written to the file of this table, by row
        index. Raises BadOutput if a column cannot be written at all."""


@contextmanager
def naming(column: str) -> Iterator[None]:
    """Raise UnwritableValue with the column's name if a value raises an error of its own."""
    try:
        with errors_within_limits():
            yield
    except Exception as error:
        if isinstance(error, BadOutput) or not is_about_the_row(error):
            raise
        message = f"write: column '{column}' cannot be encoded ({error})"
        raise UnwritableValue(message) from error
