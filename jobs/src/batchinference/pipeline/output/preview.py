"""Reads the first rows of a written output, and converts rows to Python values."""

from __future__ import annotations

import gzip
import io
import itertools
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pac
import pyarrow.fs as pafs

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.errors import BadOutput
from batchinference.pipeline.output.tables import table_for
from batchinference.pipeline.storage.arrow_files import read_tables
from batchinference.pipeline.storage.csv_columns import check_columns
from batchinference.pipeline.storage.json import load_limited_json
from batchinference.pipeline.storage.location import Location, base_name
from batchinference.pipeline.storage.memory_limit import rows_limit
from batchinference.pipeline.storage.numpy_files import (
    COLUMN,
    DAMAGE,
    ZIP,
    array_headers,
    load_arrays,
)
from batchinference.spec.write import (
    Write,
    WriteCsv,
    WriteImages,
    WriteNumpy,
    WriteParquet,
    WriteTable,
    WriteWebdataset,
)

Row = dict[str, Any]
ROWS_AT_ONCE = 16
"""Rows of a table that are converted at a time. A Python value may take eight times the
memory of an Arrow value."""
BLOCK_BYTES = 1 << 20
"""Bytes that are decompressed at a time."""
_LARGEST_BLOCK = (1 << 31) - 1
_DAMAGE = (
    *(*DAMAGE, IndexError, pa.ArrowInvalid),
    *(gzip.BadGzipFile, tarfile.TarError),
)


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


def rows_of_file(part: Location, write: Write) -> Iterator[Row]:
    """Yield the rows of a file of an output. A file that is not Parquet is read completely. Raises
    BadOutput if it is damaged, or if they take much more memory than the file has bytes."""
    try:
        yield from _rows_of(part, write)
    except _DAMAGE as error:
        raise _unreadable(part, error) from None


def _rows_of(part: Location, write: Write) -> Iterator[Row]:
    if isinstance(write, WriteParquet):
        with part.open_input_file() as source:
            for table in read_tables(source):
                yield from rows_of_table(table)
        return
    if isinstance(write, WriteCsv):
        for batch in csv_table(part, write).to_batches(ROWS_AT_ONCE):
            yield from batch.to_pylist()
        return
    content = _unpacked(part)
    match write:
        case WriteNumpy():
            yield from _rows_of_arrays(content)
        case WriteWebdataset():
            yield from _rows_of_members(content)
        case WriteImages():
            from batchinference.pipeline.media.images import open_image

            try:
                with open_image(content) as image:
                    size = f"{image.width} x {image.height}, {image.mode}"
            except OSError as error:  # as Pillow raises for damaged images
                raise ValueError(error) from None
            yield {"file": part.uri, "image": size}
        case _:
            lines = (line for line in io.BytesIO(content) if line.endswith(b"\n"))
            yield from map(load_limited_json, lines)


def csv_table(part: Location, write: WriteCsv, texts: Sequence[str] = ()) -> pa.Table:
    """Return the rows of a file of separated values. The columns `texts` are not converted."""
    parse = pac.ParseOptions(delimiter=write.delimiter, newlines_in_values=True)
    convert = pac.ConvertOptions(
        column_types=dict.fromkeys(texts, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        content = _unpacked(part)
        check_columns(content[:BLOCK_BYTES], write.delimiter.encode())
        # one block: at the beginning of a block, pyarrow drops the second byte of a CRLF in a text;
        # one thread: another one could free the content while the interpreter exits, which aborts
        most = min(len(content) + 1, _LARGEST_BLOCK)
        reading = pac.ReadOptions(use_threads=False, block_size=most)
        return pac.read_csv(io.BytesIO(content), reading, parse, convert)
    except _DAMAGE as error:
        raise _unreadable(part, error) from None


def _unpacked(part: Location) -> bytes:
    """Return the content of a file, decompressed if it is gzip. Raises BadOutput if it has much
    more bytes than in storage."""
    content = part.read()
    if not part.path.endswith(".gz"):
        return content
    limit, unpacked = rows_limit(len(content)), bytearray()
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as source:
        while block := source.read(BLOCK_BYTES):
            unpacked += block
            if len(unpacked) > limit:
                raise _unreadable(part, f"it has more than {limit} bytes after decompression")
    return bytes(unpacked)


def _unreadable(part: Location, problem: object) -> BadOutput:
    return BadOutput(
        f"write.path: '{part.uri}' cannot be read ({problem}). Read the file with another library"
    )


def rows_of_table(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table, with tensors and nested lists of numbers as NumPy arrays."""
    for start in range(0, table.num_rows, ROWS_AT_ONCE):
        part = table.slice(start, ROWS_AT_ONCE)
        columns = [_with_arrays(column) for column in part.columns]
        for row in zip(*columns, strict=True):
            yield dict(zip(table.column_names, row, strict=True))


def _with_arrays(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, with nested lists of numbers as NumPy arrays, and tensors of
    one dimension as lists."""
    values = [_without_vectors(value) for value in values_of(column)]
    kind, depth = column.type, 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind, depth = kind.value_type, depth + 1
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if depth < 2 or not number:
        return values
    return [None if value is None else _array(value, kind.to_pandas_dtype()) for value in values]


def _without_vectors(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim == 1 else value


def _array(value: Any, kind: Any) -> Any:
    try:
        return np.array(value, dtype=kind)
    except (ValueError, TypeError):  # lists of different lengths, or with nulls
        return value


def _rows_of_arrays(content: bytes) -> Iterator[Row]:
    source: io.BufferedReader = io.BufferedReader(io.BytesIO(content))
    headers = array_headers(source, rows_limit(len(content)), "the limit")
    arrays = load_arrays(source, headers)
    if not content.startswith(ZIP):
        arrays = {"array": arrays[COLUMN]}
    for values in zip(*arrays.values(), strict=True):
        yield {name: value.tolist() for name, value in zip(arrays, values, strict=True)}


def _rows_of_members(content: bytes) -> Iterator[Row]:
    """Yield the key of each row with the names and sizes of its members, which are not decoded."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        for key, members in itertools.groupby(tar, lambda member: member.name.split(".")[0]):
            sizes = {info.name.split(".", 1)[1]: f"{info.size} bytes" for info in members}
            yield {"key": key, **sizes}
