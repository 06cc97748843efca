"""Reads NumPy files in slices of rows. A .npy file holds one array, a .npz file is a zip archive of
arrays."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from batchinference.pipeline.arrow import to_column
from batchinference.pipeline.input.readers.base import (
    CHUNK_ROWS,
    MAX_COLUMNS,
    BadRow,
    Chunk,
    FileStats,
)
from batchinference.pipeline.input.readers.inference import shared_types, with_types
from batchinference.pipeline.input.readers.inspection import inspected
from batchinference.pipeline.input.readers.streams import BUFFER_BYTES, opened
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
MAX_BYTES = 1 << 46
"""More bytes than any real array has. A header that claims more is damaged."""
MAX_HEADER_BYTES = 1 << 16
"""NumPy also refuses longer headers, but only after reading them."""
_ZIP = b"PK"
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods that NumPy uses. With other methods, zipfile can decompress a few bytes
to GiB at once."""
_DAMAGE = (ValueError, EOFError, TypeError, zipfile.BadZipFile)


class NumpyReader:
    extensions = ("npy", "npz")
    rows_exact = True

    def __init__(self, options: NumpyOptions) -> None:
        self._types: dict[str, pa.DataType] = {}
        self._columns: list[str] = []
        self._most = options.row_bytes

    def prepare(self, samples: list[Location]) -> None:
        found = inspected(samples, lambda file: self.stats(file, 0))
        self.use_schemas({sample.uri: stats.schema for sample, stats in found})

    def use_schemas(self, schemas: Mapping[str, pa.Schema]) -> None:
        names = (name for schema in schemas.values() for name in schema.names)
        self._columns = list(dict.fromkeys(names))
        self._types = shared_types(schemas)

    def read(self, file: Location) -> Iterator[Chunk]:
        try:
            with _arrays(file, BUFFER_BYTES, self._most) as arrays:
                _check(arrays, self._most)
                with_types(_elements(arrays).empty_table(), self._types)
                yield from _tables(arrays, self._types)
        except _DAMAGE as error:
            yield BadRow(error)  # the rest of the file counts as one failed row

    def stats(self, file: Location, size: int) -> FileStats:
        headers = self._headers(file)
        rows = next((array.rows for array in headers.values()), 1)
        return FileStats(rows, schema=_elements(headers))

    def rows_in(self, file: Location, size: int) -> int:
        try:
            return self.stats(file, size).rows
        except _DAMAGE:
            return 1  # a damaged file is one failed row

    def columns(self) -> list[str] | None:
        return self._columns or None

    def _headers(self, file: Location) -> dict[str, _Array]:
        """Return the arrays of a file. Only the headers are usable: the file is closed."""
        with _arrays(file, HEADER_BYTES, self._most) as arrays:
            return arrays


