"""Base class for readers of formats in which a file is one row, and the reader of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from batchinference.pipeline.error_attribution import is_about_the_file
from batchinference.pipeline.input.readers.base import BadRow, Chunk
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read.base import RowOptions


class WholeFileReader:
    """A reader of files that are one row each. A subclass decodes a file and builds the columns for
    several decoded files."""

    extensions: ClassVar[tuple[str, ...]] = ()
    rows_exact: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]]
    """The columns of the format."""

    def __init__(self, options: RowOptions) -> None:
        self.max_row_bytes = options.row_bytes

    def prepare(self, samples: list[Location]) -> None:
        """Do nothing: each file is read independently."""

    def decode(self, content: bytes) -> Any:
        """Return the decoded content of a file, for `columns_of`."""
        raise NotImplementedError

    def columns_of(self, decoded: list[Any]) -> list[pa.Array]:
        """Return the columns for decoded files, one row each."""
        raise NotImplementedError

    def fetch(self, file: Location) -> bytes:
        """Return the bytes of a file, at most `max_row_bytes` + 1, which shows that it is too
        large."""
        return file.read(self.max_row_bytes + 1)

    def decode_or_bad(self, content: bytes) -> Any | BadRow:
        """Return the decoded content of a file, or a BadRow with any error that the decoder raised.
        Raises errors that are not about the file, such as storage errors."""
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


class BinaryReader(WholeFileReader):
    """Reads files of any type as bytes."""

    names = ("bytes",)

    def decode(self, content: bytes) -> bytes:
        return content

    def columns_of(self, decoded: list[bytes]) -> list[pa.Array]:
        return [pa.array(decoded, pa.large_binary())]
