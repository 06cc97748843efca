"""Reads NumPy files with np.load. A .npy file holds one array, a .npz file is a zip archive of
arrays. The headers are checked first, because np.load allocates as much memory as they claim."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.input.readers import (
    CHUNK_ROWS,
    MAX_COLUMNS,
    BadRow,
    Chunk,
    FileStats,
    StatsReader,
)
from batchinference.pipeline.input.readers.records import BUFFER_BYTES, opened
from batchinference.pipeline.schema import shared_types, with_types
from batchinference.pipeline.storage.location import Location

if TYPE_CHECKING:
    from batchinference.spec.read import NumpyOptions

COLUMN = "data"
"""The column name for a file that holds one unnamed array."""
CHUNK_BYTES = 16 << 20
HEADER_BYTES = 1 << 16
"""Bytes per fetch if only headers are needed."""
MAX_EMPTY_ROWS = 1 << 24
"""Maximum number of rows without elements. They take no bytes, so a small file can claim any number
of them."""
_ZIP = b"PK"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods that NumPy uses. With other methods, zipfile can decompress a few bytes
to GiB at once."""
_DAMAGE = (ValueError, EOFError, TypeError, zipfile.BadZipFile)


class NumpyReader(StatsReader):
    extensions = ("npy", "npz")
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
            with opened(file, BUFFER_BYTES) as source:
                headers = _headers(source, self._most)
                with_types(_elements(headers).empty_table(), self._types)
                arrays = _loaded(source, list(headers))
        except _DAMAGE as error:
            yield BadRow(error)
        else:
            yield from _tables(arrays, self._types)

    def stats(self, file: Location, size: int) -> FileStats:
        headers = self._headers(file)
        rows = next((array.rows for array in headers.values()), 1)
        return FileStats(rows, schema=_elements(headers))

    def rows_in(self, file: Location, size: int) -> int:
        try:
            return next((header.rows for header in self._headers(file).values()), 0)
        except _DAMAGE:
            return 1  # a damaged file is one failed row

    def columns(self) -> list[str] | None:
        return self._columns or None

    def _headers(self, file: Location) -> dict[str, _Header]:
        with opened(file, HEADER_BYTES) as source:
            return _headers(source, self._most)


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1


def _headers(source: io.BufferedReader, most: int) -> dict[str, _Header]:
    """Return the headers of the arrays of a file by column name. Raises ValueError or BadZipFile
    for arrays that cannot be read, or that have more than `most` bytes together."""
    if not source.peek(len(_ZIP)).startswith(_ZIP):
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
        _check_size(size, most)
        return {COLUMN: _header(source, size)}
    with zipfile.ZipFile(source) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if len(members) > MAX_COLUMNS:
            raise ValueError(f"the file has {len(members)} arrays, more than {MAX_COLUMNS}")
        if unusual := [info for info in members if info.compress_type not in _PACKINGS]:
            raise ValueError(f"'{unusual[0].filename}' is not packed as NumPy packs arrays")
        # zipfile decompresses at most `file_size` bytes of a member
        _check_size(sum(info.file_size for info in members), most)
        headers = {}
        for info in members:
            with archive.open(info) as member:
                name = info.filename.removesuffix(".npy")
                headers[name] = _header(cast(BinaryIO, member), info.file_size)
    if len({header.rows for header in headers.values()}) > 1:
        shown = ", ".join(f"{name} {header.rows}" for name, header in headers.items())
        raise ValueError(f"the arrays have different numbers of rows: {shown}")
    return headers


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"the arrays have {size} bytes, more than max_row_bytes ({most})")


def _header(source: BinaryIO, size: int) -> _Header:
    """Return the header of an array. `size` is the number of bytes of the array and its header.
    Raises ValueError if the header is invalid or claims more bytes."""
    version = npy.read_magic(source)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(source)
    if dtype.kind not in "biufSUmM":
        raise ValueError(f"arrays of {dtype} cannot be read")
    header = _Header(shape, dtype)
    claimed = dtype.itemsize * math.prod(shape)
    if any(length < 0 for length in shape) or (claimed == 0 and header.rows > MAX_EMPTY_ROWS):
        raise ValueError(f"the header has an impossible shape: {shape}")
    if claimed > size:
        raise ValueError(f"the file ends before its array of shape {shape} does")
    return header


def _loaded(source: io.BufferedReader, names: list[str]) -> dict[str, np.ndarray]:
    source.seek(0)
    loaded = np.load(source, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {COLUMN: np.atleast_1d(loaded)}
    with loaded:
        return {name: np.atleast_1d(loaded[name]) for name in names}


def _elements(headers: dict[str, _Header]) -> pa.Schema:
    """Return the element types of the arrays. The shapes may differ between files."""
    native = {name: header.dtype.newbyteorder("=") for name, header in headers.items()}
    return pa.schema([(name, to_column(np.empty(0, native[name])).type) for name in native])


def _tables(arrays: dict[str, np.ndarray], types: dict[str, pa.DataType]) -> Iterator[pa.Table]:
    length = max((len(array) for array in arrays.values()), default=0)
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
