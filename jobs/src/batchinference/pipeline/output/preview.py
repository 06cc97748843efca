"""Reads the first rows of a written output."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pyarrow.fs as pafs

from batchinference.pipeline.output.stored_rows import DAMAGE, Row, unreadable
from batchinference.pipeline.output.tables import table_for
from batchinference.pipeline.output.writers import writer_for
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.spec.write import Write, WriteFiles, WriteTable


def first_rows(write: Write, count: int) -> list[Row]:
    """Return the first rows of an output. Files are read in the order of their names. For a
    table, any rows are returned."""
    if isinstance(write, WriteTable):
        return table_for(write).first_rows(count)
    output = Location(write.path, write.storage)
    parts = (output.at(info.path) for info in parts_of(write))
    rows = itertools.chain.from_iterable(rows_of_file(part, write) for part in parts)
    return list(itertools.islice(rows, count))


def parts_of(write: Write) -> list[pafs.FileInfo]:
    """Return the files of an output, in the order of their names."""
    output = Location(write.path, write.storage)
    files = output.without_links(output.data_files())
    seen = [info for info in files if not base_name(info.path).startswith(("_", "."))]
    return sorted(seen, key=lambda info: str(info.path))


def rows_of_file(part: Location, write: WriteFiles) -> Iterator[Row]:
    """Yield the rows of a file of an output. A file that is not Parquet is read completely. Raises
    BadOutput if it is damaged."""
    try:
        yield from writer_for(write).rows(part)
    except DAMAGE as error:
        raise unreadable(part, error) from None
