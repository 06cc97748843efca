"""What a writer is, and plain columns instead of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from batchinference.pipeline.errors import BadOutput


class Writer(Protocol):
    """From rows to the files of one format. It travels into the write tasks."""

    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """The files that hold a table: how the name of each ends, and all of its bytes."""


@contextmanager
def naming(column: str) -> Iterator[None]:
    """Let an error of a value name its column."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise BadOutput(f"write: a value of column '{column}': {error}") from error
