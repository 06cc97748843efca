"""The interface of writers, and error messages that name the column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from batchinference.pipeline.errors import BadOutput


class Writer(Protocol):
    """Converts rows to files of one format. Ray serializes it into the write tasks."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """Yield the files that hold a table: the end of each file's name, and all of its bytes."""


@contextmanager
def naming(column: str) -> Iterator[None]:
    """Raise BadOutput with the column's name if a value raises ValueError or TypeError."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise BadOutput(f"write: column '{column}' cannot be encoded ({error})") from error
