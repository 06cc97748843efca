"""Formats in which a file is one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from batchinference.pipeline.isolation import is_about_the_row
from batchinference.pipeline.readers.base import BadRow, Chunk
from batchinference.pipeline.storage import Address


class WholeFileReader:
    """A reader of files that are one row each; a format says how to decode one."""

    extensions: ClassVar[tuple[str, ...]] = ()
    row_per_file: ClassVar[bool] = True
    rows_exact: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]]
    """The columns of the format."""

    def prepare(self, samples: list[Address]) -> None:
        """Nothing to learn: every file stands alone."""

    def decode(self, content: bytes) -> list[pa.Array]:
        """The row of a file: the one value of each column."""
        raise NotImplementedError

    def read(self, file: Address) -> Iterator[Chunk]:
        content = file.read()
        try:
            columns = self.decode(content)
        except Exception as error:
            if not is_about_the_row(error):
                raise
            yield BadRow(error)  # whatever a decoder raises, the row is bad
            return
        yield pa.table(columns, names=list(self.names))

    def rows_in(self, file: Address, size: int) -> int:
        return 1

    def columns(self) -> list[str]:
        return list(self.names)
