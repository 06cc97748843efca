"""Checks and loads untrusted NumPy files.

np.load allocates the memory that the headers of arrays claim, so headers are checked first."""

from __future__ import annotations

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from batchinference.pipeline.row_warnings import warn
from batchinference.spec.warnings import WarningName

COLUMN = "data"
"""The column name of the array in a .npy file."""
ZIP = b"PK"
"""The first bytes of a .npz file."""
DAMAGE = (
    *(ValueError, EOFError, TypeError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""The exceptions for a damaged or too large file."""


@dataclass(frozen=True)
class ArrayHeader:
    """The shape and the type of an array, according to its header."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def rows(self) -> int:
        """The length of the first dimension. An array without dimensions is one row."""
        return self.shape[0] if self.shape else 1


def array_headers(source: io.BufferedReader, max_bytes: int) -> dict[str, ArrayHeader]:
    """Return the headers of the arrays in a file by column name. Warns if an archive has files that
    are not arrays. Raises one of DAMAGE if an array is unreadable, or if all arrays together have
    more than `max_bytes`."""
    if not source.peek(len(ZIP)).startswith(ZIP):
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
        _check_size(size, max_bytes)
        return {COLUMN: _header(source, size)}
    if source.peek(4).startswith(b"PK\5\6"):  # empty, and zipfile may seek to before 0
        raise ValueError("the archive has no arrays")
    with zipfile.ZipFile(source) as archive:
        stored = [info for info in archive.infolist() if not info.is_dir()]
        members = [info for info in stored if info.filename.endswith(".npy")]
        if others := len(stored) - len(members):
            warn(WarningName.MEMBERS_IGNORED, amount=others)
        if not members:
            raise ValueError(f"none of the {others} members is an array (a NAME.npy)")
        # zipfile decompresses at most `file_size` bytes of a member
        _check_size(sum(info.file_size for info in members), max_bytes)
        headers = {}
        for info in members:
            with archive.open(info) as member:
                name = info.filename.removesuffix(".npy")
                headers[name] = _header(cast(BinaryIO, member), info.file_size)
    if len(headers) < len(members):
        raise ValueError("two arrays of the file have the same name")
    if len({header.rows for header in headers.values()}) > 1:
        shown = ", ".join(f"{name} {header.rows}" for name, header in headers.items())
        raise ValueError(f"the arrays have different numbers of rows: {shown}")
    return headers


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ValueError(f"the arrays have {size} bytes, more than maxRowBytes ({max_bytes})")


def _header(source: BinaryIO, size: int) -> ArrayHeader:
    """Return the header of an array. Raises ValueError if the header is invalid, or if header and
    array do not have `size` bytes."""
    version = npy.read_magic(source)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(source)
    if not _is_readable(dtype):
        raise ValueError(f"arrays of {dtype} cannot be read")
    header = ArrayHeader(shape, dtype)
    array_bytes = dtype.itemsize * math.prod(shape)
    if any(length < 0 for length in shape):
        raise ValueError(f"the header has an impossible shape: {shape}")
    rest = size - source.tell() - array_bytes
    if rest < 0:
        raise ValueError(f"the file ends before its array of shape {shape} does")
    if rest:
        raise ValueError(
            f"{rest} bytes follow the array, perhaps a second one. Save each array in its own file"
        )
    return header


def _is_readable(dtype: np.dtype[Any]) -> bool:
    """Return whether Arrow has a type for these values."""
    if dtype.kind in "mM":  # a month has no fixed number of days
        unit, _ = np.datetime_data(dtype)
        return unit != "generic" and not (dtype.kind == "m" and unit in ("Y", "M"))
    return dtype.kind in "biuSU" or (dtype.kind == "f" and dtype.itemsize <= 8)


def load_arrays(source: io.BufferedReader, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a file (rows x any shape and type). Call `array_headers` first."""
    source.seek(0)
    loaded = np.load(source, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {COLUMN: np.atleast_1d(loaded)}
    with loaded:  # without .npy, the name could select another member, which was not checked
        return {name: np.atleast_1d(loaded[f"{name}.npy"]) for name in names}
