"""Reads NumPy files. A .npy file holds one array, a .npz file is a zip archive of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.input.readers import (
    CHUNK_ROWS,
    BadRow,
    Chunk,
    FileStats,
    StatsReader,
)
from batchinference.pipeline.input.readers.records import BUFFER_BYTES, opened
from batchinference.pipeline.row_warnings import collect_warnings, with_warnings
from batchinference.pipeline.schema import shared_types, with_types
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.numpy_files import (
    DAMAGE,
    ArrayHeader,
    array_headers,
    load_arrays,
)

if TYPE_CHECKING:
    from batchinference.spec.read import NumpyOptions

CHUNK_BYTES = 16 << 20
HEADER_BYTES = 1 << 16
"""Bytes per fetch if only headers are needed."""


class NumpyReader(StatsReader):
    rows_exact = True

    def __init__(self, options: NumpyOptions) -> None:
        self._types: dict[str, pa.DataType] = {}
        self._columns: list[str] = []
        self._most = options.row_bytes

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        names = (name for schema in schemas.values() for name in schema.names)
        self._columns = list(dict.fromkeys(names))
        self._types = shared_types(schemas)

    def read(self, file: Location) -> Iterator[Chunk]:
        try:
            with opened(file, BUFFER_BYTES) as source, collect_warnings() as warnings:
                headers = array_headers(source, self._most)
                with_types(_elements(headers).empty_table(), self._types)
                arrays = load_arrays(source, headers)
        except DAMAGE as error:
            yield BadRow(error)
        else:
            for number, table in enumerate(_tables(arrays, self._types)):
                yield table if number else with_warnings(table, {0: warnings})

    def stats(self, file: Location, size: int) -> FileStats:
        headers = self._headers(file)
        rows = next((array.rows for array in headers.values()), 1)
        return FileStats(rows, schema=_elements(headers))

    def rows_in(self, file: Location, size: int) -> int:
        try:
            return next((header.rows for header in self._headers(file).values()), 0)
        except DAMAGE:
            return 1  # a damaged file is one failed row

    def columns(self) -> list[str] | None:
        return self._columns or None

    def _headers(self, file: Location) -> dict[str, ArrayHeader]:
        with opened(file, HEADER_BYTES) as source:
            return array_headers(source, self._most)


def _elements(headers: dict[str, ArrayHeader]) -> pa.Schema:
    """Return the element types of the arrays. The shapes may differ between files."""
    native = {name: header.dtype.newbyteorder("=") for name, header in headers.items()}
    return pa.schema([(name, to_column(np.empty(0, native[name])).type) for name in native])


def _tables(arrays: dict[str, np.ndarray], types: dict[str, pa.DataType]) -> Iterator[pa.Table]:
    length = max((len(array) for array in arrays.values()), default=0)
    if arrays and not length:  # the columns are those of a row
        row = {name: np.zeros((1, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        with suppress(TypeError):
            yield from (table.slice(0, 0) for table in _tables(row, types))
    size = sum(array.nbytes for array in arrays.values())
    rows = min(CHUNK_ROWS, max(1, CHUNK_BYTES * length // max(1, size)))
    for start in range(0, length, rows):
        yield pa.table(
            {
                name: to_column(_typed(array[start : start + rows], types.get(name)))
                for name, array in arrays.items()
            }
        )


def _typed(array: np.ndarray, shared: pa.DataType | None) -> np.ndarray:
    """Return the array in the byte order of Arrow, and in the type shared by all files if that type
    is wider."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if shared is None or array.dtype.kind not in "iuf":
        return array
    dtype = shared.to_pandas_dtype()
    return array.astype(dtype, copy=False) if np.can_cast(array.dtype, dtype) else array
