"""Writers that convert tables to the bytes of files, one module per output format."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow as pa
from pydantic.alias_generators import to_snake

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.commit.manifest import Content
from batchinference.pipeline.errors import UnwritableValue
from batchinference.pipeline.output.python_rows import DAMAGE, Row, unreadable
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.write import Write


class Writer(ABC):
    """Converts rows to files of one format. Ray serializes it into the write tasks."""

    @abstractmethod
    def files(self, table: pa.Table) -> Iterator[tuple[str, bytes | memoryview]]:
        """Yield the files that hold a table: the end of each file's name, and all of its bytes.
        Raises UnwritableValue for a value that cannot be encoded."""

    def converted(self, table: pa.Table) -> pa.Table:
        """Return a table with the types that the files have."""
        return tensors_to_lists(table)

    def unwritable(self, table: pa.Table) -> dict[int, UnwritableValue]:
        """Return the error of each row that cannot be written to the file of this table, by row
        index. Raises BadOutput if a column cannot be written at all."""
        return {}

    def nulled_rows(self, table: pa.Table) -> dict[int, int]:
        """Return the number of values that are written as null, because they are NaN or infinity,
        of each row that has any, by row index."""
        return {}


class FileWriter(Writer):
    """A writer of a format whose files are the output."""

    @abstractmethod
    def rows(self, part: Location) -> Iterator[Row]:
        """Yield the rows of a file as Python values. Raises an error of DAMAGE if it is damaged."""


class RewritingWriter(FileWriter):
    """A writer that can read its files back and write them again, without changing a value."""

    typed: ClassVar[bool] = False
    """Whether tables have the types of the columns. Otherwise all columns are encoded text."""

    @abstractmethod
    def read(self, content: bytes) -> pa.Table:
        """Return the rows of a file that this job has written. Their size is not limited."""

    @abstractmethod
    def write(self, tables: Iterable[pa.Table]) -> Content:
        """Return a file with the rows of tables of one schema, as `read` returns them. Each table
        is encoded before the next one is taken, so that `tables` can read them one by one."""


WRITERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "parquet": ("ParquetWriter", ("compression",)),
    "json": ("JsonWriter", ("compression",)),
    "openaiBatch": ("OpenaiBatchWriter", ("custom_id_column", "response_column")),
    "csv": ("CsvWriter", ("compression", "delimiter")),
    "webdataset": ("WebdatasetWriter", ("key_column",)),
}
"""The class of each format, and the fields of the specification that it takes. A format's module
has the name of the format in snake case, and is imported when it is needed."""


def writer_for(write: Write) -> FileWriter:
    """Return the writer for a format of files, with its options."""
    name, fields = WRITERS[write.format]
    module = importlib.import_module(f"{__name__}.{to_snake(write.format)}")
    return cast(FileWriter, getattr(module, name)(*(getattr(write, field) for field in fields)))


def rewriting_writer_for(write: Write) -> RewritingWriter | None:
    """Return the writer of an output; None if its files are not rewritten."""
    writer = writer_for(write) if write.format in WRITERS else None
    return writer if isinstance(writer, RewritingWriter) else None


def rows_of_file(part: Location, writer: FileWriter) -> Iterator[Row]:
    """Yield the rows of a file of an output. A file that is not Parquet is read completely. Raises
    BadOutput if it is damaged."""
    try:
        yield from writer.rows(part)
    except DAMAGE as error:
        raise unreadable(part, error) from None
