"""Writers that convert tables to the bytes of files, one module per output format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import pyarrow as pa

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.errors import UnwritableValue
from batchinference.pipeline.output.python_rows import DAMAGE, Row, unreadable
from batchinference.pipeline.storage.location import Location


class Writer(ABC):
    """Converts rows to files of one format. Each write task gets a copy of the writer."""

    @abstractmethod
    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """Yield the extension and the content of each file that holds rows of a table. Raises
        UnwritableValue for a value that cannot be encoded."""

    def converted(self, table: pa.Table) -> pa.Table:
        """Return the table with the types that its columns will have in the files."""
        return tensors_to_lists(table)

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return an error for each row that cannot be written, by row index. Raises BadOutput if a
        column cannot be written at all."""
        return {}

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        """Return the number of NaN and infinite values that become null, by row index."""
        return {}

    def unsigned_zeros(self, table: pa.Table) -> dict[int, int]:
        """Return the number of values -0.0 that become 0.0, by row index."""
        return {}


def unwritable_items(
    write: Callable[[Any], object], items: Iterable[Any]
) -> dict[int, UnwritableValue]:
    """Call `write` with each item, and return the raised errors by the index of the item."""
    errors: dict[int, UnwritableValue] = {}
    for index, item in enumerate(items):
        try:
            write(item)
        except UnwritableValue as error:
            errors[index] = error
    return errors


class FileWriter(Writer):
    """A writer whose files are the output itself. The files of a `Table` are only its input."""

    @abstractmethod
    def rows(self, part: Location) -> Iterator[Row]:
        """Yield the rows of a file. Raises one of the errors in DAMAGE if it is damaged."""


class RewritingWriter(FileWriter):
    """A writer that can read its files and write the same values again."""

    typed: ClassVar[bool] = False
    """Whether `read` returns columns with types; otherwise it returns values as encoded text."""

    @abstractmethod
    def read(self, content: bytes) -> pa.Table:
        """Return the rows of a file that this job has written. A row may have any size."""

    @abstractmethod
    def write(self, tables: Iterable[pa.Table]) -> Content:
        """Return the content of a file with the rows of all tables. The tables are from `read`,
        have one schema, and are taken one by one."""


def rows_of_file(part: Location, writer: FileWriter) -> Iterator[Row]:
    """Yield the rows of a data file. Raises BadOutput if the file is damaged. Only Parquet files
    are read in parts."""
    try:
        yield from writer.rows(part)
    except DAMAGE as error:
        raise unreadable(part, error) from None
