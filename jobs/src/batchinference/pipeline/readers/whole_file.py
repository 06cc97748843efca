"""Formats in which a file is one row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from batchinference.pipeline.readers.base import BadRow, Chunk
from batchinference.pipeline.storage import Address


class WholeFileReader:
    """A reader of files that are one row each; a format says how to decode one."""

    extensions: ClassVar[tuple[str, ...]] = ()
    row_per_file: ClassVar[bool] = True
    rows_exact: ClassVar[bool] = True
    column: ClassVar[str]

    def prepare(self, samples: list[Address]) -> None:
        """Nothing to learn: every file stands alone."""

    def decode(self, content: bytes) -> Any:
        """The value of the row."""
        raise NotImplementedError

    def to_arrow(self, values: list[Any]) -> pa.Array:
        """Values of several rows as one column."""
        raise NotImplementedError

    def read(self, file: Address) -> Iterator[Chunk]:
        content = file.read()
        try:
            value = self.decode(content)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises, the row is bad
            yield BadRow(error)
            return
        yield pa.table({self.column: self.to_arrow([value])})

    def rows_in(self, file: Address, size: int) -> int:
        return 1

    def columns(self) -> list[str]:
        return [self.column]
