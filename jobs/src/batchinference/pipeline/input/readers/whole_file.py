"""Formats in which a file is one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read.base import RowOptions


class WholeFileReader:
    """A reader of files that are one row each; a format says how to decode one, and how several
    become a table."""

    extensions: ClassVar[tuple[str, ...]] = ()
    rows_exact: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]]
    """The columns of the format."""

    def __init__(self, options: RowOptions) -> None:
        self.max_row_bytes = options.row_bytes

    def prepare(self, samples: list[Location]) -> None:
        """Nothing to learn: every file stands alone."""

    def decode(self, content: bytes) -> Any:
        """What a file holds, for `columns_of`."""
        raise NotImplementedError

    def columns_of(self, decoded: list[Any]) -> list[pa.Array]:
        """The columns of so many rows."""
        raise NotImplementedError

    def fetch(self, file: Location) -> bytes:
        """The bytes of a file, and one more than the limit if it has too many."""
        return file.read(self.max_row_bytes + 1)

    def decode_or_bad(self, content: bytes) -> Any | BadRow:
        """What a file holds, or why it cannot be known: whatever a decoder raises."""
        try:
            if len(content) > self.max_row_bytes:
                limit = f"max_row_bytes ({self.max_row_bytes})"
                raise ValueError(f"the file has more bytes than {limit}")
            return self.decode(content)
        except Exception as error:
            if not is_about_the_file(error):
                raise
            return BadRow(error)

    def table(self, decoded: list[Any]) -> pa.Table:
        return pa.table(self.columns_of(decoded), names=list(self.names))

    def read(self, file: Location) -> Iterator[Chunk]:
        decoded = self.decode_or_bad(self.fetch(file))
        yield decoded if isinstance(decoded, BadRow) else self.table([decoded])

    def rows_in(self, file: Location, size: int) -> int:
        return 1

    def columns(self) -> list[str]:
        return list(self.names)
