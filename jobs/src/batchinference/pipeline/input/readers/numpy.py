"""Reads NumPy files: .npy has one array, .npz is a zip archive of arrays (the columns)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.input.readers import CHUNK_ROWS, BadRow, Chunk, FileStats, StatsReader
from batchinference.pipeline.input.readers.text_lines import BUFFER_BYTES, open_raw
from batchinference.pipeline.input.signatures import is_numpy
from batchinference.pipeline.row_warnings import RowWarning, collect_warnings, with_warnings
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.numpy_files import (
    DAMAGE,
    ArrayHeader,
    array_headers,
    load_arrays,
)
from batchinference.pipeline.type_widening import shared_types, with_types

if TYPE_CHECKING:
    from batchinference.spec.read import NumpyOptions

CHUNK_BYTES = 16 << 20
HEADER_BYTES = 1 << 16
"""Bytes per fetch if only the headers are needed."""
_UNITS = {"ms": "ms", "us": "us", **dict.fromkeys(("ns", "ps", "fs", "as"), "ns")}
"""The Arrow unit for each NumPy unit of time below a second. Other units become seconds."""


class NumpyReader(StatsReader):
    recognizes = staticmethod(is_numpy)
    chunk_bytes = CHUNK_BYTES

    def __init__(self, options: NumpyOptions) -> None:
        self._types: dict[str, pa.DataType] = {}
        self._columns: list[str] = []
        self._row_bytes = options.row_bytes

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        names = (name for schema in schemas.values() for name in schema.names)
        self._columns = list(dict.fromkeys(names))
        self._types = shared_types(schemas)

    def read(self, file: Location) -> Iterator[Chunk]:
        try:
            with open_raw(file, BUFFER_BYTES) as source, collect_warnings() as warnings:
                headers = array_headers(source, self._row_bytes)
                with_types(_schema_of(headers).empty_table(), self._types)
                arrays = load_arrays(source, headers)
        except DAMAGE as error:
            yield BadRow(error)
        else:
            for number, chunk in enumerate(_chunks(arrays, self._types, self.chunk_bytes)):
                yield chunk if number else _warned(chunk, warnings)

    def stats(self, file: Location, size: int) -> FileStats:
        headers = self._headers(file)
        rows = next((array.rows for array in headers.values()), 1)
        return FileStats(rows, schema=_schema_of(headers))

    def columns(self) -> list[str] | None:
        return self._columns or None

    def _headers(self, file: Location) -> dict[str, ArrayHeader]:
        with open_raw(file, HEADER_BYTES) as source:
            return array_headers(source, self._row_bytes)


def _schema_of(headers: Mapping[str, ArrayHeader]) -> pa.Schema:
    """Return the column types of the arrays. Each axis after the first becomes a level of lists,
    because its length may differ between files. An array without rows has the type null."""
    return pa.schema([(name, _type_of(header)) for name, header in headers.items()])


def _type_of(header: ArrayHeader) -> pa.DataType:
    if not header.rows:
        return pa.null()
    if header.dtype.kind == "S" and len(header.shape) > 1:
        raise ValueError(f"arrays of {header.dtype} with several axes cannot be read")
    kind = _element_type(header.dtype)
    for _ in header.shape[1:]:
        kind = pa.list_(kind)
    return kind


def _element_type(dtype: np.dtype) -> pa.DataType:
    return to_column(np.empty(0, _arrow_dtype(dtype))).type


def _arrow_dtype(dtype: np.dtype) -> np.dtype:
    """Return the closest type that Arrow supports, with the byte order of the machine."""
    if dtype.kind not in "mM":
        return dtype.newbyteorder("=")
    unit, _ = np.datetime_data(dtype)
    return np.dtype(f"{dtype.kind}8[{_UNITS.get(unit, 's')}]")


def _chunks(
    arrays: dict[str, np.ndarray], types: Mapping[str, pa.DataType], chunk_bytes: int
) -> Iterator[Chunk]:
    length = max((len(array) for array in arrays.values()), default=0)
    if arrays and not length:  # without rows, yield an empty table for the columns
        row = {name: np.zeros((1, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        yield from (rows.slice(0, 0) for rows in _rows(row, types) if isinstance(rows, pa.Table))
    size = sum(array.nbytes for array in arrays.values())
    rows = min(CHUNK_ROWS, max(1, chunk_bytes * length // max(1, size)))
    for start in range(0, length, rows):
        part = {name: array[start : start + rows] for name, array in arrays.items()}
        yield from _rows(part, types)


def _rows(arrays: dict[str, np.ndarray], types: Mapping[str, pa.DataType]) -> Iterator[Chunk]:
    """Yield the rows of arrays, cast to the types that all files share (`types`). A row becomes a
    BadRow if a cast fails or would change one of its values."""
    length = max(len(array) for array in arrays.values())
    try:
        yield pa.table({name: _column(name, array, types) for name, array in arrays.items()})
    except (ValueError, TypeError) as error:
        if length == 1:
            yield BadRow(error)
            return
        for half in (slice(length // 2), slice(length // 2, None)):
            yield from _rows({name: array[half] for name, array in arrays.items()}, types)


def _column(name: str, array: np.ndarray, types: Mapping[str, pa.DataType]) -> pa.ChunkedArray:
    """Return an array as a column, cast to the type that all files share. Raises ValueError if the
    cast would change a value, and TypeError for an incompatible type."""
    array = _in_arrow_dtype(name, array)
    schema = _schema_of({name: ArrayHeader(array.shape, array.dtype)})
    kind = with_types(schema.empty_table(), types).schema.field(0).type
    for _ in array.shape[1:]:
        kind = kind.value_type
    if kind == _element_type(array.dtype):
        return _to_column(name, array)
    elements = pa.table({name: _to_column(name, array.reshape(-1))})
    cast = with_types(elements, {name: kind}).column(0)
    return cast if array.ndim == 1 else to_column(cast.to_numpy().reshape(array.shape))


def _in_arrow_dtype(name: str, array: np.ndarray) -> np.ndarray:
    """Return an array cast to `_arrow_dtype`. Raises ValueError if a time would change."""
    cast = array.astype(_arrow_dtype(array.dtype), copy=False)
    if cast.dtype.kind in "mM" and cast.dtype != array.dtype:
        back = cast.astype(array.dtype)
        if not np.array_equal(back.view(np.int64), array.view(np.int64)):
            raise ValueError(f"column '{name}': a value of {array.dtype} does not fit {cast.dtype}")
    return cast


def _to_column(name: str, array: np.ndarray) -> pa.ChunkedArray:
    try:
        return to_column(array)
    except (TypeError, UnicodeError) as error:
        raise ValueError(f"column '{name}': Arrow cannot hold a value of {array.dtype}") from error


def _warned(chunk: Chunk, warnings: list[RowWarning]) -> Chunk:
    """Return a chunk with these warnings on its first row."""
    if isinstance(chunk, BadRow):
        return replace(chunk, warnings=warnings)
    return with_warnings(chunk, {0: warnings})