@dataclass(frozen=True)
class _Array:
    """An array whose header has been read. `source` is positioned at the first element."""

    source: IO[bytes]
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, source: IO[bytes], most: int) -> _Array:
        """Return an array after reading its header. Raises ValueError if the header is invalid, the
        dtype is not supported, or `check` fails."""
        version = npy.read_magic(source)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        array = cls(source, *read(_header(source, 2 if version == (1, 0) else 4)))
        if array.dtype.kind not in "biufSUmM":
            raise ValueError(f"arrays of {array.dtype} cannot be read")
        array.check(most)
        return array

    def check(self, most: int) -> None:
        """Raise ValueError if the shape is impossible, or if a row (the whole array in Fortran
        order) has more than `most` bytes."""
        size = self.dtype.itemsize * math.prod(self.shape)
        no_shape = any(length < 0 for length in self.shape) or size > MAX_BYTES
        if no_shape or (size == 0 and self.rows > MAX_EMPTY_ROWS):
            raise ValueError(f"the header has an impossible shape: {self.shape}")
        at_once = size if self.fortran else self.row_bytes
        if at_once > most:
            what = "an array in Fortran order" if self.fortran else "a row"
            raise ValueError(f"{what} has {at_once} bytes, more than max_row_bytes ({most})")

    @property
    def rows(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return max(1, self.dtype.itemsize * math.prod(self.shape[1:]))

    def slices(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the array in slices of `rows` rows. An array in Fortran order is read at once,
        because its rows are not contiguous."""
        if self.fortran:
            whole = self._take(math.prod(self.shape)).reshape(self.shape[::-1]).T
            yield from (whole[start : start + rows] for start in range(0, self.rows, rows))
            return
        for start in range(0, self.rows, rows):
            shape = (min(rows, self.rows - start), *self.shape[1:])
            yield self._take(math.prod(shape)).reshape(shape)

    def _take(self, elements: int) -> np.ndarray:
        content = self.source.read(elements * self.dtype.itemsize)
        if len(content) < elements * self.dtype.itemsize:
            raise EOFError("the file ends before its array does")
        array = np.frombuffer(content, self.dtype, elements)
        return array.astype(self.dtype.newbyteorder("="), copy=False)  # Arrow is native-endian


@contextmanager
def _arrays(file: Location, buffer_bytes: int, most: int) -> Iterator[dict[str, _Array]]:
    """Open a file and yield its arrays by column name."""
    with ExitStack() as stack:
        source = stack.enter_context(opened(file, buffer_bytes))
        if not source.peek(len(_ZIP)).startswith(_ZIP):
            yield {COLUMN: _Array.open(source, most)}
            return
        archive = stack.enter_context(zipfile.ZipFile(source))
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        if len(members) > MAX_COLUMNS:
            raise ValueError(f"the file has {len(members)} arrays, more than {MAX_COLUMNS}")
        if unusual := [info for info in members if info.compress_type not in _PACKINGS]:
            raise ValueError(f"'{unusual[0].filename}' is not packed as NumPy packs arrays")
        sources = {info.filename: stack.enter_context(archive.open(info)) for info in members}
        yield {
            name.removesuffix(".npy"): _Array.open(member, most) for name, member in sources.items()
        }


def _header(source: IO[bytes], length_bytes: int) -> IO[bytes]:
    """Return the length and header of an array. Raises ValueError if the header is too long."""
    length = source.read(length_bytes)
    size = int.from_bytes(length, "little")
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"its header claims to have {size} bytes")
    return io.BytesIO(length + source.read(size))


def _elements(arrays: dict[str, _Array]) -> pa.Schema:
    """Return the element types of the arrays. The shapes may differ between files."""
    native = {name: array.dtype.newbyteorder("=") for name, array in arrays.items()}
    return pa.schema([(name, to_column(np.empty(0, native[name])).type) for name in native])


def _check(arrays: dict[str, _Array], most: int) -> None:
    if sum(array.row_bytes for array in arrays.values()) > most:
        raise ValueError(f"the arrays of a row have more bytes than max_row_bytes ({most})")
    lengths = {name: array.rows for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {rows}" for name, rows in lengths.items())
        raise ValueError(f"the arrays have different numbers of rows: {shown}")


def _tables(arrays: dict[str, _Array], types: dict[str, pa.DataType]) -> Iterator[pa.Table]:
    size = sum(array.row_bytes for array in arrays.values())
    rows = min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, size)))
    slices = (array.slices(rows) for array in arrays.values())
    for columns in zip(*slices, strict=True):
        named = zip(arrays, columns, strict=True)
        yield pa.table({name: to_column(_typed(column, types.get(name))) for name, column in named})


def _typed(array: np.ndarray, shared: pa.DataType | None) -> np.ndarray:
    """Return the array in the type shared by all files if that type is wider."""
    if shared is None or array.dtype.kind not in "iuf":
        return array
    dtype = shared.to_pandas_dtype()
    return array.astype(dtype, copy=False) if np.can_cast(array.dtype, dtype) else array
