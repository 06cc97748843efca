"""Reads the first rows of a written output, and converts rows to Python values."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pac

from batchinference.pipeline.arrow import values_of
from batchinference.pipeline.output.tables import table_for
from batchinference.pipeline.storage.arrow_files import read_tables
from batchinference.pipeline.storage.location import Location, base_name
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
"""Rows of a Parquet file that are converted at a time. A Python value may take eight times the
memory of an Arrow value."""


def first_rows(write: Write, count: int) -> list[Row]:
    """Return the first rows of an output. Files are read in the order of their names. For a
    table, any rows are returned."""
    if isinstance(write, WriteTable):
        return table_for(write).first_rows(count)
    output = Location(write.path, write.storage)
    paths = sorted(info.path for info in output.data_files())
    parts = [path for path in paths if not base_name(path).startswith(("_", "."))]
    rows = itertools.chain.from_iterable(rows_of_file(output.at(part), write) for part in parts)
    return list(itertools.islice(rows, count))


def rows_of_file(part: Location, write: Write) -> Iterator[Row]:
    """Yield the rows of a file of an output. A file that is not Parquet is read completely."""
    if isinstance(write, WriteParquet):
        with part.open_input_file() as source:
            for table in read_tables(source):
                for start in range(0, table.num_rows, ROWS_AT_ONCE):
                    yield from rows_of_table(table.slice(start, ROWS_AT_ONCE))
        return
    content = part.read()
    if part.path.endswith(".gz"):
        content = gzip.decompress(content)
    match write:
        case WriteCsv():
            options = pac.ParseOptions(delimiter=write.delimiter, newlines_in_values=True)
            yield from pac.read_csv(io.BytesIO(content), parse_options=options).to_pylist()
        case WriteNumpy():
            yield from _rows_of_arrays(content)
        case WriteWebdataset():
            yield from _rows_of_members(content)
        case WriteImages():
            from batchinference.pipeline.media.images import open_image

            with open_image(content) as image:
                size = f"{image.width} x {image.height}, {image.mode}"
            yield {"file": part.uri, "image": size}
        case _:
            yield from map(json.loads, content.split(b"\n")[:-1])


def rows_of_table(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of a table, with tensors and nested lists of numbers as NumPy arrays."""
    columns = [_with_arrays(column) for column in table.columns]
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
    loaded = np.load(io.BytesIO(content), allow_pickle=False)
    arrays = {"array": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    for values in zip(*arrays.values(), strict=True):
        yield {name: value.tolist() for name, value in zip(arrays, values, strict=True)}


def _rows_of_members(content: bytes) -> Iterator[Row]:
    """Yield the key of each row with the names and sizes of its members, which are not decoded."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for key, members in itertools.groupby(tar, lambda member: member.name.split(".")[0]):
            sizes = {info.name.split(".", 1)[1]: f"{info.size} bytes" for info in members}
            yield {"key": key, **sizes}
